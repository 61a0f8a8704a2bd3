//! How long a worker keeps polling before it looks at other events.

use crate::napi::NapiConfig;
use crate::time::Instant;

/// One stretch of polls, over all contexts of a worker (rule NAPI-3).
///
/// Source: `net_rx_action`, `net/core/dev.c`.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    frames_left: u32,
    end: Instant,
}

impl Round {
    /// Starts a round.
    #[must_use]
    pub fn new(config: &NapiConfig, now: Instant) -> Self {
        Self {
            frames_left: config.round_budget,
            end: now + config.round_usecs,
        }
    }

    /// Takes note of a poll that read `work` frames; says whether the round is over, so that the
    /// worker looks at its other events before the next poll.
    #[must_use]
    pub fn is_over_after(&mut self, now: Instant, work: u32) -> bool {
        self.frames_left = self.frames_left.saturating_sub(work);
        self.frames_left == 0 || now >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_after_its_frames() {
        let now = Instant::ZERO;
        let mut round = Round::new(&NapiConfig::default(), now);
        for _ in 0..4 {
            assert!(!round.is_over_after(now, 64));
        }
        assert!(round.is_over_after(now, 64), "320 frames are past 300");
    }

    #[test]
    fn ends_after_its_time() {
        let config = NapiConfig::default();
        let mut round = Round::new(&config, Instant::ZERO);
        let end = Instant::ZERO + config.round_usecs;
        assert!(!round.is_over_after(Instant::from_nanos(end.as_nanos() - 1), 1));
        assert!(round.is_over_after(end, 1));
    }
}
