//! Log lines for people on a terminal, or for the journal with a priority on each line.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use env_logger::{Builder, Env, Target, WriteStyle};
use log::{Level, LevelFilter};

use super::outlet::Outlet;

/// What a reader of standard error that has fallen behind is given at the end.
const LAST_LINES: Duration = Duration::from_millis(200);

/// The way to standard error once the logger runs.
static OUTLET: OnceLock<Outlet> = OnceLock::new();

/// Starts the logger. From then on nobody who logs, prints or panics waits for whoever reads
/// standard error. Without `level` the variable `RUST_LOG` decides, and `info` without that.
pub fn init(level: Option<LevelFilter>) {
    let mut builder = match level {
        Some(level) => {
            let mut builder = Builder::new();
            builder.filter_level(level);
            builder
        }
        None => Builder::from_env(Env::default().default_filter_or("info")),
    };
    if is_journal() {
        builder.format(|out, record| {
            let prefix = priority_prefix(record.level());
            // Each line is an entry of its own there.
            for line in record.args().to_string().lines() {
                writeln!(out, "{prefix}{line}")?;
            }
            Ok(())
        });
    }
    match Outlet::start(io::stderr()) {
        Ok(outlet) => {
            let outlet = OUTLET.get_or_init(|| outlet);
            if is_colourful() {
                builder.write_style(WriteStyle::Always);
            }
            builder.target(Target::Pipe(Box::new(outlet.clone())));
            std::panic::set_hook(Box::new(|info| {
                print(&format!("{}{info}\n", priority_prefix(Level::Error)));
            }));
        }
        Err(error) => print(&format!("lines are logged without a thread: {error}\n")),
    }
    if builder.try_init().is_err() {
        log::debug!("the logger runs already");
    }
}

/// Prints whole lines on standard error, behind all that was logged before.
pub(super) fn print(lines: &str) {
    match OUTLET.get() {
        Some(outlet) => outlet.send(lines.as_bytes()),
        // Nobody is left to tell if this cannot be printed.
        None => drop(io::stderr().write_all(lines.as_bytes())),
    }
}

/// Gives the last lines a moment to get out. To be called before the process ends.
pub(super) fn drain() {
    if let Some(outlet) = OUTLET.get() {
        outlet.drain(LAST_LINES);
    }
}

/// Whether to colour lines, which the logger cannot know of what it writes to. `RUST_LOG_STYLE`
/// was asked already when it is there. Source: no-color.org.
fn is_colourful() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !is_set("NO_COLOR") && !is_set("RUST_LOG_STYLE")
}

/// What the journal reads a line's priority from; empty when standard error goes elsewhere.
///
/// Source: sd-daemon(3).
#[must_use]
pub fn priority_prefix(level: Level) -> &'static str {
    if !is_journal() {
        return "";
    }
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Whether standard error is the stream that `JOURNAL_STREAM` names. Source: systemd.exec(5).
fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
            return false;
        };
        let stat = rustix::fs::fstat(std::io::stderr().as_fd());
        stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
    })
}
