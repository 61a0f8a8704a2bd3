//! From the guest: transmit ring -> checks -> uplink.
//!
//! A drain takes bulks of frames in order (`tx`) until the ring is empty, a quota is used up, or the
//! uplink takes no more. The guest's kicks are off meanwhile and come on again when the ring is
//! empty (rule TX-11). The uplink gets a bulk with one submission; the guest gets its buffers back
//! with one publication and one notification. What the uplink has no room for stays in hand,
//! checked, its buffers not returned; it goes first next time, and nothing overtakes it (rule
//! TX-4). The drain goes on when the uplink is writable, or after a short time when that proved to
//! say nothing, or when enough of what is on its way has left.

use std::rc::Rc;

use super::complaint::Complaints;
use super::finish::{FinishError, Finisher};
use super::host::{Host, Link};
use super::pair::PairConfig;
use super::sender::Sender;
use super::signal::Served;
use super::stats::TransmitStats;
use super::trace::Tracer;
use crate::device::{Pieces, QueueFault, Taken, Tx, TxFrame, TxQueue};
use crate::time::Instant;
use crate::tx::{Bulk, TxConfig};
use crate::uplink::{self, SendError};
use crate::wire::VnetHdr;

/// The transmit half of a queue pair.
pub(super) struct Transmit {
    config: TxConfig,
    queue: Option<TxQueue>,
    /// Where the ring stood when the guest was shown something for the last time in the turn that
    /// took it out of service.
    left_at: Option<u16>,
    enabled: bool,
    /// Frames may be waiting in the ring.
    pending: bool,
    sender: Sender,
    finisher: Finisher,
    complaints: Complaints,
    tracer: Option<Rc<Tracer>>,
    stats: TransmitStats,
}

impl Transmit {
    pub(super) fn new(config: &PairConfig) -> Self {
        let tx = config.tx.clamped();
        Self {
            config: tx,
            queue: None,
            left_at: None,
            enabled: false,
            pending: false,
            sender: Sender::new(tx),
            finisher: Finisher::new(config.uplink_offloads),
            complaints: Complaints::default(),
            tracer: None,
            stats: TransmitStats::default(),
        }
    }

    pub(super) fn set_tracer(&mut self, tracer: Rc<Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Frames that are in hand at most.
    pub(super) const fn in_hand_max(&self) -> usize {
        self.config.tx_bulk_packets as usize
    }

    /// Whether [`drain`](Self::drain) has something to do.
    pub(super) fn is_pending(&self, now: Instant) -> bool {
        self.has_work() && self.sender.is_open(now)
    }

    /// Whether writability of the uplink is of interest.
    pub(super) fn wants_room(&self) -> bool {
        let has_anything = self.queue.is_some() || self.sender.is_unflushed();
        has_anything && self.sender.is_waiting_for_room()
    }

    fn has_work(&self) -> bool {
        self.sender.is_unflushed() || self.pending && self.queue.is_some()
    }

    /// When to try again although nothing happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sender.deadline().filter(|_| self.has_work())
    }

    pub(super) fn kicked(&mut self) {
        self.pending = true;
    }

    pub(super) fn writable(&mut self) {
        self.sender.writable();
    }

    /// Asks the uplink what has left it.
    pub(super) fn reclaim(&mut self, now: Instant, host: &mut Host) {
        self.sender.reclaim(now, host);
    }

    /// Takes up to a quota of frames from the ring and sends them in bulks. What each of them means
    /// for the guest is told to `tell`.
    pub(super) fn drain(&mut self, now: Instant, host: &mut Host, mut tell: impl FnMut(Served)) {
        // What it has came first.
        self.sender.flush(now, host, &mut self.stats);
        if self.sender.is_unflushed() {
            return;
        }
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        self.stats.drains += 1;
        self.left_at = Some(queue.position());
        match self.send_quota(&mut queue, now, host, &mut tell) {
            Ok(()) => self.queue = Some(queue),
            Err(fault) => {
                self.complaints
                    .warn(now, || format!("transmit ring stopped: {fault}"));
                self.retire(&queue);
                tell(Served::Broken);
            }
        }
    }

    fn send_quota(
        &mut self,
        queue: &mut TxQueue,
        now: Instant,
        host: &mut Host,
        tell: &mut impl FnMut(Served),
    ) -> Result<(), QueueFault> {
        queue.ring_mut().disable_notifications();
        // Until the ring was seen empty with kicks on, also if what led here was no kick.
        self.pending = true;
        self.finisher.begin_turn();
        let mut quota = self.config.tx_quota;
        while quota > 0 {
            self.sender.reclaim(now, host);
            let Some(available) = self.sender.available(now, &mut self.stats) else {
                return Ok(());
            };
            let taken = if queue.in_hand() > 0 {
                // What was left over is the bulk.
                Ok(Ring::HasMore)
            } else {
                self.take_bulk(queue, Bulk::new(&self.config, available, quota))
            };
            quota = quota.saturating_sub(u32::try_from(queue.in_hand()).unwrap_or(u32::MAX));
            self.send_bulk(queue, now, host);
            tell(Served::from(queue.publish() && queue.needs_notification()));
            self.left_at = Some(queue.position());
            let ring = taken?;
            if queue.in_hand() > 0 || self.sender.is_unflushed() {
                return Ok(());
            }
            if ring == Ring::Empty {
                // The guest may have added one before it saw that kicks are on again.
                self.pending = queue.ring_mut().enable_notifications()?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes the frames of a bulk from the ring.
    fn take_bulk(&mut self, queue: &mut TxQueue, mut bulk: Bulk) -> Result<Ring, QueueFault> {
        while bulk.end().is_none() {
            match queue.take()? {
                Some(Taken::Frame { len, is_gso }) => bulk.add(len, is_gso),
                // It has its place in the ring, but takes no room.
                Some(Taken::Dropped(_)) => bulk.add(0, false),
                None => {
                    self.stats.bulks += u64::from(queue.in_hand() > 0);
                    return Ok(Ring::Empty);
                }
            }
        }
        self.stats.bulks += 1;
        self.stats.bulks_ended.count(bulk.end());
        Ok(Ring::HasMore)
    }

    /// Sends what is in hand with one submission, and gives back what is not to be kept.
    fn send_bulk(&mut self, queue: &mut TxQueue, now: Instant, host: &mut Host) {
        let mut done = 0;
        let mut pieces = Pieces::default();
        while let Some(next) = queue.frame(done, &mut pieces) {
            let is_done = match next {
                // Counted by the queue.
                Tx::Dropped(_) => true,
                Tx::Frame(frame) if self.enabled => self.send(&frame, now, host),
                Tx::Frame(_) => {
                    self.stats.dropped_disabled += 1;
                    true
                }
            };
            if !is_done {
                break;
            }
            done += 1;
        }
        queue.complete(done);
        self.stats.left_over += queue.in_hand() as u64;
        self.sender.flush(now, host, &mut self.stats);
    }

    /// Sends one frame, or drops and counts it; `false` if it has to be kept.
    fn send(&mut self, frame: &TxFrame<'_>, now: Instant, host: &mut Host) -> bool {
        if host.link == Link::Gone {
            self.stats.dropped_down += 1;
            return true;
        }
        let sender = &mut self.sender;
        let put = |frame: &uplink::TxFrame<'_>, len| sender.put(frame, len, host);
        let error = match self.finisher.send(frame, &mut self.stats, put) {
            Ok(()) => {
                self.stats.frames += 1;
                if let Some(tracer) = &self.tracer {
                    tracer.sent(now, &frame.vnet, frame.head, frame.rest());
                }
                host.set_link(Link::Up, &"");
                return true;
            }
            Err(FinishError::Misfit) => {
                self.stats.dropped_misfit += 1;
                return true;
            }
            Err(FinishError::TurnIsOver) => return false,
            Err(FinishError::Send(error)) => error,
        };
        match error {
            SendError::Full | SendError::NoMemory => {
                self.sender.note_full(&error, now, &mut self.stats);
                return false;
            }
            SendError::Refused(error) => self.stats.refused.count(&error),
            SendError::Down => {
                self.stats.dropped_down += 1;
                host.set_link(Link::Down, &error);
            }
            SendError::Gone(_) => {
                self.stats.dropped_down += 1;
                host.set_link(Link::Gone, &error);
            }
        }
        true
    }

    /// Sends a frame of our own, as it is.
    ///
    /// # Errors
    /// It was not sent, and will not be.
    pub(super) fn announce(
        &mut self,
        now: Instant,
        frame: &[u8],
        host: &mut Host,
    ) -> Result<(), SendError> {
        self.sender.reclaim(now, host);
        let whole = uplink::TxFrame {
            vnet: VnetHdr::default(),
            head: frame,
            rest: &[],
        };
        let sent = self.sender.put(&whole, frame.len(), host);
        self.sender.flush(now, host, &mut self.stats);
        sent
    }

    /// Keeps the counters of a ring that ends.
    fn retire(&mut self, queue: &TxQueue) {
        self.stats.ring += *queue.stats();
    }

    /// Lets go of the ring; says where it stood, also if it is out of service already.
    pub(super) fn take_position(&mut self) -> Option<u16> {
        self.sender.forget_wait();
        self.finisher.forget_frame();
        self.pending = false;
        let left_at = self.left_at.take();
        let Some(queue) = self.queue.take() else {
            return left_at;
        };
        self.retire(&queue);
        Some(queue.position())
    }

    pub(super) fn start(&mut self, queue: Option<TxQueue>, enabled: bool) {
        self.queue = queue;
        self.left_at = None;
        self.enabled = enabled;
        // Frames may have been there before the kick could be seen.
        self.pending = true;
    }

    /// After an internal error. The ring stays where the guest saw it last.
    pub(super) fn abandon(&mut self) {
        self.left_at = self.take_position();
    }

    pub(super) fn stats(&self) -> TransmitStats {
        let mut stats = self.stats;
        stats.byte_limit = self.sender.limit();
        if let Some(queue) = &self.queue {
            stats.ring += *queue.stats();
        }
        stats
    }
}

/// What taking a bulk has shown of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ring {
    /// There may be more.
    HasMore,
    Empty,
}
