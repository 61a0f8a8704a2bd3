//! The queue pairs of one data thread: what they wait for together, and their turns.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::handle::{PairSetup, Positions};
use super::pair::{PairConfig, QueuePair};
use super::run_queue::RunQueue;
use super::stats::PairStats;
use super::thread::LinkReport;
use super::trace::Tracer;
use super::waiter::{Waiter, pair_of};
use crate::sys::{Batch, EpollSet, Ready};
use crate::time::Instant;
use crate::uplink::UplinkQueue;

/// One queue pair to be served.
pub struct Seat {
    /// Which queue pair of the device it is, counted from 0; for what is logged.
    pub index: usize,
    /// Its queue of the uplink.
    pub queue: Box<dyn UplinkQueue>,
    /// Where the state of its link is reported.
    pub link: LinkReport,
    /// Where everything that passes is shown, if anywhere.
    pub tracer: Option<Tracer>,
}

/// Queue pairs that share a thread, and one epoll set.
pub struct PairSet {
    set: Arc<EpollSet>,
    pairs: Vec<QueuePair>,
    queue: RunQueue,
}

impl PairSet {
    /// Makes an idle pair for each seat.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(config: &PairConfig, seats: Vec<Seat>) -> io::Result<Self> {
        Ok(Self::in_set(config, seats, Arc::new(EpollSet::new()?)))
    }

    /// The same with a set that may have more in it.
    pub(super) fn in_set(config: &PairConfig, seats: Vec<Seat>, set: Arc<EpollSet>) -> Self {
        let make = |(nth, seat): (usize, Seat)| {
            let waiter = Waiter::of_pair(Arc::clone(&set), nth);
            let mut pair = QueuePair::with_waiter(config, seat.queue, seat.link, waiter);
            if let Some(tracer) = seat.tracer {
                pair.set_tracer(tracer);
            }
            pair
        };
        let pairs = seats.into_iter().enumerate().map(make).collect();
        Self {
            set,
            pairs,
            queue: RunQueue::default(),
        }
    }

    /// One turn at `now`, as [`QueuePair::turn`] for all pairs together: one round of polls, one
    /// drain of each transmit ring.
    ///
    /// # Errors
    /// The kernel is short of memory.
    pub fn turn(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        self.watch();
        for event in self.set.wait(Some(Duration::ZERO))?.iter() {
            self.take_event(event);
        }
        self.work(now, || now);
        Ok(self.next_due(now))
    }

    /// Waits for the next event or deadline.
    pub(super) fn wait(&mut self, now: Instant) -> io::Result<Batch> {
        self.watch();
        self.set.wait(self.next_due(now).map(|due| due - now))
    }

    fn watch(&mut self) {
        for (nth, pair) in self.pairs.iter_mut().enumerate() {
            self.queue.at_work = nth;
            pair.watch();
        }
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        self.pairs
            .iter()
            .filter_map(|pair| pair.next_due(now))
            .min()
    }

    /// Hands an event to the pair that it belongs to.
    pub(super) fn take_event(&mut self, event: Ready) {
        if let Some(pair) = self.pairs.get_mut(pair_of(event.token)) {
            self.queue.at_work = pair_of(event.token);
            pair.take_event(event);
        }
    }

    /// Does what events and deadlines have scheduled.
    pub(super) fn work(&mut self, now: Instant, clock: impl Fn() -> Instant) {
        self.queue.serve(&mut self.pairs, now, clock);
    }

    /// Replaces the set-up of the `nth` pair. See [`super::PairControl::apply`].
    pub fn apply(&mut self, nth: usize, now: Instant, setup: PairSetup) -> Positions {
        self.queue.at_work = nth;
        match self.pairs.get_mut(nth) {
            Some(pair) => pair.apply(now, setup),
            None => Positions::default(),
        }
    }

    /// Lets go of all that any pair has.
    pub(super) fn apply_nothing(&mut self, now: Instant) {
        for nth in 0..self.pairs.len() {
            self.apply(nth, now, PairSetup::default());
        }
    }

    /// Sends a frame of our own out of the queue of the `nth` pair.
    pub(super) fn announce(&mut self, nth: usize, now: Instant, frame: &[u8]) {
        self.queue.at_work = nth;
        if let Some(pair) = self.pairs.get_mut(nth) {
            pair.announce(now, frame);
        }
    }

    /// Stops the rings of the pair that was at work when an internal error came up, says which one
    /// it is. The others go on; events that they did not get are made up for.
    pub(super) fn abandon(&mut self) -> usize {
        let culprit = self.queue.at_work;
        for (nth, pair) in self.pairs.iter_mut().enumerate() {
            if nth == culprit {
                pair.abandon();
            } else {
                pair.look_again();
            }
        }
        culprit
    }

    /// The counters of the `nth` pair.
    #[must_use]
    pub fn stats(&self, nth: usize) -> PairStats {
        self.pairs
            .get(nth)
            .map(QueuePair::stats)
            .unwrap_or_default()
    }
}
