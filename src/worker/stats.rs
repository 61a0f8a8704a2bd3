//! Counters of a queue pair: plain numbers that its thread owns and copies out on request.

use super::trace::TraceStats;
use crate::device::{RxQueueStats, TxQueueStats};
use crate::gro::GroStats;
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
    /// Times the uplink had no room.
    pub uplink_full: u64,
    /// Frames dropped because the host refused them.
    pub dropped_refused: u64,
    /// Frames dropped because the interface is down or gone.
    pub dropped_down: u64,
    /// Frames dropped because the guest disabled the ring.
    pub dropped_disabled: u64,
}
