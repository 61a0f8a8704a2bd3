//! Time as data: an instant in nanoseconds that somebody else read.
//!
//! Nothing in the pure modules can ask what time it is; `sys::clock` reads the clock once per
//! wake-up and passes the result down. Tests invent it.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point on a monotonic clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);

    /// Makes an instant from nanoseconds since the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time that passed since `earlier`; zero if `earlier` lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the end of the clock, 584 years after its origin.
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_never_underflows() {
        let early = Instant::from_nanos(5);
        let late = early + Duration::from_micros(2);
        assert_eq!(late - early, Duration::from_nanos(2000));
        assert_eq!(early - late, Duration::ZERO);
    }

    #[test]
    fn addition_saturates() {
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(end + Duration::MAX, end);
    }
}
