//! Counters of a queue pair: plain numbers that its thread owns and copies out on request.

use std::io;

use rustix::io::Errno;

use super::trace::TraceStats;
use crate::device::{RxQueueStats, TxQueueStats};
use crate::gro::GroStats;
use crate::tx::BulkEnd;
use crate::uplink::UplinkStats;

/// Everything one queue pair counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairStats {
    /// Towards the guest.
    pub receive: ReceiveStats,
    /// From the guest.
    pub transmit: TransmitStats,
    /// The host device.
    pub uplink: UplinkStats,
    /// The trace, if there is one.
    pub trace: TraceStats,
    /// Rounds that ended while the pair had frames to read: others of its thread, and events, got
    /// their turn first.
    ///
    /// Source: `time_squeeze`, `net/core/dev.c`.
    pub squeezed: u64,
    /// Defects of ours that stopped the pair.
    pub internal_errors: u64,
}

/// Counters of the receive half.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveStats {
    /// Of the engine.
    pub gro: GroStats,
    /// Of the ring, summed over all its starts.
    pub ring: RxQueueStats,
    /// Frames of the wire that the guest got, in whatever packets.
    pub frames: u64,
    /// Buffers of the frame pool in use, which is the number of frames that are held or wait for
    /// buffers of the guest, but for those that lie in a ring of the uplink. Not a sum but as it
    /// is at the moment.
    pub pool_in_use: u64,
    /// Polls of the NAPI context.
    pub polls: u64,
    /// Times the receive list was handed over.
    pub hand_overs: u64,
    /// Times the guest had no buffers and was asked for a kick.
    pub buffer_waits: u64,
    /// Times the frame pool was empty.
    pub pool_empty: u64,
    /// Times a held packet was let go because half of the uplink's ring was lent.
    pub ring_lent: u64,
    /// Frames dropped because they, or the segments of what the host had merged, are longer than
    /// the negotiated MTU.
    pub above_mtu: u64,
    /// Frames that were held or waiting when the ring was stopped and could not be delivered.
    pub dropped_at_stop: u64,
    /// Frames for which the guest has no buffers large enough, however many it gives.
    pub dropped_too_big: u64,
    /// Packets cut into their segments because the guest cannot take them whole.
    pub resegmented: u64,
}

/// Counters of the transmit half.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransmitStats {
    /// Of the ring, summed over all its starts.
    pub ring: TxQueueStats,
    /// Frames that the uplink took.
    pub frames: u64,
    /// Turns of the drain.
    pub drains: u64,
    /// Bulks taken from the ring.
    pub bulks: u64,
    /// Of these, those that ended before the ring was empty.
    pub bulks_ended: BulksEnded,
    /// Frames of a bulk that were kept, each time: the uplink had no room for them, or the turn had
    /// made all the segments that it may.
    pub left_over: u64,
    /// Packets cut into their segments because the uplink cannot.
    pub segmented: u64,
    /// Frames that such packets became, which the uplink took.
    pub segments: u64,
    /// Checksums finished because the uplink cannot.
    pub checksums_finished: u64,
    /// Times the uplink had no room.
    pub uplink_full: u64,
    /// Times the host was short of memory.
    pub uplink_no_memory: u64,
    /// Times the queue stood still because enough was on its way.
    pub limit_waits: u64,
    /// Bytes that may be on their way. Not a sum but as it is at the moment; `None` for an uplink
    /// that is done with a frame at once.
    pub byte_limit: Option<u32>,
    /// Frames dropped because the host refused them.
    pub refused: Refused,
    /// Frames dropped because they are not what their header says, which showed when they were to
    /// be finished.
    pub dropped_misfit: u64,
    /// Frames dropped because the interface is down or gone.
    pub dropped_down: u64,
    /// Frames dropped because the guest disabled the ring.
    pub dropped_disabled: u64,
}

/// Bulks by what kept them from growing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulksEnded {
    /// They had `tx_bulk_packets` frames.
    pub packets: u64,
    /// Their room was taken.
    pub bytes: u64,
    /// Their last frame is a super-frame.
    pub gso: u64,
    /// The turn had `tx_quota` frames.
    pub quota: u64,
}

impl BulksEnded {
    pub(super) fn count(&mut self, end: Option<BulkEnd>) {
        match end {
            Some(BulkEnd::Packets) => self.packets += 1,
            Some(BulkEnd::Bytes) => self.bytes += 1,
            Some(BulkEnd::Gso) => self.gso += 1,
            Some(BulkEnd::Quota) => self.quota += 1,
            None => {}
        }
    }
}

/// Refused frames by what the host said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// It does not like their header (`EINVAL`).
    pub invalid: u64,
    /// They are longer than it takes (`EMSGSIZE`).
    pub too_long: u64,
    /// Anything else.
    pub other: u64,
}

impl Refused {
    pub(super) fn count(&mut self, error: &io::Error) {
        match Errno::from_io_error(error) {
            Some(Errno::INVAL) => self.invalid += 1,
            Some(Errno::MSGSIZE) => self.too_long += 1,
            _ => self.other += 1,
        }
    }

    /// For whatever reason.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.invalid + self.too_long + self.other
    }
}
