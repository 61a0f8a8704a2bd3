//! The daemon under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::process::Process;
use super::sandbox::RUN_DIR;
use super::user::User;
use super::vm::Netdev;
use super::wait::{wait_for, wait_until};

/// How the daemon is started.
#[derive(Debug, Clone)]
pub(crate) struct DaemonConfig {
    pub(crate) socket: PathBuf,
    /// Connects to the socket instead of listening on it.
    pub(crate) client: bool,
    /// Words of the command line that ask for the uplink.
    pub(crate) uplink: String,
    pub(crate) queue_pairs: u16,
    /// Further words of the command line, such as `--gro off`.
    pub(crate) options: String,
    /// Who it runs as, if not whoever runs the tests.
    pub(crate) user: Option<User>,
}

impl DaemonConfig {
    /// A daemon with everything at its default that listens on a socket of its own.
    pub(crate) fn new(tap: &str) -> Self {
        Self::on(&format!("--tap {tap}"))
    }

    /// The same on any uplink.
    pub(crate) fn on(uplink: &str) -> Self {
        let id = NEXT_DAEMON.fetch_add(1, Ordering::Relaxed);
        DaemonConfig {
            socket: Path::new(RUN_DIR).join(format!("daemon{id}.sock")),
            client: false,
            uplink: uplink.to_owned(),
            queue_pairs: 1,
            options: String::new(),
            user: None,
        }
    }

    /// Where QEMU finds the daemon.
    pub(crate) fn netdev(&self) -> Netdev {
        let socket = self.socket.clone();
        if self.client {
            Netdev::VhostUserServer(socket)
        } else {
            Netdev::VhostUser(socket)
        }
    }
}

static NEXT_DAEMON: AtomicU32 = AtomicU32::new(0);

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) process: Process,
}

/// The program that was built along with this one.
pub(crate) fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("own path")?;
    let profile = own
        .ancestors()
        .nth(2)
        .context("not in a build's target folder")?;
    Ok(profile.join("vhost-user-gro"))
}

/// The name of the build's profile, such as `release`.
pub(crate) fn profile() -> Result<String> {
    let program = program()?;
    let folder = program
        .parent()
        .and_then(Path::file_name)
        .context("no profile")?;
    Ok(folder.to_string_lossy().into_owned())
}

impl Daemon {
    /// Starts the daemon; one that listens is ready to be connected to.
    pub(crate) fn start(config: &DaemonConfig) -> Result<Self> {
        let id = NEXT_DAEMON.fetch_add(1, Ordering::Relaxed);
        let mut command = match &config.user {
            Some(user) => user.command(user.program()?),
            None => Command::new(program()?),
        };
        command
            .arg("--socket-path")
            .arg(&config.socket)
            .args(config.uplink.split_whitespace());
        if config.client {
            command.arg("--client");
        }
        if config.queue_pairs > 1 {
            command.args(["--queue-pairs", &config.queue_pairs.to_string()]);
        }
        command.args(config.options.split_whitespace());
        let log = Path::new(RUN_DIR).join(format!("daemon{id}.log"));
        let mut process = Process::start("the daemon", &mut command, log)?;
        if !config.client {
            wait_until("the daemon's socket", Duration::from_secs(10), || {
                process.check_alive()?;
                Ok(config.socket.exists())
            })?;
        }
        Ok(Daemon { process })
    }

    /// Processor time used so far.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        Ok(self
            .process
            .threads()?
            .iter()
            .map(|thread| thread.cpu)
            .sum())
    }

    /// Its counters, asked for by SIGUSR1: the next line of JSON in its log.
    pub(crate) fn counters(&self) -> Result<Value> {
        let reports = |log: &str| -> Vec<Value> {
            let json = log
                .lines()
                .filter_map(|line| line.find('{').map(|at| &line[at..]));
            json.filter_map(|text| serde_json::from_str(text).ok())
                .collect()
        };
        let before = reports(&self.process.log()).len();
        self.process.signal(Signal::USR1)?;
        wait_for("the daemon's counters", Duration::from_secs(5), || {
            Ok(reports(&self.process.log()).into_iter().nth(before))
        })
    }

    /// Ends the daemon as the operator does and gives its exit status.
    pub(crate) fn terminate(mut self) -> Result<std::process::ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(Duration::from_secs(5))
    }
}
