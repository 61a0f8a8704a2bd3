//! Whether a frame joins the held packet of its flow: all rules in their order.

use super::config::GroConfig;
use super::ethernet_len;
use super::headers::Headers;
use super::network::{self, IdMode};
use super::packet::HeldPacket;
use super::stats::Conflict;
use super::{tcp, udp};
use crate::wire::ipv4::Ipv4;
use crate::wire::tcp::Tcp;
use crate::wire::{Layout, Network, Transport};

/// What changes in the held packet when the frame joins.
///
/// Fields are as wide as registers on purpose: narrow ones are packed into one word in memory and
/// read back as a whole, which waits for the store buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) id_mode: IdMode,
    /// FIN and PSH of the joining segment.
    pub(super) flags: u32,
    /// Payload bytes of the frame.
    pub(super) payload_len: u32,
    /// Whether the packet is complete with it; not zero if so.
    pub(super) closes: u32,
}

/// A frame that wants to join.
#[derive(Clone, Copy)]
pub(super) struct Joining<'a> {
    pub(super) frame: &'a [u8],
    pub(super) layout: Layout,
    /// Metadata that has to be equal (META-1).
    pub(super) merge_mark: u64,
}

/// Decides for a frame of the same flow, and says which rule forbids it. The checksum is not
/// looked at.
pub(super) fn check<B: AsRef<[u8]>>(
    held: &HeldPacket<B>,
    new: &Joining<'_>,
    config: &GroConfig,
) -> Result<Join, Conflict> {
    let first = (held.packet.head.as_ref(), &held.layout);
    if let Some(conflict) = difference(first, (new.frame, &new.layout)) {
        return Err(conflict);
    }
    if held.merge_mark != new.merge_mark {
        return Err(Conflict::Metadata);
    }
    let id_mode = match new.layout.network {
        Network::Ipv4 => check_id(held, new)?,
        Network::Ipv6 => IdMode::Undecided,
    };
    let (flags, closes) = match new.layout.transport {
        Transport::Tcp => check_tcp(held, new, config)?,
        Transport::Udp => (0, check_udp(held, new)?),
    };
    // LIM-1 and LIM-2: bytes behind the Ethernet header, tags included.
    let len = held.packet.len + new.layout.payload_len as usize;
    if ethernet_len(len) > config.size_limit() {
        return Err(Conflict::Size);
    }
    Ok(Join {
        id_mode,
        flags: u32::from(flags),
        closes: u32::from(closes),
        payload_len: new.layout.payload_len,
    })
}

fn check_id<B>(held: &HeldPacket<B>, new: &Joining<'_>) -> Result<IdMode, Conflict> {
    let header = Ipv4::at(new.frame, usize::from(new.layout.l3)).ok_or(Conflict::Headers)?;
    let ahead = header.id().wrapping_sub(held.first_id);
    network::next_id_mode(held.id_mode, ahead, header.is_df(), held.packet.segs).ok_or(Conflict::Id)
}

fn check_tcp<B>(
    held: &HeldPacket<B>,
    new: &Joining<'_>,
    config: &GroConfig,
) -> Result<(u8, bool), Conflict> {
    let expected = tcp::Expected {
        next_seq: held.next_seq,
        mss: held.layout.payload_len,
    };
    let header = Tcp::at(new.frame, usize::from(new.layout.l4)).ok_or(Conflict::Headers)?;
    let joined = tcp::check_payload(header, new.layout.payload_len, expected)?;
    // LIM-3.
    if held.packet.segs >= config.gro_max_segs {
        return Err(Conflict::Segments);
    }
    Ok(joined)
}

fn check_udp<B>(held: &HeldPacket<B>, new: &Joining<'_>) -> Result<bool, Conflict> {
    udp::check_payload(
        new.layout.payload_len,
        held.layout.payload_len,
        held.packet.segs,
    )
}

/// The first rule that the headers of two frames of one flow break; `None` if they are alike.
fn difference(
    (first, first_layout): (&[u8], &Layout),
    (new, new_layout): (&[u8], &Layout),
) -> Option<Conflict> {
    let (Some(first), Some(new)) = (
        Headers::read(first, first_layout),
        Headers::read(new, new_layout),
    ) else {
        return Some(Conflict::Headers);
    };
    network::difference(&first, &new).or_else(|| tcp::difference(first.transport, new.transport))
}
