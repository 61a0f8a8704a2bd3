//! Guests and daemons for an experiment, and how long it may take.

use std::cell::Cell;
use std::process::Command;

use anyhow::Result;

use crate::harness::{Backend, Cpus, DaemonConfig, Kit, Netdev, Station, VmConfig, daemon, wait};
use crate::part::Part;
use crate::say;
use crate::turns::{self, Outcome};

/// How often and how long is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rounds: u32,
    /// Of one measurement.
    pub(crate) seconds: u64,
}

/// What experiments are made on.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) kit: &'a Kit,
    pub(crate) cpus: Option<Cpus>,
    pace: Pace,
    /// Letters of parts; none means all.
    wanted: &'a [String],
    /// Host part of the next guest's addresses.
    next_number: Cell<u8>,
}

/// A guest with its backend, or why it cannot be had.
pub(crate) type Contender = Result<Station, String>;

impl<'a> Bench<'a> {
    pub(crate) fn new(kit: &'a Kit, cpus: Option<Cpus>, pace: Pace, wanted: &'a [String]) -> Self {
        Bench {
            kit,
            cpus,
            pace,
            wanted,
            next_number: Cell::new(10),
        }
    }

    /// Whether the part with this letter was asked for.
    pub(crate) fn wants(&self, letter: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == letter)
    }

    /// A guest on the daemon, with further words of its command line.
    ///
    /// What the daemon or this host does not have is no failure of the experiment.
    pub(crate) fn daemon(&self, uplink: &str, options: &str, guest: &VmConfig) -> Contender {
        knows(uplink, options)?;
        let config = DaemonConfig {
            options: options.to_owned(),
            queue_pairs: guest.queues,
            ..DaemonConfig::on(uplink)
        };
        let what = format!("{uplink} {options}");
        self.start(&what, Backend::Daemon(config), guest)
    }

    /// A guest on QEMU's own tap device.
    pub(crate) fn qemu_tap(&self, tap: &str) -> Contender {
        let backend = Backend::QemuTap(tap.to_owned());
        self.start("QEMU's own tap", backend, &plain_guest())
    }

    /// One after the other: a guest takes its clock's rate from a moment that must not be
    /// disturbed.
    fn start(&self, what: &str, backend: Backend, guest: &VmConfig) -> Contender {
        let began = wait::now();
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let guest = VmConfig {
            number,
            ..guest.clone()
        };
        let started = Station::start(self.kit, backend, &guest).and_then(|station| {
            self.cpus.map_or(Ok(()), |cpus| station.pin(cpus))?;
            station.vm.run("netserver")?;
            Ok(station)
        });
        let took = began.elapsed().as_secs_f64();
        match &started {
            Ok(_) => say(&format!("guest {number} on {what} is up after {took:.0} s")),
            Err(error) => say(&format!("no guest on {what}: {error:#}")),
        }
        started.map_err(|error| format!("{error:#}"))
    }

    pub(crate) fn take_turns(&self, parts: &[Part<'_>]) -> Vec<Outcome> {
        turns::take(parts, self.pace)
    }
}

/// One queue pair, one processor, everything else as QEMU has it.
pub(crate) fn plain_guest() -> VmConfig {
    VmConfig::new(Netdev::None)
}

/// Whether this build of the daemon has these options, or what it says about them.
fn knows(uplink: &str, options: &str) -> Result<(), String> {
    let ask = || -> Result<_> {
        let words = uplink.split_whitespace().chain(options.split_whitespace());
        // Help is given when all before it was understood.
        Ok(Command::new(daemon::program()?)
            .args(words)
            .arg("--help")
            .output()?)
    };
    let answer = ask().map_err(|error| format!("{error:#}"))?;
    if answer.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.stderr);
    let reason = said.lines().next().unwrap_or("the daemon refuses");
    say(&format!("{uplink} {options}: {reason}"));
    Err(reason.trim_start_matches("error: ").to_owned())
}
