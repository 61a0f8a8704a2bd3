//! Plain counters, owned by the queue that counts.

use std::ops::AddAssign;

use super::tx_check::TxDrop;

/// Interrupts of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyStats {
    /// Decisions that the guest is to be interrupted.
    pub sent: u64,
    /// Decisions that it does not want to be.
    pub suppressed: u64,
}

impl NotifyStats {
    pub(super) const fn count(&mut self, wanted: bool) {
        if wanted {
            self.sent += 1;
        } else {
            self.suppressed += 1;
        }
    }
}

/// What happened on one receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueueStats {
    /// Packets written into guest buffers; a merged packet is one.
    pub packets: u64,
    /// Bytes of these packets, without virtio-net headers.
    pub bytes: u64,
    /// Guest buffers used for them.
    pub buffers: u64,
    /// Chains that were not valid and went back empty.
    pub bad_chains: u64,
    /// Good chains that went back empty because a bad one followed within the same packet.
    pub spoilt_chains: u64,
    /// Times that a packet had to wait for buffers.
    pub buffer_waits: u64,
    /// Packets that no refill could take; the caller segments or drops them.
    pub too_big: u64,
    /// Interrupts.
    pub notify: NotifyStats,
}

/// What happened on one transmit queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxQueueStats {
    /// Frames handed out and completed, whatever the uplink did with them.
    pub frames: u64,
    /// Bytes of these frames, without virtio-net headers.
    pub bytes: u64,
    /// Frames that were copied whole because they had too many pieces.
    pub copied: u64,
    /// Frames refused here, by reason.
    pub drops: TxDrops,
    /// Interrupts.
    pub notify: NotifyStats,
}

/// Refused frames by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxDrops([u64; TxDrop::ALL.len()]);

impl TxDrops {
    /// Frames refused for this reason.
    #[must_use]
    pub fn get(&self, reason: TxDrop) -> u64 {
        self.0[reason as usize]
    }

    /// Frames refused for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (TxDrop, u64)> + '_ {
        TxDrop::ALL.iter().copied().zip(self.0)
    }

    pub(super) fn count(&mut self, reason: TxDrop) {
        self.0[reason as usize] += 1;
    }
}

impl AddAssign for NotifyStats {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.suppressed += other.suppressed;
    }
}

impl AddAssign for RxQueueStats {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.buffers += other.buffers;
        self.bad_chains += other.bad_chains;
        self.spoilt_chains += other.spoilt_chains;
        self.buffer_waits += other.buffer_waits;
        self.too_big += other.too_big;
        self.notify += other.notify;
    }
}

impl AddAssign for TxQueueStats {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.copied += other.copied;
        for (count, more) in self.drops.0.iter_mut().zip(other.drops.0) {
            *count += more;
        }
        self.notify += other.notify;
    }
}
