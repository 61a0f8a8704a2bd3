//! How long to wait before the next connection.

use std::time::Duration;

/// The first pause, which is also the least time between two connections that bring nothing.
const FIRST: Duration = Duration::from_millis(100);
/// The longest one.
const LAST: Duration = Duration::from_secs(2);

/// Pauses that double until a connection has proved good.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The pause before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LAST);
        pause
    }

    /// The connection was of use.
    pub(super) const fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..7).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        backoff.reset();
        assert_eq!(backoff.pause(), FIRST);
    }
}
