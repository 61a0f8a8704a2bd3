//! Towards the guest: uplink -> GRO -> receive list -> guest buffers.
//!
//! One poll reads up to a budget of frames into the engine, completes the NAPI context, flushes
//! what that says, hands the list over and interrupts the guest at most once. When the guest has
//! no buffers the list stays where it is, the uplink is masked so that its own queue takes the
//! pressure, and the guest is asked for a kick (rule FILL-3). The list cannot grow without bound:
//! nothing is read while it is blocked.

use core::time::Duration;
use std::rc::Rc;

use super::complaint::Complaints;
use super::deliver::Delivery;
use super::host::{Host, Link, RETRY};
use super::mtu::MtuLimit;
use super::pair::PairConfig;
use super::signal::Served;
use super::stats::ReceiveStats;
use super::trace::Tracer;
use crate::device::{Features, QueueFault, RxQueue};
use crate::gro::{FlushReason, GroEngine};
use crate::napi::{FlushPlan, Napi, NapiConfig, NapiState, Poll};
use crate::time::Instant;
use crate::uplink::{Frame, FramePool, RecvEnd, RecvError, RxFrame};

/// How long a packet waits for its buffers while the guest has some, but too few. A guest that
/// works fills its ring faster; for one that never fills it the packet is cut into its segments.
const PATIENCE: Duration = Duration::from_millis(10);

/// How often a hand-over looks for buffers that came while it asked for a kick.
const FILLS: usize = 16;

/// The receive half of a queue pair.
pub(super) struct Receive {
    pool: FramePool,
    engine: GroEngine<Frame>,
    napi: Napi,
    /// Scratch for one batch, so that reading allocates nothing.
    batch: Vec<RxFrame>,
    queue: Option<RxQueue>,
    /// Where the ring stood when the hand-over began that took it out of service.
    left_at: Option<u16>,
    enabled: bool,
    /// The guest has no buffers; it was asked for a kick.
    blocked: bool,
    /// When the packet at the head of the list stops waiting for all of its buffers.
    patience_ends: Option<Instant>,
    /// When to listen again to an uplink that failed.
    retry_at: Option<Instant>,
    mtu: Option<u16>,
    mtu_limit: MtuLimit,
    delivery: Delivery,
    tracer: Option<Rc<Tracer>>,
    /// Something was published since the last decision about an interrupt.
    published: bool,
    /// The ring broke and was taken out of service.
    fault: Option<QueueFault>,
    complaints: Complaints,
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
            left_at: None,
            enabled: false,
            blocked: false,
            patience_ends: None,
            retry_at: None,
            mtu: config.mtu,
            mtu_limit: MtuLimit::default(),
            delivery: Delivery::default(),
            tracer: None,
            published: false,
            fault: None,
            complaints: Complaints::default(),
            stats: ReceiveStats::default(),
        }
    }

    pub(super) fn set_tracer(&mut self, tracer: Rc<Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Whether the ring can be filled.
    pub(super) fn is_live(&self) -> bool {
        self.enabled && self.queue.is_some()
    }

    /// Whether readiness of the uplink is of interest.
    pub(super) fn wants_frames(&self) -> bool {
        self.is_live() && !self.blocked && !self.napi.is_masked() && self.retry_at.is_none()
    }

    /// Whether the uplink is left alone for a moment only: a deadline brings the next poll.
    pub(super) fn is_between_polls(&self) -> bool {
        self.napi.is_masked() || self.retry_at.is_some()
    }

    /// Whether [`poll`](Self::poll) has something to do.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.napi.state() == NapiState::Scheduled
            || self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// When there is something to do although nothing happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.napi.timer(), self.patience_ends, self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// The tunables of the poll model.
    pub(super) const fn napi_config(&self) -> &NapiConfig {
        self.napi.config()
    }

    /// Frames taken from the uplink so far.
    pub(super) const fn frames_read(&self) -> u64 {
        self.engine.stats().frames + self.stats.above_mtu
    }

    pub(super) fn readable(&mut self) {
        self.napi.schedule();
    }

    /// The guest added buffers.
    pub(super) fn kicked(&mut self) {
        // Most kicks come from a guest that refills while nothing waits; the ring is looked at
        // by the next poll anyway.
        if self.blocked {
            self.unblock();
        }
    }

    /// Goes on with the list at the next poll.
    fn unblock(&mut self) {
        self.blocked = false;
        self.patience_ends = None;
        if let Some(queue) = &mut self.queue {
            queue.ring_mut().disable_notifications();
        }
        self.napi.schedule();
    }

    /// Does what other deadlines than the one of the NAPI context ask for.
    fn look_at_clock(&mut self, now: Instant) {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_over(self.patience_ends) {
            if let Some(packet) = self.engine.front() {
                self.delivery.stop_waiting(packet);
            }
            self.unblock();
        }
        if is_over(self.retry_at) {
            // From now on its descriptor says whether there is anything to read.
            self.retry_at = None;
        }
    }

    /// One poll of the NAPI context.
    pub(super) fn poll(&mut self, now: Instant, host: &mut Host) -> Served {
        self.napi.timer_fired(now);
        self.look_at_clock(now);
        let Some(poll) = self.napi.begin_poll() else {
            return Served::Quiet;
        };
        self.stats.polls += 1;
        if self.engine.ready_len() > 0 {
            self.hand_over(now);
        }
        let work = if self.can_read() && host.link != Link::Gone {
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
        self.hand_over(now);
        self.napi.finish(completion, now, self.engine.earliest());
        self.settle(now)
    }

    /// Whether frames can be taken in: what was taken in before has found its way.
    fn can_read(&self) -> bool {
        self.is_live() && !self.blocked
    }

    /// Reads up to a budget of frames into the engine; returns how many were read.
    fn read(&mut self, _poll: &Poll, now: Instant, host: &mut Host) -> u32 {
        let work = self.take_in(self.napi.budget() as usize, now, host);
        u32::try_from(work).unwrap_or(u32::MAX)
    }

    fn take_in(&mut self, budget: usize, now: Instant, host: &mut Host) -> usize {
        let mut work = 0;
        while work < budget && self.can_read() {
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
                    self.hand_over(now);
                    if !flushed && self.pool.available() == 0 {
                        break;
                    }
                }
                Ok(RecvEnd::RingLent) => {
                    // Rule ENG-7 as well: the slots of the uplink's ring are its buffers.
                    self.stats.ring_lent += 1;
                    let flushed = self.engine.flush_oldest(FlushReason::Pool);
                    self.hand_over(now);
                    if !flushed {
                        break;
                    }
                }
                Ok(RecvEnd::Budget | RecvEnd::Empty) => break,
                Err(error @ RecvError::Gone(_)) => {
                    host.set_link(Link::Gone, &error);
                    break;
                }
                // Failures are counted by the uplink. The descriptor may stay readable all the
                // while, so it is left alone for a short time.
                Err(error @ (RecvError::Down | RecvError::Failed(_))) => {
                    if matches!(error, RecvError::Down) {
                        host.set_link(Link::Down, &error);
                    }
                    self.retry_at = Some(now + RETRY);
                    break;
                }
            }
        }
        work
    }

    /// Takes in what was read from the host on behalf of this pair already, as far as the guest has
    /// buffers (rule THR-3).
    fn take_backlog(&mut self, now: Instant, host: &mut Host) {
        let mut left = host.queue.backlog();
        while left > 0 && self.can_read() && host.link != Link::Gone {
            let budget = left.min(self.napi.budget() as usize);
            let taken = self.take_in(budget, now, host);
            if taken == 0 {
                return;
            }
            left = left.saturating_sub(taken);
        }
    }

    fn take_frame(&mut self, now: Instant, received: RxFrame) {
        let RxFrame { frame, meta } = received;
        if self.mtu_limit.is_exceeded_by(frame.as_ref(), &meta.vnet) {
            self.stats.above_mtu += 1;
            return;
        }
        self.engine.receive(now, frame, &meta);
        if self.engine.should_hand_over() {
            self.hand_over(now);
        }
    }

    /// Writes the receive list to the ring, as far as the guest has buffers.
    fn hand_over(&mut self, now: Instant) {
        if !self.is_live() || self.blocked || self.engine.ready_len() == 0 {
            return;
        }
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        self.stats.hand_overs += 1;
        self.left_at = Some(queue.position());
        match self.fill(now, &mut queue) {
            Ok(()) => self.queue = Some(queue),
            Err(fault) => {
                queue.publish();
                self.left_at = Some(queue.position());
                self.stats.ring += *queue.stats();
                self.fault = Some(fault);
            }
        }
        self.engine.handed_over();
    }

    /// Fills and publishes until the list is empty or the guest has promised a kick.
    fn fill(&mut self, now: Instant, queue: &mut RxQueue) -> Result<(), QueueFault> {
        // Buffers that were seen before are taken without another look at the ring's index. One
        // look each time, so that a ring that runs away is stopped while it still has some.
        queue.ring_mut().available()?;
        for _ in 0..FILLS {
            let view = self.tracer.as_deref().map(|tracer| (now, tracer));
            let is_done = self
                .delivery
                .run(queue, &mut self.engine, &mut self.stats, view)?;
            self.published |= queue.publish();
            if is_done {
                return Ok(());
            }
            // Buffers added before the guest saw that kicks are on come without one.
            if !queue.ring_mut().enable_notifications()? {
                self.stats.buffer_waits += 1;
                self.blocked = true;
                // Without any buffer there is a kick to come, and nothing to cut the packet for.
                let waits_for_more = queue.ring_mut().available()? > 0
                    && (self.engine.front())
                        .is_some_and(|packet| self.delivery.waits_whole(packet));
                self.patience_ends = waits_for_more.then(|| now + PATIENCE);
                return Ok(());
            }
            queue.ring_mut().disable_notifications();
        }
        // Others get their turn before this guest, which adds buffers all the time, goes on.
        self.napi.schedule();
        Ok(())
    }

    /// Ends a turn: one decision about an interrupt for all that was published in it.
    fn settle(&mut self, now: Instant) -> Served {
        let is_new = core::mem::take(&mut self.published);
        if let Some(fault) = self.fault.take() {
            self.complaints
                .warn(now, || format!("receive ring stopped: {fault}"));
            self.drop_all();
            return Served::Broken;
        }
        match &mut self.queue {
            Some(queue) if is_new => Served::from(queue.needs_notification()),
            _ => Served::Quiet,
        }
    }

    /// Hands over everything, held or not, as far as the guest has buffers; the ring will not be
    /// touched afterwards (rule ENG-8). What is left waits in the list.
    pub(super) fn wind_up(&mut self, now: Instant, host: &mut Host) -> Served {
        // Buffers may have come whose kick was not seen yet.
        self.blocked = false;
        self.take_backlog(now, host);
        self.engine.flush_all(FlushReason::Teardown);
        self.blocked = false;
        self.hand_over(now);
        let served = self.settle(now);
        self.blocked = false;
        self.patience_ends = None;
        self.napi.reset();
        served
    }

    /// Throws away and counts what no guest can get any more.
    pub(super) fn drop_all(&mut self) {
        self.engine.flush_all(FlushReason::Teardown);
        while let Some(packet) = self.engine.front() {
            self.stats.dropped_at_stop += u64::from(self.delivery.give_up(packet));
            self.engine.release_front();
        }
        self.engine.handed_over();
        self.delivery.reset();
        self.blocked = false;
        self.patience_ends = None;
        self.napi.reset();
    }

    /// Lets go of the ring; says where it stood, also if it is out of service already.
    pub(super) fn take_position(&mut self) -> Option<u16> {
        self.enabled = false;
        let left_at = self.left_at.take();
        let Some(queue) = self.queue.take() else {
            return left_at;
        };
        self.stats.ring += *queue.stats();
        Some(queue.position())
    }

    pub(super) fn start(&mut self, queue: Option<RxQueue>, enabled: bool, features: Features) {
        self.engine.set_types(features.gro_types());
        self.mtu_limit = MtuLimit::new(self.mtu, features);
        self.left_at = None;
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

    /// After an internal error. A ring that was lost in the middle of a hand-over stays where that
    /// began, because the guest has seen nothing of it.
    pub(super) fn abandon(&mut self) {
        self.left_at = self.take_position();
        self.batch.clear();
        self.published = false;
        self.fault = None;
        self.retry_at = None;
        self.drop_all();
    }

    pub(super) fn stats(&self) -> ReceiveStats {
        let mut stats = ReceiveStats {
            gro: *self.engine.stats(),
            pool_in_use: (self.pool.capacity() - self.pool.available()) as u64,
            ..self.stats
        };
        if let Some(queue) = &self.queue {
            stats.ring += *queue.stats();
        }
        stats
    }
}
