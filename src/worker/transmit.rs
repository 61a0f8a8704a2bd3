//! From the guest: transmit ring -> checks -> uplink.
//!
//! A drain takes frames in order until the ring is empty, a quota is used up, or the uplink takes
//! no more. The guest's kicks are off while frames are taken and come on again when the ring is
//! empty (rule TX-11). A frame that the uplink has no room for stays at the head of the ring, its
//! descriptors not returned, and nothing overtakes it. The drain goes on when the uplink is
//! writable, or after a short time when that proved to say nothing.

use std::rc::Rc;

use super::complaint::Complaints;
use super::host::{Host, Link, RETRY};
use super::signal::Served;
use super::stats::TransmitStats;
use super::trace::Tracer;
use crate::device::{QueueFault, Tx, TxQueue};
use crate::time::Instant;
use crate::uplink::{Flushed, SendError, TxFrame};

/// Frames of one drain before others get their turn.
///
/// Source: rule TX-3; `dev_tx_weight` in `net/core/dev.c`.
const TX_QUOTA: usize = 64;

/// Whether the uplink takes frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Room {
    /// As far as is known.
    #[default]
    Free,
    /// It was full; it will say when it is writable.
    Awaited,
    /// It says that it is writable, and no send has proved it yet.
    Claimed,
    /// It said so and took nothing: a host that is short of memory. Asking it again at once would
    /// go on for ever, so some time passes first.
    Doubted(Instant),
}

/// The transmit half of a queue pair.
#[derive(Default)]
pub(super) struct Transmit {
    queue: Option<TxQueue>,
    /// Where the ring stood when the turn began that took it out of service.
    left_at: Option<u16>,
    enabled: bool,
    /// Frames may be waiting in the ring.
    pending: bool,
    /// The uplink has taken frames that have not left it.
    unflushed: bool,
    room: Room,
    complaints: Complaints,
    tracer: Option<Rc<Tracer>>,
    stats: TransmitStats,
}

impl Transmit {
    pub(super) fn set_tracer(&mut self, tracer: Rc<Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Whether [`drain`](Self::drain) has something to do.
    pub(super) fn is_pending(&self, now: Instant) -> bool {
        let has_room = match self.room {
            Room::Free | Room::Claimed => true,
            Room::Awaited => false,
            Room::Doubted(until) => until <= now,
        };
        has_room && self.has_work()
    }

    /// Whether writability of the uplink is of interest.
    pub(super) fn wants_room(&self) -> bool {
        self.room == Room::Awaited && (self.queue.is_some() || self.unflushed)
    }

    fn has_work(&self) -> bool {
        self.unflushed || self.pending && self.queue.is_some()
    }

    /// When to try again although nothing happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.room {
            Room::Doubted(until) if self.has_work() => Some(until),
            _ => None,
        }
    }

    pub(super) fn kicked(&mut self) {
        self.pending = true;
    }

    pub(super) fn writable(&mut self) {
        if self.room == Room::Awaited {
            self.room = Room::Claimed;
        }
    }

    /// The uplink had no room for a frame.
    fn note_full(&mut self, now: Instant) {
        self.stats.uplink_full += 1;
        self.room = match self.room {
            Room::Free | Room::Awaited => Room::Awaited,
            Room::Claimed | Room::Doubted(_) => Room::Doubted(now + RETRY),
        };
    }

    /// Takes up to a quota of frames from the ring and sends them as one batch.
    pub(super) fn drain(&mut self, now: Instant, host: &mut Host) -> Served {
        let Some(mut queue) = self.queue.take() else {
            self.flush(now, host);
            return Served::Quiet;
        };
        self.stats.drains += 1;
        self.left_at = Some(queue.position());
        let sent = self.send_quota(&mut queue, now, host);
        self.flush(now, host);
        match sent {
            Ok(()) => {
                let served = Served::from(queue.publish() && queue.needs_notification());
                self.queue = Some(queue);
                served
            }
            Err(fault) => {
                self.complaints
                    .warn(now, || format!("transmit ring stopped: {fault}"));
                queue.publish();
                self.left_at = Some(queue.position());
                self.retire(&queue);
                Served::Broken
            }
        }
    }

    fn send_quota(
        &mut self,
        queue: &mut TxQueue,
        now: Instant,
        host: &mut Host,
    ) -> Result<(), QueueFault> {
        queue.ring_mut().disable_notifications();
        for _ in 0..TX_QUOTA {
            let Some(next) = queue.peek()? else {
                // The guest may have added one before it saw that kicks are on again.
                self.pending = queue.ring_mut().enable_notifications()?;
                return Ok(());
            };
            match next {
                // Returned to the guest and counted by the queue.
                Tx::Dropped(_) => {}
                Tx::Frame(frame) if self.enabled => {
                    let frame = TxFrame {
                        vnet: frame.vnet,
                        head: frame.head,
                        rest: frame.rest(),
                    };
                    if !self.send(&frame, now, host) {
                        self.note_full(now);
                        return Ok(());
                    }
                    self.room = Room::Free;
                    queue.complete();
                }
                Tx::Frame(_) => {
                    self.stats.dropped_disabled += 1;
                    queue.complete();
                }
            }
        }
        Ok(())
    }

    /// Ends a batch. What the uplink has no room for stays with it until it is writable.
    pub(super) fn flush(&mut self, now: Instant, host: &mut Host) {
        self.unflushed = false;
        if host.link == Link::Gone {
            return;
        }
        match host.queue.flush() {
            Ok(Flushed::All) => {}
            Ok(Flushed::Partly) => {
                self.unflushed = true;
                self.room = Room::Awaited;
            }
            Err(SendError::Full) => {
                self.unflushed = true;
                self.note_full(now);
            }
            // The uplink has counted what it took.
            Err(SendError::Refused(_)) => {}
            Err(SendError::Down) => host.set_link(Link::Down, &SendError::Down),
            Err(error @ SendError::Gone(_)) => host.set_link(Link::Gone, &error),
        }
    }

    /// Sends one frame, or drops and counts it; `false` if it has to be kept.
    fn send(&mut self, frame: &TxFrame<'_>, now: Instant, host: &mut Host) -> bool {
        if host.link == Link::Gone {
            self.stats.dropped_down += 1;
            return true;
        }
        match host.queue.send(frame) {
            Ok(()) => {
                self.stats.frames += 1;
                if let Some(tracer) = &self.tracer {
                    tracer.sent(now, &frame.vnet, frame.head, frame.rest);
                }
                host.set_link(Link::Up, &"");
            }
            Err(SendError::Full) => return false,
            Err(SendError::Refused(_)) => self.stats.dropped_refused += 1,
            Err(SendError::Down) => {
                self.stats.dropped_down += 1;
                host.set_link(Link::Down, &SendError::Down);
            }
            Err(error @ SendError::Gone(_)) => {
                self.stats.dropped_down += 1;
                host.set_link(Link::Gone, &error);
            }
        }
        true
    }

    /// Keeps the counters of a ring that ends.
    fn retire(&mut self, queue: &TxQueue) {
        self.stats.ring += *queue.stats();
    }

    /// Lets go of the ring; says where it stood, also if it is out of service already.
    pub(super) fn take_position(&mut self) -> Option<u16> {
        if !self.unflushed {
            self.room = Room::Free;
        }
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

    /// After an internal error. The ring stays where it was when the turn began, of which the
    /// guest has seen nothing.
    pub(super) fn abandon(&mut self) {
        self.left_at = self.take_position();
    }

    pub(super) fn stats(&self) -> TransmitStats {
        let mut stats = self.stats;
        if let Some(queue) = &self.queue {
            stats.ring += *queue.stats();
        }
        stats
    }
}
