//! Whether a frame joins the held packet of its flow: all rules in their order.

use super::config::{GroConfig, HashMode};
use super::ethernet_len;
use super::headers::Headers;
use super::network::{self, IdMode};
use super::packet::{FrameBytes, HeldPacket};
use super::stats::Conflict;
use super::{tcp, udp};
use crate::wire::ipv4::Ipv4;
use crate::wire::tcp::Tcp;
use crate::wire::{Layout, Network, Transport};

/// What changes in the held packet when the frame joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    /// IPv4 identification of the frame.
    pub(super) id: u16,
    /// What the next frame has to add to it.
    pub(super) id_step: u16,
    /// FIN and PSH of the joining segment.
    pub(super) flags: u8,
    /// Payload bytes of the frame.
    pub(super) payload_len: u32,
    /// Whether the packet is complete with it.
    pub(super) closes: bool,
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
pub(super) fn check<B: FrameBytes>(
    held: &HeldPacket<B>,
    new: &Joining<'_>,
    config: &GroConfig,
) -> Result<Join, Conflict> {
    let first = (held.packet.head(), &held.layout);
    if let Some(conflict) = difference(first, (new.frame, &new.layout)) {
        return Err(conflict);
    }
    // A given hash decides the bucket and is no condition.
    let is_mark = config.hash_mode != HashMode::Given;
    if is_mark && held.expected.merge_mark != new.merge_mark {
        return Err(Conflict::Metadata);
    }
    let (id, id_step) = match new.layout.network() {
        Network::Ipv4 => check_id(held, new)?,
        Network::Ipv6 => (0, 0),
    };
    let (flags, closes) = match new.layout.transport() {
        Transport::Tcp => check_tcp(held, new, config)?,
        Transport::Udp => (0, check_udp(held, new)?),
    };
    // LIM-1 and LIM-2: bytes behind the Ethernet header, tags included.
    let len = held.len() + new.layout.payload_len() as usize;
    if ethernet_len(len) > config.size_limit() {
        return Err(Conflict::Size);
    }
    Ok(Join {
        id,
        id_step,
        flags,
        closes,
        payload_len: new.layout.payload_len(),
    })
}

fn check_id<B: FrameBytes>(
    held: &HeldPacket<B>,
    new: &Joining<'_>,
) -> Result<(u16, u16), Conflict> {
    let header = Ipv4::at(new.frame, usize::from(new.layout.l3())).ok_or(Conflict::Headers)?;
    let first = Ipv4::at(held.packet.head(), usize::from(held.layout.l3()));
    let ahead = header
        .id()
        .wrapping_sub(first.ok_or(Conflict::Headers)?.id());
    let mode = network::next_id_mode(held.id_mode(), ahead, header.is_df(), held.segs());
    match mode.ok_or(Conflict::Id)? {
        IdMode::Incrementing => Ok((header.id(), 1)),
        IdMode::Fixed | IdMode::Undecided => Ok((header.id(), 0)),
    }
}

fn check_tcp<B: FrameBytes>(
    held: &HeldPacket<B>,
    new: &Joining<'_>,
    config: &GroConfig,
) -> Result<(u8, bool), Conflict> {
    let expected = tcp::Expected {
        next_seq: held.expected.seq,
        mss: held.layout.payload_len(),
    };
    let header = Tcp::at(new.frame, usize::from(new.layout.l4())).ok_or(Conflict::Headers)?;
    let joined = tcp::check_payload(header, new.layout.payload_len(), expected)?;
    // LIM-3.
    if held.segs() >= config.gro_max_segs {
        return Err(Conflict::Segments);
    }
    Ok(joined)
}

fn check_udp<B: FrameBytes>(held: &HeldPacket<B>, new: &Joining<'_>) -> Result<bool, Conflict> {
    udp::check_payload(
        new.layout.payload_len(),
        held.layout.payload_len(),
        held.segs(),
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
