//! The program around the data path: what it is told, what it says, when it ends.
//!
//! [`main`] is the whole order of events: signals are caught, flags and file become one typed
//! [`Config`], the logger starts, and [`run`] works until it is told to stop. The subcommand `replay` takes none of these
//! steps. Exit codes: 0 after a normal end, 1 when something failed at run time, 2 when the command
//! line or the configuration is wrong.

mod config;
mod ending;
mod file;
pub mod logging;
mod metrics;
mod options;
mod outlet;
mod policies;
mod replay;
mod run;
mod sending;
mod signals;
mod tunables;
mod uplinks;
mod workers;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

pub use config::{Config, ConfigError, Endpoint};
pub use options::{Options, QueueNum, Task};
pub use policies::PolicyList;
pub use replay::{GuestType, ReplayOptions};
pub use run::{RunError, run};
pub use signals::{Signal, Signals};
pub use tunables::Tunables;

pub use crate::values::CpuList;
use replay::ReplayError;

/// Status for a wrong command line or configuration.
const EXIT_USAGE: u8 = 2;

/// What a management layer is told before it starts us; a network device has no features to name.
///
/// Source: QEMU `docs/interop/vhost-user.json`, `VHostUserBackendCapabilities`.
const CAPABILITIES: &str = r#"{"type":"net"}"#;

/// Runs the program with the arguments `args`, the program's name first.
#[must_use]
pub fn main(args: Vec<OsString>) -> ExitCode {
    // By convention this question is answered whatever else is on the command line.
    if args.iter().skip(1).any(|arg| arg == "--print-capabilities") {
        let printed = writeln!(io::stdout(), "{CAPABILITIES}");
        return printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    // Nothing can stand before a subcommand.
    if (args.get(1)).is_some_and(|arg| arg == "replay" || arg == "uplinks")
        && let Ok(options) = Options::try_parse_from(&args)
        && let Some(task) = options.task
    {
        return perform(&task);
    }
    // Before all that takes time: a signal that comes meanwhile is a normal end, too.
    let signals = match Signals::catch() {
        Ok(signals) => signals,
        Err(err) => return fail(&RunError::from(err), ExitCode::FAILURE),
    };
    let config = match Config::load(args) {
        Ok(config) => config,
        Err(ConfigError::Usage(usage)) => {
            let status = u8::try_from(usage.exit_code()).unwrap_or(EXIT_USAGE);
            // Nobody is left to tell if even this cannot be printed.
            let _ = usage.print();
            return ExitCode::from(status);
        }
        Err(err) => return fail(&err, ExitCode::from(EXIT_USAGE)),
    };
    logging::init(config.log_level);
    let status = match run(config, signals) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => fail(&err, ExitCode::FAILURE),
    };
    logging::drain();
    status
}

/// Does what a subcommand asks for.
fn perform(task: &Task) -> ExitCode {
    match task {
        Task::Replay(options) => match replay::replay(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(err @ ReplayError::Config(_)) => fail(&err, ExitCode::from(EXIT_USAGE)),
            Err(err) => fail(&err, ExitCode::FAILURE),
        },
        Task::Uplinks => match uplinks::list(io::stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(err) => fail(&err, ExitCode::FAILURE),
        },
    }
}

/// Says on standard error what failed and why, one cause a line.
fn fail(err: &dyn Error, status: ExitCode) -> ExitCode {
    let prefix = logging::priority_prefix(log::Level::Error);
    let mut text = format!("{prefix}vhost-user-gro: {err}\n");
    let mut cause = err.source();
    while let Some(err) = cause {
        text.push_str(&format!("{prefix}  caused by: {err}\n"));
        cause = err.source();
    }
    logging::print(&text);
    status
}
