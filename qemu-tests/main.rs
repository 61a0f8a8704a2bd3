//! Tests on real guests: `cargo test --test qemu`.
//!
//! They run one after the other in a [`harness::sandbox`], each with a guest, a network and a
//! daemon of its own. With `QEMU_TESTS_BACKEND=tap` QEMU's own tap device takes the daemon's place,
//! for telling a fault of a test from one of the daemon.
//!
//! Where they cannot run, that is said, and it is a failure if `QEMU_TESTS_REQUIRED` is set.

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use libtest_mimic::{Arguments, Failed, Trial};

mod boot;
mod coalesce;
#[path = "../tests/vhost_user/front_end.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "shared with the tests of the session"
)]
mod front_end;
mod harness;
mod lifecycle;
mod multiqueue;
mod offload;
mod outage;
mod payload;
mod reconnect;
mod scene;
mod segment;
mod soak;
mod stream;
mod testpmd;
mod traffic;
mod train;
mod transmit;
mod uso;
mod vlan;

use harness::attachment::{ATTACHMENTS, Attachment, Need};
use harness::{Kit, kit, sandbox};
use scene::{Backend, Scene, Stage};

/// One test.
struct Case {
    name: &'static str,
    run: Run,
    /// Also run on the older QEMU.
    on_older: bool,
    /// About the daemon, with nothing to find in QEMU's own device.
    daemon_only: bool,
    /// Also run with the daemon on every other uplink.
    on_every_uplink: bool,
    /// What not every uplink has.
    needs: Option<Need>,
}

/// What a test starts from.
#[derive(Clone, Copy)]
enum Run {
    /// It makes all that it needs.
    Own(fn(&Stage<'_>) -> Result<()>),
    /// A guest with everything at its default, which it leaves as it was, so that others can share
    /// it.
    OnGuest(fn(&Stage<'_>, &Scene<'_>) -> Result<()>),
}

impl Case {
    const fn new(name: &'static str, run: fn(&Stage<'_>) -> Result<()>) -> Self {
        Self::running(name, Run::Own(run))
    }

    const fn on_guest(name: &'static str, run: fn(&Stage<'_>, &Scene<'_>) -> Result<()>) -> Self {
        Self::running(name, Run::OnGuest(run))
    }

    const fn running(name: &'static str, run: Run) -> Self {
        Case {
            name,
            run,
            on_older: false,
            daemon_only: false,
            on_every_uplink: false,
            needs: None,
        }
    }

    const fn on_older_too(self) -> Self {
        Case {
            on_older: true,
            ..self
        }
    }

    const fn on_every_uplink(self) -> Self {
        Case {
            on_every_uplink: true,
            ..self
        }
    }

    const fn needs(self, need: Need) -> Self {
        Case {
            needs: Some(need),
            ..self
        }
    }

    const fn daemon_only(self) -> Self {
        Case {
            daemon_only: true,
            ..self
        }
    }

    fn run(&self, stage: &Stage<'_>) -> Result<()> {
        match self.run {
            Run::Own(run) => run(stage),
            Run::OnGuest(run) => run(stage, &stage.open()?),
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if sandbox::is_inside() || arguments.list {
        // Two guests at a time would have to share the processors with their senders.
        arguments.test_threads.get_or_insert(1);
        return match run(&arguments) {
            Ok(code) => code,
            Err(error) => refuse(&error),
        };
    }
    match kit::set_up().and_then(|()| sandbox::enter()) {
        Ok(code) => code,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(
        std::io::stderr(),
        "\nNOT RUN: the tests on QEMU guests: {error:#}\n"
    );
    if std::env::var_os("QEMU_TESTS_REQUIRED").is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let cases = [
        boot::CASES,
        traffic::CASES,
        offload::CASES,
        coalesce::CASES,
        vlan::CASES,
        uso::CASES,
        soak::CASES,
        lifecycle::CASES,
        outage::CASES,
        reconnect::CASES,
        multiqueue::CASES,
        transmit::CASES,
        stream::CASES,
        testpmd::CASES,
    ];
    let cases: Vec<&'static Case> = cases.into_iter().flatten().collect();
    let backend = Backend::from_environment();
    // The tests live as long as the program.
    let kit: Option<&'static Kit> = if arguments.list {
        None
    } else {
        sandbox::furnish()?;
        Some(Box::leak(Box::new(Kit::open()?)))
    };
    let mut trials = Vec::new();
    let versions = kit.map_or(1, |kit| kit.qemus.len());
    for number in 0..versions {
        for &case in cases.iter().filter(|case| number == 0 || case.on_older) {
            let name = match kit {
                Some(kit) if number > 0 => {
                    format!("{}_qemu_{}", case.name, kit.qemus[number].version)
                }
                _ => case.name.to_owned(),
            };
            let trial = trial(kit, number, name, backend, |stage| case.run(stage));
            let is_left_out = case.daemon_only && matches!(backend, Backend::QemuTap);
            trials.push(trial.with_ignored_flag(is_left_out));
        }
    }
    if matches!(backend, Backend::Daemon(_)) {
        let others = &ATTACHMENTS[1..];
        trials.extend(others.iter().flat_map(|on| on_uplink(kit, &cases, on)));
    }
    Ok(libtest_mimic::run(arguments, trials).exit_code())
}

/// The tests of one of the uplinks that come behind the usual one. Those that can share a guest do.
fn on_uplink(
    kit: Option<&'static Kit>,
    cases: &[&'static Case],
    attachment: &'static Attachment,
) -> Vec<Trial> {
    let (backend, on) = (Backend::Daemon(attachment), attachment.name);
    let cases = cases.iter().filter(|case| case.on_every_uplink);
    let (mut shared, mut trials) = (Vec::new(), Vec::new());
    for &case in cases {
        let name = format!("{}_on_{on}", case.name);
        let lack = case.needs.and_then(|need| attachment.lacks(need));
        match (case.run, lack) {
            (_, Some(why)) => {
                let trial = trial(kit, 0, name, backend, |_| Ok(()));
                trials.push(trial.with_kind(why).with_ignored_flag(true));
            }
            (Run::Own(run), None) => trials.push(trial(kit, 0, name, backend, run)),
            (Run::OnGuest(run), None) => shared.push((case.name, run)),
        }
    }
    let all = trial(kit, 0, format!("guest_on_{on}"), backend, move |stage| {
        let scene = stage.open()?;
        shared
            .iter()
            .try_for_each(|(name, run)| run(stage, &scene).context(*name))
    });
    trials.insert(0, all);
    trials
}

/// A test as it is listed: on one of the kit's QEMUs.
fn trial(
    kit: Option<&'static Kit>,
    number: usize,
    name: String,
    backend: Backend,
    run: impl Fn(&Stage<'_>) -> Result<()> + Send + 'static,
) -> Trial {
    Trial::test(name, move || {
        let kit = kit.ok_or("only listed")?;
        let stage = Stage {
            kit,
            qemu: &kit.qemus[number],
            backend,
        };
        attempt(&stage, &run)
    })
}

/// Runs one test; a failure tells what daemon, QEMU and guest said.
fn attempt(stage: &Stage<'_>, run: &impl Fn(&Stage<'_>) -> Result<()>) -> Result<(), Failed> {
    let before = scene::logs()?;
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(stage)));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(anyhow!(
            "{}",
            text.or_else(|| panic.downcast_ref().copied())
                .unwrap_or("panic")
        ))
    });
    result.map_err(|error| {
        let mut said = format!("{error:#}\n");
        for log in scene::logs().unwrap_or_default().difference(&before) {
            let bytes = std::fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(25)..].join("\n");
            said.push_str(&format!("--- {}\n{tail}\n", log.display()));
        }
        said.into()
    })
}
