//! The end of the process in bounded time.
//!
//! A data thread can hang in a system call on something that the front-end holds the other end of,
//! and everybody who waits for the thread hangs with it. Then an end in good order never comes, and
//! the kernel takes back all that the process has.

use std::io;
use std::thread::{Builder, sleep};
use std::time::Duration;

use log::warn;

use super::logging;

/// Exits with success when `time` is over and the process still runs.
///
/// # Errors
/// No thread can be had.
pub(super) fn end_within(time: Duration) -> io::Result<()> {
    Builder::new().name("end".into()).spawn(move || {
        sleep(time);
        warn!("a thread hangs: end without it");
        logging::drain();
        std::process::exit(0)
    })?;
    Ok(())
}
