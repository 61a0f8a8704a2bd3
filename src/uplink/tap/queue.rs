//! One queue of a tap: frames with a virtio-net header on a descriptor of `/dev/net/tun`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::follower::Follower;
use crate::sys::ifreq::{
    TUN_F_CSUM, TUN_F_TSO_ECN, TUN_F_TSO4, TUN_F_TSO6, TUN_F_USO4, TUN_F_USO6, tun_set_offload,
    tun_set_queue,
};
use crate::uplink::vnet_fd::VnetFd;
use crate::uplink::{
    FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue, UplinkStats,
};

/// Both families: the kernel takes them together or not at all.
pub(super) const TUN_F_USO: u32 = TUN_F_USO4 | TUN_F_USO6;

/// Most frames that are counted when a queue is taken out of the device. A tap's queue holds a
/// thousand, unless the operator made it longer (`txqueuelen`).
const DISCARD_MAX: usize = 4096;

/// A queue of a tap.
///
/// A deleted device wakes every waiter with `EPOLLERR`, also one that asked for no events, and
/// reads and writes give `EBADFD`. While the interface is merely down, reads find nothing, writes
/// give `EIO` and `EPOLLOUT` is not reported.
///
/// Source: `drivers/net/tun.c`, `tun_chr_poll`, `tun_detach_all`. A queue that was opened by name
/// then goes on with the next device of that name (`Follower`).
///
/// The kernel spreads frames over all attached queues by flow, whether or not anybody reads them.
/// So a queue without a reader is detached; all but the first, which is there while no guest is.
#[derive(Debug)]
pub struct TapQueue {
    io: VnetFd,
    /// The device has other queues to fall back on.
    is_spare: bool,
    is_attached: bool,
    /// What the guest accepts.
    offloads: Offloads,
    /// `None` for a queue without a name by which the next device could be had.
    follower: Option<Follower>,
}

impl TapQueue {
    /// Takes over an attached queue; one that `is_spare` may be detached.
    pub(super) fn new(fd: OwnedFd, is_spare: bool) -> Self {
        Self {
            io: VnetFd::new(fd),
            is_spare,
            is_attached: true,
            offloads: Offloads::default(),
            follower: None,
        }
    }

    /// Lets the queue outlive its device.
    pub(super) fn follow_by(&mut self, follower: Follower) {
        self.follower = Some(follower);
    }

    /// Whether there is no device at the moment, and another one is waited for.
    fn is_waiting(&self) -> bool {
        (self.follower.as_ref()).is_some_and(|follower| !follower.is_there())
    }

    /// Finds out what became of the device; says whether that is known to this queue.
    fn follow(&mut self) -> bool {
        let Some(follower) = &mut self.follower else {
            return false;
        };
        match follower.follow(self.io.fd()) {
            Ok(None) => {}
            Ok(Some(fd)) => {
                let is_there = follower.is_there();
                self.io.replace(fd);
                if is_there {
                    self.settle();
                }
            }
            Err(err) => {
                log::warn!("the tap is given up: {err}");
                self.follower = None;
                return false;
            }
        }
        true
    }

    /// Brings a queue of a new device to where the former one was.
    fn settle(&mut self) {
        if let Err(err) = self.set_offloads(self.offloads) {
            log::warn!("offloads of the tap are off: {err}");
        }
        if !self.is_attached
            && let Err(err) = tun_set_queue(self.io.fd(), false)
        {
            log::warn!("a queue that nobody reads stays in the tap's set: {err}");
        }
    }
}

impl UplinkQueue for TapQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.io.fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        if self.is_waiting() {
            return Err(RecvError::Down);
        }
        match self.io.recv_batch(pool, budget, out) {
            Err(RecvError::Gone(_)) if self.follow() => Err(RecvError::Down),
            result => result,
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        if self.is_waiting() {
            return Err(SendError::Down);
        }
        match self.io.send(frame) {
            Err(SendError::Gone(_)) if self.follow() => Err(SendError::Down),
            result => result,
        }
    }

    /// The mask belongs to the device, so the last call of any queue counts for all of them; one
    /// that is detached has no say in what the others get.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.offloads = offloads;
        if !self.is_attached || self.is_waiting() {
            return Ok(());
        }
        let mask = offload_mask(offloads);
        match tun_set_offload(self.io.fd(), mask) {
            // A kernel before 6.2 knows no USO. It then cuts such packets before we see them.
            Err(err) if mask & TUN_F_USO != 0 && is_invalid(&err) => {
                tun_set_offload(self.io.fd(), mask & !TUN_F_USO)
            }
            result => result,
        }
    }

    /// Frames that come between the last look and the detaching are lost with the kernel's queue;
    /// nobody counts them.
    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        if !self.is_spare || is_active == self.is_attached {
            return Ok(());
        }
        // The device may have gone since anybody looked.
        self.follow();
        if self.is_waiting() {
            self.is_attached = is_active;
            return Ok(());
        }
        if !is_active {
            self.io.discard(DISCARD_MAX);
        }
        tun_set_queue(self.io.fd(), is_active)?;
        self.is_attached = is_active;
        Ok(())
    }

    fn fd_generation(&self) -> u64 {
        (self.follower.as_ref()).map_or(0, |follower| follower.generation)
    }

    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        if failed && !self.follow() {
            return Err(RecvError::Gone(Errno::NODEV.into()));
        }
        Ok(())
    }

    fn carrier(&self) -> Option<bool> {
        self.follower.as_ref().map(Follower::is_there)
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.follower.as_ref().map(Follower::events)
    }

    fn follow_device(&mut self) {
        if self.follower.as_ref().is_some_and(Follower::hear) {
            self.follow();
        }
        // One queue says it for all.
        if let Some(follower) = &mut self.follower
            && !self.is_spare
        {
            follower.note_state();
        }
    }

    fn stats(&self) -> UplinkStats {
        self.io.stats()
    }
}

impl Drop for TapQueue {
    /// Leaves nothing behind for the next owner of a persistent device.
    fn drop(&mut self) {
        if self.is_waiting() {
            return;
        }
        if let Err(err) = tun_set_offload(self.io.fd(), 0) {
            log::debug!("offloads of the tap stay as they are: {err}");
        }
    }
}

/// The `TUN_F_*` mask for what the guest accepts. Bits that mean nothing without another one are
/// left out: the kernel refuses the whole mask otherwise. UFO is never asked for (rule TX-6).
///
/// Source: `drivers/net/tun.c`, `set_offload`.
fn offload_mask(offloads: Offloads) -> u32 {
    if !offloads.csum {
        return 0;
    }
    let has_tso = offloads.tso4 || offloads.tso6;
    let bit = |is_on: bool, bit: u32| if is_on { bit } else { 0 };
    TUN_F_CSUM
        | bit(offloads.tso4, TUN_F_TSO4)
        | bit(offloads.tso6, TUN_F_TSO6)
        | bit(offloads.ecn && has_tso, TUN_F_TSO_ECN)
        | bit(offloads.uso, TUN_F_USO)
}

pub(super) fn is_invalid(err: &io::Error) -> bool {
    Errno::from_io_error(err) == Some(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f36_the_mask_holds_what_was_acked_and_never_ufo() {
        assert_eq!(offload_mask(Offloads::default()), 0);
        let all = Offloads {
            csum: true,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        };
        assert_eq!(offload_mask(all), 0x6f);
        assert_eq!(offload_mask(Offloads { csum: false, ..all }), 0);
        let ecn_alone = Offloads {
            csum: true,
            ecn: true,
            ..Offloads::default()
        };
        assert_eq!(offload_mask(ecn_alone), TUN_F_CSUM);
    }
}
