//! When to poll, what to flush, and when to listen to the source again. Pure: the caller owns
//! the descriptors, the timer and the clock, and does what the returned values say.
//!
//! # Theory of operation
//! There is one [`Napi`] per queue pair. The readiness of the uplink plays the part of the
//! interrupt; *masked* means taken out of the epoll set. A turn goes
//!
//! ```text
//! readiness or guest kick -> schedule          timer -> timer_fired
//!                                 \            /
//!                                  begin_poll            -> Poll
//!                read up to budget() frames into the engine
//!                                  complete(Poll, ..)    -> Completion
//!                flush what its plan says, hand the receive list over
//!                                  finish(Completion, ..) -> NapiAction
//! ```
//!
//! Flushing comes before the hand-over (rule ORD-4) because the plan is known before it, and
//! nothing can touch the receive list after `finish`: [`Poll`] and [`Completion`] are the
//! permission to use engine and list, and `finish` consumes the last of them (rule BATCH-5). A
//! function that reads frames, flushes or hands over takes one of them by reference.
//!
//! # What it promises
//! While something is held, the context is owned or its timer is armed (invariant INV-6), and the
//! timer stands at the deadline of the oldest entry, so nothing is held longer than
//! `gro_flush_timeout` and one poll (rule NAPI-5). A source that is always ready has its entries
//! flushed at an age of [`OLD`].
//!
//! # What it does not do
//! It does not know why the worker reads nothing in a poll (an empty source, or a guest without
//! buffers), and it keeps no account of a worker's time: [`Round`] does.
//!
//! Source: `napi_complete_done`, `__napi_poll`, `napi_watchdog` in `net/core/dev.c`.

mod config;
mod round;

use core::time::Duration;

use crate::time::Instant;

pub use config::NapiConfig;
pub use round::Round;

/// Age at which entries are flushed although the source always has more (rule NAPI-3).
///
/// Source: one tick at 1000 Hz; `gro_flush` with `flush_old` in `__napi_poll`.
pub const OLD: Duration = Duration::from_millis(1);

/// Where a receive context stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NapiState {
    /// Nobody owns the context and the source is unmasked. The timer may be armed, and is if
    /// something is held. Readiness and the timer both lead to `Scheduled`.
    Idle,
    /// Owned, source masked, waiting for its turn. Only `begin_poll` goes on; further events set
    /// *missed*.
    Scheduled,
    /// Owned, source masked. Frames may be read and given to the engine, the receive list may be
    /// handed over. Ends with `complete`.
    Polling,
    /// Owned, source masked. The flush plan is known: entries are flushed and the receive list is
    /// handed over, no frame is read. Ends with `finish`.
    Completing,
    /// Nobody owns the context, the source is masked and the timer is armed: the next frames are
    /// expected before it fires. A guest kick or the timer leads to `Scheduled`.
    Deferred,
}

/// What must be flushed before the receive list is handed over, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPlan {
    /// Everything: the poll ends and nothing would come back for what is held (NAPI-4 step 4).
    All,
    /// Entries of at least this age, `gro_flush_timeout`, because it is over for them; a timer
    /// comes back for the younger ones (NAPI-4 step 4).
    Expired(Duration),
    /// Entries of at least this age, [`OLD`], because the source has no pause (NAPI-3).
    Old(Duration),
}

/// What the worker does with the context after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NapiAction {
    /// Leave the source masked and poll again, behind every other context that waits.
    Repoll,
    /// Wait for an event.
    Wait {
        /// Unmask the source, and look once more for frames that came in between. (With level
        /// triggered readiness the epoll set looks by itself.) If false it stays masked.
        unmask: bool,
        /// Arm the timer at this instant in place of any earlier setting; `None` disarms it.
        timer: Option<Instant>,
    },
}

/// Permission to read frames into the engine and to hand over the list, until [`Napi::complete`].
#[derive(Debug)]
#[must_use = "a poll that is not completed owns its context for ever"]
pub struct Poll(());

/// Permission to flush and to hand over the list, until [`Napi::finish`].
#[derive(Debug)]
#[must_use = "a completion that is not finished owns its context for ever"]
pub struct Completion {
    plan: FlushPlan,
    end: End,
}

impl Completion {
    /// What must be flushed now.
    #[must_use]
    pub const fn plan(&self) -> FlushPlan {
        self.plan
    }
}

/// Which of the two ways a poll ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// NAPI-3: the context stays owned.
    FullBudget,
    /// NAPI-4: the context is released, with the timeout and the mask of steps 1 to 3.
    Released { timeout: Duration, unmask: bool },
}

/// The poll state machine of one receive context.
#[derive(Debug)]
pub struct Napi {
    config: NapiConfig,
    state: NapiState,
    missed: bool,
    defer_left: u32,
    timer: Option<Instant>,
}

impl Napi {
    /// Makes an idle context; values of `config` outside their ranges are clamped.
    #[must_use]
    pub fn new(config: NapiConfig) -> Self {
        Self {
            config: config.clamped(),
            state: NapiState::Idle,
            missed: false,
            defer_left: 0,
            timer: None,
        }
    }

    /// Most frames that the next poll may read.
    #[must_use]
    pub const fn budget(&self) -> u32 {
        self.config.budget
    }

    /// The tunables in force.
    #[must_use]
    pub const fn config(&self) -> &NapiConfig {
        &self.config
    }

    /// Where the context stands.
    #[must_use]
    pub const fn state(&self) -> NapiState {
        self.state
    }

    /// Whether the source is to be kept out of the epoll set.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.state != NapiState::Idle
    }

    /// When the timer fires, if it is armed.
    #[must_use]
    pub const fn timer(&self) -> Option<Instant> {
        self.timer
    }

    /// Takes note of an event: the source is ready, or the guest gave buffers (rule NAPI-1).
    ///
    /// Returns whether the context became owned: then the caller masks the source and gives the
    /// context its turn. An owned context remembers the event and is polled once more.
    pub fn schedule(&mut self) -> bool {
        if self.is_owned() {
            self.missed = true;
            return false;
        }
        self.state = NapiState::Scheduled;
        true
    }

    /// Takes note that the timer may have fired (rule NAPI-5); a call before its time does
    /// nothing.
    ///
    /// Returns whether the context became owned, as for [`schedule`](Self::schedule). An owned
    /// context ignores the timer: its poll sees what is due and sets the timer anew.
    pub fn timer_fired(&mut self, now: Instant) -> bool {
        if self.timer.is_none_or(|due| now < due) {
            return false;
        }
        self.timer = None;
        if self.is_owned() {
            return false;
        }
        self.state = NapiState::Scheduled;
        true
    }

    /// Starts the poll of a scheduled context; `None` if the context is not scheduled.
    pub fn begin_poll(&mut self) -> Option<Poll> {
        if self.state != NapiState::Scheduled {
            return None;
        }
        self.state = NapiState::Polling;
        Some(Poll(()))
    }

    /// Ends the reading part of a poll and says what must be flushed: NAPI-3 when the budget was
    /// used up, else steps 1 to 4 of NAPI-4.
    ///
    /// `work` is the number of frames read; `has_held` says whether the engine holds anything
    /// before that flush.
    pub fn complete(&mut self, poll: Poll, work: u32, has_held: bool) -> Completion {
        let Poll(()) = poll;
        self.state = NapiState::Completing;
        if work >= self.config.budget {
            return Completion {
                plan: FlushPlan::Old(OLD),
                end: End::FullBudget,
            };
        }
        let flush_timeout = self.config.gro_flush_timeout;
        let mut timeout = Duration::ZERO;
        let mut unmask = true;
        if work > 0 {
            if has_held {
                timeout = flush_timeout;
            }
            self.defer_left = self.config.napi_defer_hard_irqs;
        }
        if self.defer_left > 0 {
            self.defer_left -= 1;
            timeout = flush_timeout;
            // Masked without a timer, nothing would ever come back.
            unmask = timeout.is_zero();
        }
        Completion {
            plan: if timeout.is_zero() {
                FlushPlan::All
            } else {
                FlushPlan::Expired(timeout)
            },
            end: End::Released { timeout, unmask },
        }
    }

    /// Ends the poll after the flush and the hand-over: steps 5 to 7 of NAPI-4.
    ///
    /// `oldest_held` is the arrival time of the first frame of the oldest entry that is still
    /// held.
    pub fn finish(
        &mut self,
        completion: Completion,
        now: Instant,
        oldest_held: Option<Instant>,
    ) -> NapiAction {
        let End::Released { timeout, unmask } = completion.end else {
            self.state = NapiState::Scheduled;
            return NapiAction::Repoll;
        };
        if core::mem::take(&mut self.missed) {
            self.state = NapiState::Scheduled;
            return NapiAction::Repoll;
        }
        self.timer = (!timeout.is_zero()).then(|| oldest_held.unwrap_or(now) + timeout);
        self.state = if unmask {
            NapiState::Idle
        } else {
            NapiState::Deferred
        };
        NapiAction::Wait {
            unmask,
            timer: self.timer,
        }
    }

    /// Forgets everything but the tunables. For a receive ring that was stopped, after the engine
    /// was flushed (rule ENG-8); the timer is to be disarmed.
    pub fn reset(&mut self) {
        *self = Self::new(self.config);
    }

    fn is_owned(&self) -> bool {
        match self.state {
            NapiState::Idle | NapiState::Deferred => false,
            NapiState::Scheduled | NapiState::Polling | NapiState::Completing => true,
        }
    }
}

#[cfg(test)]
mod tests;
