//! Waiting for something that another process does, with a limit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The time, for limits and for what is measured: guests run in real time.
#[expect(
    clippy::disallowed_methods,
    reason = "the harness measures other processes in real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Asks `probe` until it has an answer.
///
/// # Errors
///
/// The error of `probe`, or that `what` did not happen within `limit`.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = now();
    loop {
        if let Some(answer) = probe()? {
            return Ok(answer);
        }
        if start.elapsed() > limit {
            bail!("{what} did not happen within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// [`wait_for`] a condition.
pub(crate) fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    wait_for(what, limit, || Ok(condition()?.then_some(())))
}
