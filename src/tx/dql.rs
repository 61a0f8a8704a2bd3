//! A limit of bytes on their way, learned from how they leave (rules DQL-1 to DQL-5).
//!
//! The limit grows when the queue ran dry although more was there to be sent, and shrinks by what
//! was to spare during a whole hold time. Counters have 32 bits and wrap; they are compared by their
//! difference, which stays below 2^31 because nothing is added beyond the limit but one frame.
//!
//! Source: Linux `lib/dynamic_queue_limits.c`.

use core::time::Duration;

use super::config::TxConfig;
use crate::time::Instant;

/// Largest object. Source: `DQL_MAX_OBJECT`, `include/linux/dynamic_queue_limits.h`.
const OBJECT_MAX: u32 = u32::MAX / 16;

/// Bytes that a queue may have on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dql {
    min: u32,
    max: u32,
    hold: Duration,
    /// Bytes ever given to the queue.
    queued: u32,
    /// Bytes that have ever left it.
    completed: u32,
    limit: u32,
    /// The last frame that was given.
    last: u32,
    /// As of the last completion: bytes beyond the limit, bytes given, the last frame.
    prev_over: u32,
    prev_queued: u32,
    prev_last: u32,
    /// Bytes to spare at every completion since then.
    lowest_slack: u32,
    slack_start: Instant,
}

impl Dql {
    /// An empty queue (rule DQL-4).
    #[must_use]
    pub fn new(config: &TxConfig) -> Self {
        Self {
            min: config.dql_min,
            max: config.dql_max,
            hold: config.dql_hold,
            queued: 0,
            completed: 0,
            limit: config.dql_min,
            last: 0,
            prev_over: 0,
            prev_queued: 0,
            prev_last: 0,
            lowest_slack: u32::MAX,
            slack_start: Instant::ZERO,
        }
    }

    /// Forgets everything: what was on its way is lost (rule DQL-5).
    pub fn reset(&mut self, now: Instant) {
        *self = Self {
            limit: self.min,
            queued: 0,
            completed: 0,
            last: 0,
            prev_over: 0,
            prev_queued: 0,
            prev_last: 0,
            lowest_slack: u32::MAX,
            slack_start: now,
            ..*self
        };
    }

    /// Bytes that may be added; negative while the queue has to stand still (rule DQL-2).
    #[must_use]
    pub fn available(&self) -> i64 {
        let end = self.limit.wrapping_add(self.completed);
        i64::from(signed(end.wrapping_sub(self.queued)))
    }

    /// Bytes on their way.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.queued.wrapping_sub(self.completed)
    }

    /// Bytes that may be on their way, as learned so far.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// A frame of `bytes` was given to the queue (rule DQL-1).
    pub fn enqueue(&mut self, bytes: u32) {
        let bytes = bytes.min(OBJECT_MAX);
        self.last = bytes;
        self.queued = self.queued.wrapping_add(bytes);
    }

    /// `bytes` have left the queue, all of one round together (rule DQL-3). No more can leave than
    /// are on their way; what is above is ignored.
    pub fn complete(&mut self, bytes: u32, now: Instant) {
        let bytes = bytes.min(self.in_flight());
        if bytes == 0 {
            return;
        }
        let done = self.completed.wrapping_add(bytes);
        let mut over = above(self.in_flight(), self.limit);
        let in_flight = self.queued.wrapping_sub(done);
        let prev_in_flight = self.prev_queued.wrapping_sub(self.completed);
        let all_prev = signed(done.wrapping_sub(self.prev_queued)) >= 0;

        let mut limit = self.limit;
        if over > 0 && in_flight == 0 || self.prev_over > 0 && all_prev {
            // Starved: nothing was left although more was held back.
            limit = limit
                .saturating_add(above(done, self.prev_queued))
                .saturating_add(self.prev_over);
            self.start_slack(now);
        } else if in_flight > 0 && prev_in_flight > 0 && !all_prev {
            // Busy the whole interval: what was not needed for that is to spare.
            self.lowest_slack = self.lowest_slack.min(self.slack(bytes));
            if now > self.slack_start + self.hold {
                limit = above(limit, self.lowest_slack);
                self.start_slack(now);
            }
        }
        limit = limit.clamp(self.min, self.max);
        if limit != self.limit {
            self.limit = limit;
            over = 0;
        }
        self.prev_over = over;
        self.prev_last = self.last;
        self.completed = done;
        self.prev_queued = self.queued;
    }

    /// Bytes to spare in an interval in which `bytes` left. A last frame that was beyond the limit
    /// in part has room for the rest of it.
    fn slack(&self, bytes: u32) -> u32 {
        let unused = above(
            self.limit.wrapping_add(self.prev_over),
            bytes.wrapping_mul(2),
        );
        if self.prev_over == 0 {
            return unused;
        }
        unused.max(above(self.prev_last, self.prev_over))
    }

    fn start_slack(&mut self, now: Instant) {
        self.slack_start = now;
        self.lowest_slack = u32::MAX;
    }
}

/// The difference of two counters, which may have wrapped.
const fn signed(difference: u32) -> i32 {
    difference.cast_signed()
}

/// How far `a` is above `b`, 0 if it is not.
const fn above(a: u32, b: u32) -> u32 {
    let difference = a.wrapping_sub(b);
    if signed(difference) > 0 {
        difference
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
