//! How the protocol side speaks to a data thread: whole states in, acknowledgements out.
//!
//! There is one kind of change: the complete set-up that the thread shall work with from now on.
//! The caller waits until the thread has let go of everything that the former set-up held, so
//! when `apply` returns no ring, mapping or descriptor of the old state is touched again.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vm_memory::GuestMemoryMmap;

/// One started ring.
#[derive(Clone, Debug)]
pub struct RingSetup {
    /// Counts the starts of this ring. While it stays the same the thread keeps its own position
    /// and ignores `next_avail`.
    pub epoch: u64,
    /// Entries, a power of two up to 32768.
    pub size: u16,
    /// Guest physical address of the descriptor table.
    pub desc_table: u64,
    /// Guest physical address of the available ring.
    pub avail_ring: u64,
    /// Guest physical address of the used ring.
    pub used_ring: u64,
    /// Position to start at, for both the available and the used ring.
    pub next_avail: u16,
    /// Whether the ring was enabled; a started but disabled transmit ring is drained and its
    /// frames are thrown away, a disabled receive ring gets nothing.
    pub enabled: bool,
    /// Readable when the guest has added buffers; `None` for a guest that never kicks.
    pub kick: Option<Arc<OwnedFd>>,
    /// Event descriptor that interrupts the guest.
    pub call: Option<Arc<OwnedFd>>,
    /// Event descriptor that reports a broken ring to the front-end.
    pub err: Option<Arc<OwnedFd>>,
}

/// Everything a data thread needs to serve one queue pair. The default serves nothing.
#[derive(Clone, Debug, Default)]
pub struct PairSetup {
    /// Features the guest acked, as in the virtio specification.
    pub features: u64,
    /// The guest's memory.
    pub memory: Option<Arc<GuestMemoryMmap>>,
    /// The ring towards the guest.
    pub rx: Option<RingSetup>,
    /// The ring from the guest.
    pub tx: Option<RingSetup>,
}

impl PairSetup {
    /// Whether frames that waited for the guest under the `old` set-up may reach it under this
    /// one: it is the same run of the ring, and the guest accepts the same.
    pub(super) fn goes_on_receiving_after(&self, old: &Self) -> bool {
        let (Some(ring), Some(old_ring)) = (&self.rx, &old.rx) else {
            return false;
        };
        ring.epoch == old_ring.epoch && ring.enabled && self.features == old.features
    }
}

/// Where each ring stood when the thread let go of the former set-up; `None` for a ring that was
/// not started. A ring that broke stands where it broke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Next available index of the receive ring.
    pub rx: Option<u16>,
    /// Next available index of the transmit ring.
    pub tx: Option<u16>,
}

/// A data thread as the protocol side sees it. A trait so that the protocol side can be tested
/// with a recorder in its place.
pub trait PairControl: Send + Sync {
    /// Replaces the thread's set-up, waits until it has been taken over.
    fn apply(&self, setup: PairSetup) -> Positions;

    /// Sends a frame of the daemon's own out of the uplink (an announcement after migration).
    fn announce(&self, frame: Vec<u8>);
}
