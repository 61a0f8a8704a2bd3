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

use anyhow::{Result, anyhow};
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
mod interface;
mod lifecycle;
mod multiqueue;
mod offload;
mod payload;
mod reconnect;
mod scene;
mod segment;
mod soak;
mod stream;
mod traffic;
mod train;
mod transmit;
mod uso;
mod vlan;

use harness::{Kit, kit, sandbox};
use scene::{Backend, Stage};

/// One test.
struct Case {
    name: &'static str,
    run: fn(&Stage<'_>) -> Result<()>,
    /// Also run on the older QEMU.
    on_older: bool,
    /// About the daemon, with nothing to find in QEMU's own device.
    daemon_only: bool,
    /// Also run with the daemon on an interface.
    on_interface: bool,
}

impl Case {
    const fn new(name: &'static str, run: fn(&Stage<'_>) -> Result<()>) -> Self {
        Case {
            name,
            run,
            on_older: false,
            daemon_only: false,
            on_interface: false,
        }
    }

    const fn on_older_too(self) -> Self {
        Case {
            on_older: true,
            ..self
        }
    }

    const fn on_interface_too(self) -> Self {
        Case {
            on_interface: true,
            ..self
        }
    }

    const fn daemon_only(self) -> Self {
        Case {
            daemon_only: true,
            ..self
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
        interface::CASES,
        reconnect::CASES,
        multiqueue::CASES,
        transmit::CASES,
        stream::CASES,
    ];
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
        for case in cases.into_iter().flatten() {
            let name = kit.map_or(case.name.to_owned(), |kit| {
                if number == 0 {
                    case.name.to_owned()
                } else {
                    format!("{}_qemu_{}", case.name, kit.qemus[number].version)
                }
            });
            if number == 0 || case.on_older {
                trials.push(trial(kit, number, name, case, backend));
            }
            if number == 0 && case.on_interface && backend == Backend::Daemon {
                let name = format!("{}_on_interface", case.name);
                trials.push(trial(kit, number, name, case, Backend::Interface));
            }
        }
    }
    Ok(libtest_mimic::run(arguments, trials).exit_code())
}

/// A test as it is listed: on one of the kit's QEMUs.
fn trial(
    kit: Option<&'static Kit>,
    number: usize,
    name: String,
    case: &'static Case,
    backend: Backend,
) -> Trial {
    let is_left_out = case.daemon_only && backend == Backend::QemuTap;
    let trial = Trial::test(name, move || {
        let kit = kit.ok_or("only listed")?;
        let stage = Stage {
            kit,
            qemu: &kit.qemus[number],
            backend,
        };
        attempt(&stage, case)
    });
    trial.with_ignored_flag(is_left_out)
}

/// Runs one test; a failure tells what daemon, QEMU and guest said.
fn attempt(stage: &Stage<'_>, case: &Case) -> Result<(), Failed> {
    let before = scene::logs()?;
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| (case.run)(stage)));
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
