//! Towards the guest: uplink -> GRO -> receive list -> guest buffers.
//!
//! One poll reads up to a budget of frames into the engine, completes the NAPI context, flushes
//! what that says, hands the list over and interrupts the guest at most once. When the guest has
//! no buffers the list stays where it is, the uplink is masked so that its own queue takes the
//! pressure, and the guest is asked for a kick (rule FILL-3). The list cannot grow without bound:
//! nothing is read while it is blocked.

use log::warn;

use super::deliver::Delivery;
use super::pair::{Host, Link, PairConfig};
use super::stats::ReceiveStats;
use crate::device::{Features, QueueFault, RxQueue};
use crate::gro::{FlushReason, GroEngine};
use crate::napi::{FlushPlan, Napi, NapiState, Poll};
use crate::time::Instant;
use crate::uplink::{Frame, FramePool, RecvEnd, RecvError, RxFrame};

/// What a turn of one direction means for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Nothing to say.
    Quiet,
    /// The guest wants to be interrupted.
    Notify,
    /// The ring is broken and stays out of service until the guest resets it.
    Broken,
}

impl From<bool> for Served {
    fn from(needs_notification: bool) -> Self {
        if needs_notification {
            Self::Notify
        } else {
            Self::Quiet
        }
    }
}

/// The receive half of a queue pair.
pub(super) struct Receive {
    pool: FramePool,
    engine: GroEngine<Frame>,
    napi: Napi,
    /// Scratch for one batch, so that reading allocates nothing.
    batch: Vec<RxFrame>,
    queue: Option<RxQueue>,
    enabled: bool,
    /// The guest has no buffers; it was asked for a kick.
    blocked: bool,
    /// Largest plain frame behind the Ethernet header and its tags (rule FEAT-7).
    mtu: Option<u16>,
    mtu_limit: Option<usize>,
    delivery: Delivery,
    /// Something was published since the last decision about an interrupt.
    published: bool,
    /// The ring broke and was taken out of service.
    fault: Option<QueueFault>,
    stats: ReceiveStats,
}

impl Receive {
    pub(super) fn new(config: &PairConfig) -> Self {
        let budget = config.napi.budget as usize;
        Self {
            pool: FramePool::new(config.pool_frames),
            engine: GroEngine::new(config.gro),
            napi: Napi::new(config.napi),
            batch: Vec::with_capacity(budget),
            queue: None,
            enabled: false,
            blocked: false,
            mtu: config.mtu,
            mtu_limit: None,
            delivery: Delivery::default(),
            published: false,
            fault: None,
            stats: ReceiveStats::default(),
        }
    }

    /// Whether the ring can be filled.
    fn is_live(&self) -> bool {
        self.enabled && self.queue.is_some()
    }

    /// Whether readiness of the uplink is of interest.
    pub(super) fn wants_frames(&self) -> bool {
        self.is_live() && !self.blocked && !self.napi.is_masked()
    }

    /// Whether [`poll`](Self::poll) has something to do.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.napi.state() == NapiState::Scheduled
            || self.napi.timer().is_some_and(|timer| timer <= now)
    }

    /// When the timer fires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.napi.timer()
    }

    pub(super) fn readable(&mut self) {
        self.napi.schedule();
    }

    /// The guest added buffers.
    pub(super) fn kicked(&mut self) {
        // Most kicks come from a guest that refills while nothing waits; the ring is looked at
        // by the next poll anyway.
        if core::mem::take(&mut self.blocked) {
            self.napi.schedule();
        }
    }

    /// One poll of the NAPI context.
    pub(super) fn poll(&mut self, now: Instant, host: &mut Host) -> Served {
        self.napi.timer_fired(now);
        let Some(poll) = self.napi.begin_poll() else {
            return Served::Quiet;
        };
        self.stats.polls += 1;
        if self.engine.ready_len() > 0 {
            self.hand_over();
        }
        let work = if self.is_live() && !self.blocked && host.link != Link::Gone {
            self.read(&poll, now, host)
        } else {
            0
        };
        let completion = self.napi.complete(poll, work, self.engine.has_held());
        match completion.plan() {
            FlushPlan::All => self.engine.flush_all(FlushReason::PollEnd),
            FlushPlan::Expired(age) => self.engine.flush_older(now, age, FlushReason::Deadline),
            FlushPlan::Old(age) => self.engine.flush_older(now, age, FlushReason::FullBudget),
        }
        self.hand_over();
        self.napi.finish(completion, now, self.engine.earliest());
        self.settle()
    }

    /// Reads up to a budget of frames into the engine; returns how many were read.
    fn read(&mut self, _poll: &Poll, now: Instant, host: &mut Host) -> u32 {
        let budget = self.napi.budget() as usize;
        let mut work = 0;
        while work < budget && !self.blocked {
            let end = host
                .queue
                .recv_batch(&self.pool, budget - work, &mut self.batch);
            if !self.batch.is_empty() {
                host.set_link(Link::Up, &"");
            }
            work += self.batch.len();
            let mut batch = core::mem::take(&mut self.batch);
            for received in batch.drain(..) {
                self.take_frame(now, received);
            }
            self.batch = batch;
            match end {
                Ok(RecvEnd::PoolEmpty) => {
                    // Rule ENG-7: what is held gives its buffers back through the list.
                    self.stats.pool_empty += 1;
                    let flushed = self.engine.flush_oldest(FlushReason::Pool);
                    self.hand_over();
                    if !flushed && self.pool.available() == 0 {
                        break;
                    }
                }
                Ok(RecvEnd::Budget | RecvEnd::Empty) => break,
                Err(RecvError::Down) => {
                    host.set_link(Link::Down, &RecvError::Down);
                    break;
                }
                Err(error @ RecvError::Gone(_)) => {
                    host.set_link(Link::Gone, &error);
                    break;
                }
                // Counted by the uplink; the next readiness tries again.
                Err(RecvError::Failed(_)) => break,
            }
        }
        u32::try_from(work).unwrap_or(u32::MAX)
    }

    fn take_frame(&mut self, now: Instant, received: RxFrame) {
        let RxFrame { frame, meta } = received;
        if let Some(limit) = self.mtu_limit
            && !meta.vnet.is_gso()
            && frame.as_ref().len() > limit + l2_len(frame.as_ref())
        {
            self.stats.above_mtu += 1;
            return;
        }
        self.engine.receive(now, frame, meta);
        if self.engine.should_hand_over() {
            self.hand_over();
        }
    }

    /// Writes the receive list to the ring, as far as the guest has buffers.
    fn hand_over(&mut self) {
        if !self.is_live() || self.blocked || self.engine.ready_len() == 0 {
            return;
        }
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        self.stats.hand_overs += 1;
        match self.fill(&mut queue) {
            Ok(()) => self.queue = Some(queue),
            Err(fault) => {
                self.stats.ring += *queue.stats();
                self.fault = Some(fault);
            }
        }
        self.engine.handed_over();
    }

    /// Fills and publishes until the list is empty or the guest has promised a kick.
    fn fill(&mut self, queue: &mut RxQueue) -> Result<(), QueueFault> {
        loop {
            let is_done = self
                .delivery
                .run(queue, &mut self.engine, &mut self.stats)?;
            self.published |= queue.publish();
            if is_done {
                return Ok(());
            }
            // Buffers added before the guest saw that kicks are on come without one.
            if !queue.ring_mut().enable_notifications()? {
                self.stats.buffer_waits += 1;
                self.blocked = true;
                return Ok(());
            }
            queue.ring_mut().disable_notifications();
        }
    }

    /// Ends a turn: one decision about an interrupt for all that was published in it.
    fn settle(&mut self) -> Served {
        if let Some(fault) = self.fault.take() {
            warn!("receive ring stopped: {fault}");
            self.drop_all();
            return Served::Broken;
        }
        let is_new = core::mem::take(&mut self.published);
        match &mut self.queue {
            Some(queue) if is_new => Served::from(queue.needs_notification()),
            _ => Served::Quiet,
        }
    }

    /// Hands over or drops everything; the ring will not be touched afterwards (rule ENG-8).
    pub(super) fn teardown(&mut self) -> Served {
        self.engine.flush_all(FlushReason::Teardown);
        self.hand_over();
        let served = self.settle();
        self.drop_all();
        served
    }

    fn drop_all(&mut self) {
        while let Some(packet) = self.engine.pop() {
            self.stats.dropped_at_stop += u64::from(packet.segs());
            self.engine.recycle(packet);
        }
        self.engine.handed_over();
        self.delivery.reset();
        self.blocked = false;
        self.napi.reset();
    }

    /// Lets go of the ring; says where it stood.
    pub(super) fn take_position(&mut self) -> Option<u16> {
        self.enabled = false;
        let queue = self.queue.take()?;
        self.stats.ring += *queue.stats();
        Some(queue.position())
    }

    pub(super) fn start(&mut self, queue: Option<RxQueue>, enabled: bool, features: Features) {
        self.engine.set_types(features.gro_types());
        self.mtu_limit = self
            .mtu
            .filter(|_| features.contains(Features::MTU))
            .map(usize::from);
        self.queue = queue;
        self.enabled = enabled;
        if let Some(queue) = &mut self.queue {
            queue.ring_mut().disable_notifications();
        }
        if self.is_live() {
            // Buffers may have been there before the kick could be seen.
            self.napi.schedule();
        }
    }

    /// After an internal error: nothing of the engine or the ring can be trusted.
    pub(super) fn abandon(&mut self) {
        self.queue = None;
        self.enabled = false;
        self.engine.flush_all(FlushReason::Teardown);
        self.drop_all();
    }

    pub(super) fn stats(&self) -> ReceiveStats {
        let mut stats = ReceiveStats {
            gro: *self.engine.stats(),
            ..self.stats
        };
        if let Some(queue) = &self.queue {
            stats.ring += *queue.stats();
        }
        stats
    }
}

/// Length of the Ethernet header with up to two tags.
fn l2_len(frame: &[u8]) -> usize {
    const TPID_OFFSET: usize = 12;
    const ETHERNET: usize = 14;
    const TAG: usize = 4;
    let is_tag = |at: usize| matches!(frame.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8]));
    let outer = usize::from(is_tag(TPID_OFFSET));
    let inner = usize::from(outer == 1 && is_tag(TPID_OFFSET + TAG));
    ETHERNET + TAG * (outer + inner)
}
