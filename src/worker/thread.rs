//! A data thread: its epoll set, its timer, and what it does about a panic.
//!
//! The thread lives as long as the daemon and owns its uplink queue; guests come and go through
//! [`PairControl::apply`]. One turn of its loop is: wait, read the clock once, hand each event to
//! the queue pair, let the pair do what it has scheduled. It never sleeps while the pair has
//! something to do at once, and never wakes without an event or a deadline.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use log::{error, warn};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use super::handle::{PairControl, PairSetup, Positions};
use super::mailbox::{Inbox, Request, Sending, mailbox};
use super::pair::{PairConfig, QueuePair};
use super::stats::PairStats;
use super::trace::Tracer;
use super::waiter::{Token, Waiter};
use crate::sys::clock;
use crate::time::Instant;
use crate::uplink::UplinkQueue;

/// Called with `false` when the uplink of a pair is gone for good or has lost its other end, and
/// with `true` when that is back.
pub type LinkReport = Arc<dyn Fn(bool) + Send + Sync>;

/// How to run a data thread.
#[derive(Clone)]
pub struct ThreadConfig {
    /// Which queue pair it serves, counted from 0; part of its name.
    pub index: usize,
    /// The CPU it stays on; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// How the pair works.
    pub pair: PairConfig,
    /// Where the state of the link is reported.
    pub link: LinkReport,
}

/// A running data thread. Dropping it ends the thread and waits for that.
#[derive(Debug)]
pub struct DataThread {
    sending: Sending,
    thread: Option<JoinHandle<()>>,
}

impl DataThread {
    /// Starts a thread that serves `queue`.
    ///
    /// # Errors
    /// No thread or descriptor can be had.
    pub fn spawn(config: ThreadConfig, queue: Box<dyn UplinkQueue>) -> io::Result<Self> {
        Self::spawn_traced(config, queue, None)
    }

    /// The same, with everything that passes shown to `tracer`.
    ///
    /// # Errors
    /// As of [`spawn`](Self::spawn).
    pub fn spawn_traced(
        config: ThreadConfig,
        queue: Box<dyn UplinkQueue>,
        tracer: Option<Tracer>,
    ) -> io::Result<Self> {
        let (sending, inbox) = mailbox()?;
        let waiter = Waiter::new()?;
        waiter.add_inbox(inbox.fd())?;
        let thread = Builder::new()
            .name(format!("queue-pair-{}", config.index))
            .spawn(move || serve(&config, (queue, tracer), waiter, &inbox))?;
        Ok(Self {
            sending,
            thread: Some(thread),
        })
    }

    /// The handle for the protocol side.
    #[must_use]
    pub fn control(&self) -> Arc<dyn PairControl> {
        Arc::new(Control {
            sending: self.sending.clone(),
        })
    }

    /// The counters, `None` if the thread has ended.
    #[must_use]
    pub fn stats(&self) -> Option<PairStats> {
        self.sending.ask(Request::Stats)
    }

    /// The same, `None` also if the thread does not answer in `time`.
    #[must_use]
    pub fn stats_within(&self, time: Duration) -> Option<PairStats> {
        self.sending.ask_within(time, Request::Stats)
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
    sending: Sending,
}

impl PairControl for Control {
    fn apply(&self, setup: PairSetup) -> Positions {
        self.sending
            .ask(|reply| Request::Apply(setup, reply))
            .unwrap_or_default()
    }

    fn announce(&self, frame: Vec<u8>) {
        self.sending.post(Request::Announce(frame));
    }
}

/// Runs until it is told to exit, whatever happens on the way.
fn serve(
    config: &ThreadConfig,
    (queue, tracer): (Box<dyn UplinkQueue>, Option<Tracer>),
    waiter: Waiter,
    inbox: &Inbox,
) {
    place(config);
    let mut pair = QueuePair::with_waiter(&config.pair, queue, Arc::clone(&config.link), waiter);
    if let Some(tracer) = tracer {
        pair.set_tracer(tracer);
    }
    while catch_unwind(AssertUnwindSafe(|| run(&mut pair, inbox))).is_err() {
        // A defect of ours. The guest loses this pair until its next start; nobody else notices.
        error!(
            "queue pair {}: internal error, its rings stop until the guest resets",
            config.index
        );
        pair.abandon();
    }
}

fn place(config: &ThreadConfig) {
    // Deadlines are microseconds; the default slack alone is fifty of them.
    if let Err(error) = set_current_timer_slack(core::num::NonZeroU64::new(1)) {
        warn!("queue pair {}: timers stay coarse: {error}", config.index);
    }
    if let Some(cpu) = config.cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        if let Err(error) = sched_setaffinity(None, &set) {
            warn!(
                "queue pair {}: cannot run on CPU {cpu} alone: {error}",
                config.index
            );
        }
    }
}

/// Serves the pair until an exit is asked for.
fn run(pair: &mut QueuePair, inbox: &Inbox) {
    loop {
        let events = match pair.wait(clock::now()) {
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
                pair.take_event(event);
            } else if answer(pair, inbox, now).is_break() {
                return;
            }
        }
        pair.work(now, clock::now);
    }
}

/// Does what the protocol side asks for; breaks off at the end of the thread.
fn answer(pair: &mut QueuePair, inbox: &Inbox, now: Instant) -> ControlFlow<()> {
    inbox.clear();
    while let Some(request) = inbox.take() {
        match request {
            Request::Apply(setup, reply) => {
                // The asker may be gone; the set-up counts all the same.
                let _ = reply.send(pair.apply(now, setup));
            }
            Request::Announce(frame) => pair.announce(now, &frame),
            Request::Stats(reply) => {
                let _ = reply.send(pair.stats());
            }
            Request::Exit => {
                pair.apply(now, PairSetup::default());
                return ControlFlow::Break(());
            }
        }
    }
    ControlFlow::Continue(())
}
