//! The one place that reads the clock.

use std::time::Duration;

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

/// What [`now`] has to be advanced by to count from the Unix epoch. Nobody follows the clock of the
/// day when it is set, so captures stay in order.
#[must_use]
pub fn epoch() -> Duration {
    let time = clock_gettime(ClockId::Realtime);
    // A day before 1970 is of no use to anybody.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos).saturating_sub(now().since(Instant::ZERO))
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
