//! Log lines for people on a terminal, or for the journal with a priority on each line.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use env_logger::{Builder, Env};
use log::{Level, LevelFilter};

/// Starts the logger. Without `level` the variable `RUST_LOG` decides, and `info` without that.
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
    if builder.try_init().is_err() {
        log::debug!("the logger runs already");
    }
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
