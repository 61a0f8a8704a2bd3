//! A packet socket on an interface, with its ring or without.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};

use super::error::AfPacketError;
use super::filter::{everything, for_addresses, nothing};
use super::interface::Interface;
use super::slot::{FRAME_AT, RESERVE};
use crate::sys::PacketRing;
use crate::sys::packet::{
    Membership, add_membership, attach_filter, bind_packet, bypass_qdisc, ignore_outgoing,
    packet_socket, set_fixed_slots, set_long_frames_queued, set_reserve, set_vnet_hdr,
};

/// Room for frames on their way out, and for those that are longer than a slot. What the kernel
/// counts are its buffers, which are larger than the frames in them.
const SOCKET_BUFFER: usize = 8 << 20;
/// Slots are multiples of this, so that those of one block fill pages.
const SLOT_STEP: usize = 2048;
/// Longest slot. What does not fit is queued on the socket, which takes a system call a frame; so
/// it does for packets of 64 KiB, which are few. A ring of such slots would be mostly empty.
const SLOT_MAX: usize = 16 * 1024;
/// Ethernet header and two tags.
const LINK_LEN: usize = 14 + 8;

/// A socket that is bound to an interface.
#[derive(Debug)]
pub(super) struct Port {
    socket: OwnedFd,
    /// The interface.
    pub(super) index: u32,
    /// `None` for a port that only sends.
    pub(super) ring: Option<Ring>,
}

/// A ring and how far it was read.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) slots: PacketRing,
    /// The slot that the kernel fills next, or has filled and we have not seen.
    pub(super) next: usize,
    /// The oldest slot that may still be lent.
    pub(super) oldest: usize,
}

impl Ring {
    /// Slots from the oldest lent one to the last that was read.
    pub(super) fn span(&mut self) -> usize {
        use crate::sys::SlotState::Lent;
        while self.oldest != self.next && self.slots.state(self.oldest) != Lent {
            self.oldest = self.oldest.wrapping_add(1);
        }
        self.next.wrapping_sub(self.oldest)
    }
}

impl Port {
    /// Attaches to the interface `index`, whose MTU is `mtu`, for both directions.
    pub(super) fn receiving(
        interface: &Interface,
        index: u32,
        mtu: usize,
    ) -> Result<Self, AfPacketError> {
        let port = Self::new(interface, index)?;
        let fd = port.socket.as_fd();
        let setup = |step| AfPacketError::setup(step, interface.name());
        set_fixed_slots(fd).map_err(setup("choose the kind of ring"))?;
        set_reserve(fd, RESERVE).map_err(setup("leave room in the ring's slots"))?;
        set_long_frames_queued(fd).map_err(setup("have long frames queued"))?;
        if let Err(err) = ignore_outgoing(fd) {
            log::debug!("outgoing frames are told by their type: {err}");
        }
        let macs = interface.macs();
        // Until it is one of the group, a bound socket gets what the group gets as well.
        attach_filter(fd, &mut nothing()).map_err(setup("attach a filter"))?;
        let slot_len = slot_len(mtu);
        let slots = PacketRing::new(fd, interface.slots(), slot_len).map_err(|source| {
            match Errno::from_io_error(&source) {
                Some(Errno::NOMEM) => AfPacketError::RingMemory {
                    name: interface.name().to_owned(),
                    slots: interface.slots(),
                    slot_len,
                    source,
                },
                _ => setup("map a ring")(source),
            }
        })?;
        bind_packet(fd, index, true).map_err(setup("bind a socket"))?;
        for membership in memberships(macs) {
            add_membership(fd, index, membership).map_err(setup("receive what is the guest's"))?;
        }
        interface.join(fd, index)?;
        let mut filter = match macs.is_empty() {
            true => everything(),
            false => for_addresses(macs),
        };
        attach_filter(fd, &mut filter).map_err(setup("replace a filter"))?;
        Ok(Self {
            ring: Some(Ring {
                slots,
                next: 0,
                oldest: 0,
            }),
            ..port
        })
    }

    /// Attaches to the interface `index` to send only.
    pub(super) fn sending(interface: &Interface, index: u32) -> Result<Self, AfPacketError> {
        let port = Self::new(interface, index)?;
        bind_packet(port.socket.as_fd(), index, false)
            .map_err(AfPacketError::setup("bind a socket", interface.name()))?;
        Ok(port)
    }

    fn new(interface: &Interface, index: u32) -> Result<Self, AfPacketError> {
        let socket = packet_socket().map_err(AfPacketError::no_socket)?;
        let setup = |step| AfPacketError::setup(step, interface.name());
        set_vnet_hdr(socket.as_fd()).map_err(setup("ask for a virtio-net header"))?;
        if interface.is_bypassing_qdisc() {
            bypass_qdisc(socket.as_fd()).map_err(setup("bypass the queueing discipline"))?;
        }
        enlarge_buffers(&socket).map_err(setup("enlarge the buffers of a socket"))?;
        Ok(Self {
            socket,
            index,
            ring: None,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What the interface receives for the guest beside what it receives anyway.
pub(in crate::uplink) fn memberships(macs: &[[u8; 6]]) -> Vec<Membership> {
    if macs.is_empty() {
        return vec![Membership::Promiscuous];
    }
    let unicast = macs.iter().map(|&mac| Membership::Unicast(mac));
    unicast.chain([Membership::AllMulticast]).collect()
}

/// More than the system's limit needs a capability; without it the limit has to do.
fn enlarge_buffers(socket: &OwnedFd) -> io::Result<()> {
    set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER)
        .or_else(|_| set_socket_recv_buffer_size(socket, SOCKET_BUFFER))?;
    set_socket_send_buffer_size_force(socket, SOCKET_BUFFER)
        .or_else(|_| set_socket_send_buffer_size(socket, SOCKET_BUFFER))?;
    Ok(())
}

/// Bytes of a slot for frames of this MTU.
fn slot_len(mtu: usize) -> usize {
    let len = FRAME_AT.saturating_add(LINK_LEN).saturating_add(mtu);
    len.min(SLOT_MAX).next_multiple_of(SLOT_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f60_a_slot_holds_a_frame_of_the_mtu_with_two_tags() {
        assert_eq!(slot_len(1500), 2048);
        assert_eq!(slot_len(2048 - FRAME_AT - LINK_LEN), 2048);
        assert_eq!(slot_len(2049 - FRAME_AT - LINK_LEN), 4096);
        assert_eq!(slot_len(9000), 10240);
        assert_eq!(slot_len(65535), SLOT_MAX);
    }
}
