//! The frame that everybody hopes for: the next segment of the stream, with nothing changed.
//!
//! Says yes only where the parser and all rules of `join` would say yes, with far fewer
//! instructions; a test compares the two. To say no costs nothing but time: the frame then goes
//! the long way, which finds out what is the matter.

use super::alike::is_alike;
use super::join::Join;
use super::network::IdMode;
use super::packet::HeldPacket;
use super::tcp;
use crate::wire::ipv4::Ipv4;
use crate::wire::tcp::Tcp;
use crate::wire::udp::Udp;
use crate::wire::{Layout, Network, Transport};

/// A frame that continues a held packet.
pub(super) struct Next {
    pub(super) layout: Layout,
    pub(super) join: Join,
}

/// Whether a frame, of which nothing is known yet, continues a held packet in the plainest way.
/// Its transport checksum is not looked at.
#[inline(always)]
pub(super) fn next<B: AsRef<[u8]>>(
    held: &HeldPacket<B>,
    frame: &[u8],
    merge_mark: u64,
) -> Option<Next> {
    let mask = held.mask?;
    let first = held.packet.head.as_ref();
    if !is_alike(mask, first, frame, held.layout.payload) || held.merge_mark != merge_mark {
        return None;
    }
    let layout = held.layout.of_alike(frame)?;
    let len = layout.payload_len;
    if !held.room.has_for(len) {
        return None;
    }
    let id_mode = match layout.network {
        Network::Ipv4 => {
            let id = Ipv4::at(frame, usize::from(layout.l3))?.id();
            (id == held.next_id).then_some(())?;
            held.id_mode.or(IdMode::Incrementing)
        }
        Network::Ipv6 => IdMode::Undecided,
    };
    let flags = match layout.transport {
        Transport::Tcp => {
            let header = Tcp::at(frame, usize::from(layout.l4))?;
            (header.seq() == held.next_seq).then_some(())?;
            header.flags() & tcp::COLLECTED
        }
        Transport::Udp => {
            (Udp::at(frame, usize::from(layout.l4))?.checksum() != 0).then_some(())?;
            0
        }
    };
    let is_last = match layout.transport {
        Transport::Tcp => flags != 0,
        Transport::Udp => held.room.is_last(),
    };
    Some(Next {
        layout,
        join: Join {
            id_mode,
            flags: u32::from(flags),
            payload_len: len,
            closes: u32::from(is_last || len < held.layout.payload_len),
        },
    })
}
