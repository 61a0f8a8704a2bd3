//! A data thread: its place, its loop, and what it does about a panic.
//!
//! The thread lives as long as the daemon and owns the uplink queues of its pairs; guests come and
//! go through [`PairControl::apply`]. One turn of its loop is: wait, read the clock once, hand each
//! event to its queue pair, let the pairs do what they have scheduled. It never sleeps while a pair
//! has something to do at once, and never wakes without an event or a deadline.
//!
//! All that a pair needs is allocated here, by the thread that is to use it and after it was put in
//! its place: the first to touch a page decides on which NUMA node it lies.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use log::{error, warn};
use rustix::thread::set_current_timer_slack;

use super::handle::{PairControl, PairSetup, Positions};
use super::mailbox::{Inbox, Request, Sending, mailbox};
use super::pair::PairConfig;
use super::pair_set::{PairSet, Seat};
use super::stats::PairStats;
use super::waiter::{Token, Waiter};
use crate::sys::{EpollSet, Placement, PlacementError, clock};
use crate::time::Instant;

/// Called with `false` when the uplink of a pair is gone for good or has lost its other end, and
/// with `true` when that is back.
pub type LinkReport = Arc<dyn Fn(bool) + Send + Sync>;

/// How to run a data thread.
#[derive(Clone)]
pub struct ThreadConfig {
    /// Which one it is, counted from 0; part of its name.
    pub index: usize,
    /// Where it runs, and how urgently.
    pub placement: Placement,
    /// How its pairs work.
    pub pair: PairConfig,
}

/// Why a data thread cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum SpawnError {
    /// It cannot be where it should.
    #[error("worker {index} cannot be placed")]
    Placement {
        index: usize,
        source: PlacementError,
    },
    /// No thread or descriptor can be had.
    #[error("worker {index} cannot be started")]
    Resources { index: usize, source: io::Error },
}

/// A running data thread. Dropping it ends the thread and waits for that.
#[derive(Debug)]
pub struct DataThread {
    sending: Sending,
    thread: Option<JoinHandle<()>>,
}

impl DataThread {
    /// Starts a thread that serves a queue pair for each of `seats`; when this returns it is in its
    /// place.
    ///
    /// # Errors
    /// See [`SpawnError`].
    pub fn spawn(config: ThreadConfig, seats: Vec<Seat>) -> Result<Self, SpawnError> {
        let index = config.index;
        let resources = |source| SpawnError::Resources { index, source };
        let (sending, inbox) = mailbox().map_err(resources)?;
        let set = Arc::new(EpollSet::new().map_err(resources)?);
        Waiter::of_pair(Arc::clone(&set), 0)
            .add_inbox(inbox.fd())
            .map_err(resources)?;
        let (placed, is_placed) = sync_channel(1);
        let serve = move || {
            let result = config.placement.take();
            let is_right = result.is_ok();
            // Whoever starts a thread waits for this.
            let _ = placed.send(result);
            if is_right {
                serve(&config, seats, set, &inbox);
            }
        };
        let thread = Builder::new()
            .name(format!("worker-{index}"))
            .spawn(serve)
            .map_err(resources)?;
        let data_thread = Self {
            sending,
            thread: Some(thread),
        };
        match is_placed.recv() {
            Ok(Err(source)) => Err(SpawnError::Placement { index, source }),
            _ => Ok(data_thread),
        }
    }

    /// The handle of the `nth` pair for the protocol side.
    #[must_use]
    pub fn control(&self, nth: usize) -> Arc<dyn PairControl> {
        Arc::new(Control {
            nth,
            sending: self.sending.clone(),
        })
    }

    /// The counters of the `nth` pair, `None` if the thread has ended.
    #[must_use]
    pub fn stats(&self, nth: usize) -> Option<PairStats> {
        self.sending.ask(|reply| Request::Stats(nth, reply))
    }

    /// The same, `None` also if the thread does not answer in `time`.
    #[must_use]
    pub fn stats_within(&self, nth: usize, time: Duration) -> Option<PairStats> {
        self.sending
            .ask_within(time, |reply| Request::Stats(nth, reply))
    }
}

impl Drop for DataThread {
    fn drop(&mut self) {
        self.sending.post(Request::Exit);
        if let Some(thread) = self.thread.take() {
            // A panic was caught and logged in the thread itself.
            let _ = thread.join();
        }
    }
}

struct Control {
    nth: usize,
    sending: Sending,
}

impl PairControl for Control {
    fn apply(&self, setup: PairSetup) -> Positions {
        self.sending
            .ask(|reply| Request::Apply(self.nth, setup, reply))
            .unwrap_or_default()
    }

    fn announce(&self, frame: Vec<u8>) {
        self.sending.post(Request::Announce(self.nth, frame));
    }
}

/// Runs until it is told to exit, whatever happens on the way.
fn serve(config: &ThreadConfig, seats: Vec<Seat>, set: Arc<EpollSet>, inbox: &Inbox) {
    // Deadlines are microseconds; the default slack alone is fifty of them.
    if let Err(error) = set_current_timer_slack(core::num::NonZeroU64::new(1)) {
        warn!("worker {}: timers stay coarse: {error}", config.index);
    }
    let indices: Vec<usize> = seats.iter().map(|seat| seat.index).collect();
    let mut pairs = PairSet::in_set(&config.pair, seats, set);
    while catch_unwind(AssertUnwindSafe(|| run(&mut pairs, inbox))).is_err() {
        // A defect of ours. The guest loses one pair until its next start; nobody else notices.
        if let Some(index) = indices.get(pairs.abandon()) {
            error!("queue pair {index}: internal error, its rings stop until the guest resets");
        }
    }
}

/// Serves the pairs until an exit is asked for.
fn run(pairs: &mut PairSet, inbox: &Inbox) {
    // Requests behind one that failed have no wake-up of their own.
    if answer(pairs, inbox, clock::now()).is_break() {
        return;
    }
    loop {
        let events = match pairs.wait(clock::now()) {
            Ok(events) => events,
            Err(error) => {
                // Only a lack of kernel memory ends up here; nothing is lost by asking again.
                warn!("waiting failed: {error}");
                continue;
            }
        };
        let now = clock::now();
        for event in events.iter() {
            if Token::from(event.token) != Token::Inbox {
                pairs.take_event(event);
            } else if answer(pairs, inbox, now).is_break() {
                return;
            }
        }
        pairs.work(now, clock::now);
    }
}

/// Does what the protocol side asks for; breaks off at the end of the thread.
fn answer(pairs: &mut PairSet, inbox: &Inbox, now: Instant) -> ControlFlow<()> {
    inbox.clear();
    while let Some(request) = inbox.take() {
        match request {
            Request::Apply(nth, setup, reply) => {
                // The asker may be gone; the set-up counts all the same.
                let _ = reply.send(pairs.apply(nth, now, setup));
            }
            Request::Announce(nth, frame) => pairs.announce(nth, now, &frame),
            Request::Stats(nth, reply) => {
                let _ = reply.send(pairs.stats(nth));
            }
            Request::Exit => {
                pairs.apply_nothing(now);
                return ControlFlow::Break(());
            }
        }
    }
    ControlFlow::Continue(())
}
