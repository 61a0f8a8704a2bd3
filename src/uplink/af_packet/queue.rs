//! One queue of an attached interface: frames out of its ring, and onto its socket.
//!
//! **Who has a slot.** A slot that the kernel filled is lent to the engine as a [`Frame`] and goes
//! back when that is dropped: when the frame was written to the guest. Two rules keep the ring
//! moving whatever is held:
//! - The newest slot is not lent. Its frame is copied to a buffer of the pool, because the socket
//!   counts as readable as long as the slot that was filled last is ours.
//! - When the slots from the oldest lent one on are half of the ring, nothing more is read until
//!   held frames were let go ([`RecvEnd::RingLent`]); the kernel has the other half meanwhile.
//!
//! Frames longer than a slot are queued on the socket as well, in the same order, and are read from
//! there when their slot's turn comes.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{RecvFlags, recv};

use super::batch::Batch;
use super::error::AfPacketError;
use super::interface::Interface;
use super::port::{Port, Ring};
use super::slot::{SlotHead, Tag, encode, restore};
use crate::sys::packet::{PACKET_VNET_HDR_LEN, bound_index, take_counts};
use crate::sys::{NetDevice, PacketRing, SlotState};
use crate::uplink::interface::Carrier;
use crate::uplink::link_events::LinkEvents;
use crate::uplink::vnet_fd::write_frame;
use crate::uplink::{
    BUF_LEN, Flushed, Frame, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame,
    UplinkQueue, UplinkStats,
};
use crate::wire::RxMeta;

/// Where a frame's header of 10 bytes begins in a pool buffer, so that the IP header is aligned.
const MESSAGE_AT: usize = 8;

/// A queue of an interface.
#[derive(Debug)]
pub struct AfPacketQueue {
    interface: Arc<Interface>,
    events: LinkEvents,
    port: Port,
    batch: Batch,
    generation: u64,
    carrier: Carrier,
    /// The last call found nothing.
    was_empty: bool,
    /// Rings of which frames are still lent.
    retired: Vec<PacketRing>,
    /// The device has other queues to fall back on.
    is_spare: bool,
    is_active: bool,
    /// The kernel has dropped frames that are not counted yet.
    is_losing: bool,
    scratch: Box<[u8]>,
    stats: UplinkStats,
    ring_full: Cell<u64>,
}

/// What became of a slot.
enum Taken {
    Frame(RxFrame),
    /// Nothing to deliver: counted, or a frame of the host's own.
    Dropped,
    /// Nothing was taken: there is no buffer for it.
    NoBuffer,
}

impl AfPacketQueue {
    /// Attaches one queue.
    pub(super) fn open(interface: &Arc<Interface>, is_spare: bool) -> Result<Self, AfPacketError> {
        // First of all, so that no change goes unseen.
        let events = LinkEvents::new()
            .map_err(AfPacketError::setup("be told of changes", interface.name()))?;
        let (index, state) = interface.find(events.as_fd(), None)?;
        Ok(Self {
            port: Port::receiving(interface, index, state.mtu)?,
            interface: Arc::clone(interface),
            events,
            batch: Batch::new(),
            generation: 0,
            carrier: Carrier::new(),
            was_empty: false,
            retired: Vec::new(),
            is_spare,
            is_active: true,
            is_losing: false,
            scratch: vec![0; BUF_LEN].into_boxed_slice(),
            stats: UplinkStats::default(),
            ring_full: Cell::new(0),
        })
    }

    /// Takes slot `next`, which is filled.
    #[inline]
    fn take(&mut self, pool: &FramePool, status: u32) -> Taken {
        let Some(ring) = &mut self.port.ring else {
            return Taken::Dropped;
        };
        let is_queued = status & libc::TP_STATUS_COPY != 0;
        let is_newest = ring.slots.state(ring.next.wrapping_add(1)) == SlotState::Free;
        let buffer = if is_queued || is_newest {
            match pool.take() {
                Some(buffer) => Some(buffer),
                None => return Taken::NoBuffer,
            }
        } else {
            None
        };
        let Some(mut slot) = ring.slots.take(ring.next) else {
            return Taken::Dropped;
        };
        ring.next = ring.next.wrapping_add(1);
        self.is_losing |= status & libc::TP_STATUS_LOSING != 0;
        let Some(head) = SlotHead::read(status, slot.spare_mut()) else {
            self.stats.rx_truncated += 1;
            return Taken::Dropped;
        };
        let taken = match buffer {
            Some(buffer) if is_queued => self.take_queued(buffer, &head),
            buffer => take_in_place(slot, buffer, &head),
        };
        match taken {
            Some(_) if head.is_outgoing => Taken::Dropped,
            Some(frame) => Taken::Frame(frame),
            None => {
                self.stats.rx_truncated += 1;
                Taken::Dropped
            }
        }
    }

    /// Reads a frame that was too long for its slot.
    fn take_queued(&mut self, mut buffer: Frame, head: &SlotHead) -> Option<RxFrame> {
        let room = buffer.spare_mut().get_mut(MESSAGE_AT..)?;
        let (_, len) = recv(self.port.fd(), room, RecvFlags::DONTWAIT | RecvFlags::TRUNC).ok()?;
        if len != head.len + PACKET_VNET_HDR_LEN {
            return None;
        }
        finish(buffer, MESSAGE_AT, MESSAGE_AT + len, head.tag)
    }

    /// Takes the error off the socket that it reports when its interface goes down.
    fn clear_error(&self) -> bool {
        !matches!(socket_error(self.port.fd()), Ok(Ok(())))
    }

    /// Asks for what the ring had no slot for.
    fn count_losses(&self) {
        if let Ok(counts) = take_counts(self.port.fd()) {
            self.ring_full
                .set(self.ring_full.get() + u64::from(counts.drops));
        }
    }

    /// Makes room for a frame behind all that was collected.
    fn flush_for_more(&mut self) -> Result<(), SendError> {
        match self.flush()? {
            Flushed::All => Ok(()),
            Flushed::Partly => Err(SendError::Full),
        }
    }

    /// Gives up and counts the first `count` frames that were collected.
    fn lose(&mut self, count: usize) {
        self.stats.tx_lost += count as u64;
        self.batch.forget(count);
    }

    /// Takes another port; what waits in the old one is thrown away and counted.
    fn replace_port(&mut self, port: Port) {
        self.count_losses();
        let old = core::mem::replace(&mut self.port, port);
        self.generation += 1;
        let Some(Ring {
            slots, mut next, ..
        }) = old.ring
        else {
            return;
        };
        for _ in 0..slots.slots() {
            if !matches!(slots.state(next), SlotState::Filled(_)) {
                break;
            }
            next = next.wrapping_add(1);
            self.stats.rx_discarded += 1;
        }
        if slots.has_lent() {
            self.retired.push(slots);
        }
    }

    fn attach(&self, index: u32, mtu: usize) -> Result<Port, AfPacketError> {
        if self.is_active || !self.is_spare {
            Port::receiving(&self.interface, index, mtu)
        } else {
            Port::sending(&self.interface, index)
        }
    }

    /// The interface as it is now; attaches to it again if it is another one than before.
    fn find(&mut self) -> Result<NetDevice, AfPacketError> {
        let bound = bound_index(self.port.fd()).unwrap_or(None);
        let is_bound = bound == Some(self.port.index);
        let attached = is_bound.then_some(self.port.index);
        let (index, state) = self.interface.find(self.events.as_fd(), attached)?;
        if attached != Some(index) {
            let port = self.attach(index, state.mtu)?;
            self.replace_port(port);
        }
        Ok(state)
    }
}

impl UplinkQueue for AfPacketQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        let Some(ring) = &mut self.port.ring else {
            return Ok(RecvEnd::Empty);
        };
        let most = ring.slots.slots() / 2;
        let mut room = most.saturating_sub(ring.span());
        let mut end = RecvEnd::Budget;
        let first = ring.next;
        for _ in 0..budget {
            let Some(ring) = &self.port.ring else { break };
            let SlotState::Filled(status) = ring.slots.state(ring.next) else {
                end = RecvEnd::Empty;
                break;
            };
            if room == 0 {
                end = RecvEnd::RingLent;
                break;
            }
            room -= 1;
            match self.take(pool, status) {
                Taken::Frame(frame) => out.push(frame),
                Taken::Dropped => {}
                Taken::NoBuffer => {
                    end = RecvEnd::PoolEmpty;
                    break;
                }
            }
        }
        if core::mem::take(&mut self.is_losing) {
            self.count_losses();
        }
        let next = self.port.ring.as_ref().map(|ring| ring.next);
        let is_empty = end == RecvEnd::Empty && next == Some(first);
        // Woken twice for nothing: that may be an error, which would go on for ever.
        if core::mem::replace(&mut self.was_empty, is_empty) && is_empty && self.clear_error() {
            return Err(RecvError::Down);
        }
        Ok(end)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        if !self.carrier.is_up() {
            return Err(SendError::Down);
        }
        let hdr = encode(&frame.vnet);
        if self.batch.is_full() {
            self.flush_for_more()?;
        }
        if self.batch.add(&hdr, frame) {
            return Ok(());
        }
        // It must not overtake the others.
        self.flush_for_more()?;
        write_frame(self.port.fd(), &mut self.scratch, &hdr, frame).map_err(send_error)
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        loop {
            match self.batch.send(self.port.fd()) {
                Ok(true) => {}
                Ok(false) => return Ok(Flushed::All),
                Err(err) if Errno::from_io_error(&err) == Some(Errno::AGAIN) => {
                    return Ok(Flushed::Partly);
                }
                Err(err) => match send_error(err) {
                    error @ (SendError::Full | SendError::NoMemory) => return Err(error),
                    // The first one; the next may pass.
                    SendError::Refused(_) => self.lose(1),
                    error => {
                        self.lose(self.batch.len());
                        return Err(error);
                    }
                },
            }
        }
    }

    /// The host cannot be told. Frames that the guest does not take are cut, and their checksums
    /// completed, by the engine.
    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    /// A group cannot be left, so a queue that is not read has a socket without a ring.
    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        if is_active == self.is_active {
            return Ok(());
        }
        self.is_active = is_active;
        if !self.is_spare {
            return Ok(());
        }
        let found = self
            .interface
            .find(self.events.as_fd(), Some(self.port.index));
        let port = found.and_then(|(index, state)| self.attach(index, state.mtu));
        match port {
            Ok(port) => self.replace_port(port),
            // It is attached when the interface comes back.
            Err(AfPacketError::NoInterface { .. }) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        self.count_losses();
        UplinkStats {
            rx_ring_full: self.ring_full.get(),
            ..self.stats
        }
    }

    fn fd_generation(&self) -> u64 {
        self.generation
    }

    /// A descriptor reports the end of its interface once; what comes after it is followed.
    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        if failed {
            self.clear_error();
        }
        Ok(())
    }

    fn carrier(&self) -> Option<bool> {
        self.interface.shows_link().then_some(self.carrier.is_up())
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn follow_device(&mut self) {
        self.events.take();
        self.retired.retain(PacketRing::has_lent);
        let found = self.find();
        self.clear_error();
        self.carrier.note(self.interface.name(), &found);
    }
}

/// The frame of a slot, where it lies or in `copy`.
#[inline]
fn take_in_place(mut slot: Frame, copy: Option<Frame>, head: &SlotHead) -> Option<RxFrame> {
    let (start, end) = head.span(slot.spare_mut())?;
    let Some(mut copy) = copy else {
        return finish(slot, start, end, head.tag);
    };
    let message = slot.spare_mut().get(start..end)?;
    let to = copy.spare_mut().get_mut(MESSAGE_AT..)?;
    to.get_mut(..message.len())?.copy_from_slice(message);
    finish(copy, MESSAGE_AT, MESSAGE_AT + (end - start), head.tag)
}

#[inline]
fn finish(mut frame: Frame, start: usize, end: usize, tag: Option<Tag>) -> Option<RxFrame> {
    let (vnet, start) = restore(frame.spare_mut(), start, end, tag)?;
    frame.set_range(start, end);
    let merge_mark = 0;
    Some(RxFrame {
        frame,
        meta: RxMeta { vnet, merge_mark },
    })
}

/// Source: `net/packet/af_packet.c`, `packet_snd`: `ENXIO` once the interface is gone, `ENOBUFS`
/// where its queue dropped the frame, `EMSGSIZE` above its MTU.
fn send_error(err: io::Error) -> SendError {
    match Errno::from_io_error(&err) {
        Some(Errno::AGAIN) => SendError::Full,
        Some(Errno::NOBUFS | Errno::NOMEM) => SendError::NoMemory,
        Some(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => SendError::Down,
        _ => SendError::Refused(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f39_shortage_of_buffers_keeps_the_frame() {
        assert!(matches!(send_error(Errno::AGAIN.into()), SendError::Full));
        for errno in [Errno::NOBUFS, Errno::NOMEM] {
            assert!(matches!(send_error(errno.into()), SendError::NoMemory));
        }
    }

    #[test]
    fn f40_an_interface_that_is_away_may_come_back() {
        for errno in [Errno::NETDOWN, Errno::NXIO, Errno::NODEV] {
            assert!(matches!(send_error(errno.into()), SendError::Down));
        }
        for errno in [Errno::MSGSIZE, Errno::INVAL] {
            assert!(matches!(send_error(errno.into()), SendError::Refused(_)));
        }
    }
}
