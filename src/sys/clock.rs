//! The one place that reads the clock.

use rustix::time::{ClockId, clock_gettime};

use crate::time::Instant;

/// Reads `CLOCK_MONOTONIC`. Once per wake-up is enough; the result is passed down.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock starts at boot: neither field is ever negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_backwards() {
        let first = now();
        assert!(first > Instant::ZERO);
        assert!(now() >= first);
    }
}
