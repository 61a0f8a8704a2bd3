//! What the kernel says of a frame in front of it, and how the frame becomes what was on the wire.
//!
//! ```text
//! 0        4               32                 52         72          82             96
//! | status | lengths, tag | link-layer address | ...free | virtio-net | Ethernet (14) | IP
//! ```
//! Nothing of it is believed beyond the slot's own memory.
//!
//! Source: `struct tpacket2_hdr`, `struct sockaddr_ll`; `net/packet/af_packet.c`, `tpacket_rcv`.

use crate::sys::SLOT_STATUS_LEN;
use crate::sys::packet::PACKET_VNET_HDR_LEN;
use crate::wire::VnetHdr;
use crate::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_NONE};

/// Bytes of an Ethernet header, below which nothing is a frame.
const ETH_HDR_LEN: usize = 14;
/// Both addresses, in front of which a tag is not.
const ADDRESSES_LEN: usize = 12;
const TAG_LEN: usize = 4;
/// The protocol of a tag whose protocol the kernel does not say: kernels before 3.14.
const TPID_DEFAULT: u16 = 0x8100;
/// `PACKET_OUTGOING`, a frame that the host or another socket sends on the interface.
const OUTGOING: u8 = libc::PACKET_OUTGOING;

/// Bytes that the kernel is asked to leave free in addition, so that IP headers are aligned.
pub(super) const RESERVE: usize = 6;
/// Where frames begin in a slot.
pub(super) const FRAME_AT: usize = 82;

/// A tag that the kernel took out of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    protocol: u16,
    control: u16,
}

/// What stands in front of a frame, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotHead {
    /// Bytes that the frame had.
    pub(super) len: usize,
    /// Where it begins in the memory behind the status, and how much of it is there.
    at: usize,
    kept: usize,
    pub(super) tag: Option<Tag>,
    pub(super) is_outgoing: bool,
}

impl SlotHead {
    /// Reads what is in front of the frame; `memory` begins behind the status word.
    #[inline]
    pub(super) fn read(status: u32, memory: &[u8]) -> Option<Self> {
        let head: &[u8; 39] = memory.first_chunk()?;
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| Tag {
            protocol: if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                half(22)
            } else {
                TPID_DEFAULT
            },
            control: half(20),
        });
        Some(Self {
            len: word(0) as usize,
            at: usize::from(half(8)).checked_sub(SLOT_STATUS_LEN)?,
            kept: word(4) as usize,
            tag,
            is_outgoing: head[38] == OUTGOING,
        })
    }

    /// Where the frame lies, virtio-net header included; `None` if it was cut or cannot be there.
    #[inline]
    pub(super) fn span(&self, memory: &[u8]) -> Option<(usize, usize)> {
        let start = self.at.checked_sub(PACKET_VNET_HDR_LEN)?;
        let end = self.at.checked_add(self.kept)?;
        (self.kept == self.len && end <= memory.len()).then_some((start, end))
    }
}

/// Makes the frame in `start..end`, which has the host's header in front, what it was on the wire.
/// Returns its header and where it begins now; `None` for something that is no frame.
#[inline]
pub(super) fn restore(
    memory: &mut [u8],
    start: usize,
    end: usize,
    tag: Option<Tag>,
) -> Option<(VnetHdr, usize)> {
    let message = memory.get_mut(start..end)?;
    let mut vnet = decode(message.first_chunk()?);
    let at = PACKET_VNET_HDR_LEN;
    if message.len() < at + ETH_HDR_LEN {
        return None;
    }
    let Some(tag) = tag else {
        return Some((vnet, start + at));
    };
    message.copy_within(at..at + ADDRESSES_LEN, at - TAG_LEN);
    let (_, rest) = message.split_at_mut(at - TAG_LEN + ADDRESSES_LEN);
    let (to, _) = rest.split_first_chunk_mut::<TAG_LEN>()?;
    let [a, b] = tag.protocol.to_be_bytes();
    let [c, d] = tag.control.to_be_bytes();
    *to = [a, b, c, d];
    shift(&mut vnet);
    Some((vnet, start + at - TAG_LEN))
}

/// Moves what the header says of the frame behind a tag.
fn shift(vnet: &mut VnetHdr) {
    let tag = 4;
    if vnet.flags & F_NEEDS_CSUM != 0 {
        vnet.csum_start = vnet.csum_start.saturating_add(tag);
    }
    if vnet.gso_type != GSO_NONE {
        vnet.hdr_len = vnet.hdr_len.saturating_add(tag);
    }
}

/// Reads the short header, which is in the host's byte order.
#[inline]
fn decode(bytes: &[u8; PACKET_VNET_HDR_LEN]) -> VnetHdr {
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    VnetHdr {
        flags: bytes[0],
        gso_type: bytes[1],
        hdr_len: half(2),
        gso_size: half(4),
        csum_start: half(6),
        csum_offset: half(8),
        num_buffers: 0,
    }
}

/// Writes the short header, in the host's byte order.
pub(super) fn encode(vnet: &VnetHdr) -> [u8; PACKET_VNET_HDR_LEN] {
    let mut bytes = [0; PACKET_VNET_HDR_LEN];
    bytes[0] = vnet.flags;
    bytes[1] = vnet.gso_type;
    let fields = [
        vnet.hdr_len,
        vnet.gso_size,
        vnet.csum_start,
        vnet.csum_offset,
    ];
    for (to, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
        to.copy_from_slice(&field.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::vnet_hdr::GSO_TCPV4;

    const VNET: VnetHdr = VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };

    /// A slot's memory with a frame of `frame.len()` bytes at its place.
    fn slot(frame: &[u8]) -> Vec<u8> {
        let mut memory = vec![0; 512];
        let len = u32::try_from(frame.len()).unwrap();
        memory[0..4].copy_from_slice(&len.to_ne_bytes());
        memory[4..8].copy_from_slice(&len.to_ne_bytes());
        memory[8..10].copy_from_slice(&82u16.to_ne_bytes());
        memory[20..22].copy_from_slice(&0x2007u16.to_ne_bytes());
        memory[22..24].copy_from_slice(&0x88a8u16.to_ne_bytes());
        let at = FRAME_AT - SLOT_STATUS_LEN;
        memory[at - PACKET_VNET_HDR_LEN..at].copy_from_slice(&encode(&VNET));
        memory[at..at + frame.len()].copy_from_slice(frame);
        memory
    }

    #[test]
    fn the_layout_agrees_with_the_kernel_headers() {
        use std::mem::offset_of;
        let behind = |offset| offset - SLOT_STATUS_LEN;
        assert_eq!(behind(offset_of!(libc::tpacket2_hdr, tp_len)), 0);
        assert_eq!(behind(offset_of!(libc::tpacket2_hdr, tp_snaplen)), 4);
        assert_eq!(behind(offset_of!(libc::tpacket2_hdr, tp_mac)), 8);
        assert_eq!(behind(offset_of!(libc::tpacket2_hdr, tp_vlan_tci)), 20);
        assert_eq!(behind(offset_of!(libc::tpacket2_hdr, tp_vlan_tpid)), 22);
        let address = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();
        let kind = offset_of!(libc::sockaddr_ll, sll_pkttype);
        assert_eq!(behind(address + kind), 38);
        let network = (libc::TPACKET2_HDRLEN + 16).next_multiple_of(libc::TPACKET_ALIGNMENT);
        assert_eq!(network + RESERVE + PACKET_VNET_HDR_LEN, FRAME_AT + 14);
    }

    #[test]
    fn f62_a_tag_comes_back_with_its_own_protocol_and_the_header_follows() {
        let frame: Vec<u8> = (1..=60).collect();
        let mut memory = slot(&frame);
        let status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        let head = SlotHead::read(status, &memory).unwrap();
        let (start, end) = head.span(&memory).unwrap();
        let (vnet, start) = restore(&mut memory, start, end, head.tag).unwrap();
        let tagged = [&frame[..12], &[0x88, 0xa8, 0x20, 7], &frame[12..]].concat();
        assert_eq!(memory[start..end], tagged);
        assert_eq!((vnet.csum_start, vnet.hdr_len), (38, 58));
    }

    #[test]
    fn f62_a_frame_without_a_tag_is_left_alone() {
        let frame: Vec<u8> = (1..=60).collect();
        let mut memory = slot(&frame);
        let head = SlotHead::read(0, &memory).unwrap();
        assert_eq!(head.tag, None);
        let (start, end) = head.span(&memory).unwrap();
        let (vnet, start) = restore(&mut memory, start, end, None).unwrap();
        assert_eq!(memory[start..end], frame);
        assert_eq!(vnet, VNET);
    }

    #[test]
    fn f60_what_a_slot_cannot_hold_is_not_believed() {
        let frame = [7; 60];
        let span = |memory: &[u8]| SlotHead::read(1, memory)?.span(memory);
        let with = |at: usize, bytes: &[u8]| {
            let mut memory = slot(&frame);
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            span(&memory)
        };
        assert!(span(&slot(&frame)).is_some());
        // Cut, longer than the slot, in front of it, behind it.
        assert_eq!(with(0, &61u32.to_ne_bytes()), None);
        assert_eq!(with(0, &[0xff; 8]), None);
        assert_eq!(with(8, &[0, 0]), None);
        assert_eq!(with(8, &13u16.to_ne_bytes()), None);
        assert_eq!(with(8, &[0xff, 0xff]), None);
        assert_eq!(span(&[0; 20]), None);
    }

    #[test]
    fn less_than_an_ethernet_header_is_no_frame() {
        let mut memory = slot(&[7; 13]);
        let head = SlotHead::read(1, &memory).unwrap();
        let (start, end) = head.span(&memory).unwrap();
        assert_eq!(restore(&mut memory, start, end, head.tag), None);
    }
}
