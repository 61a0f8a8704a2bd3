//! Last touches: lengths, partial checksum and virtio-net header (section 7).

use super::packet::{FrameBytes, HeldPacket};
use super::stats::DropReason;
use crate::wire::checksum;
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::tcp::{self, Tcp};
use crate::wire::vnet_hdr::{
    F_DATA_VALID, F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VnetHdr,
};
use crate::wire::{Layout, Network, Transport, ipv6, udp};

/// Turns a held packet of several segments into a super-frame: writes the fields of section 7.2
/// into the first frame's headers and describes it for the guest.
#[inline(never)]
pub(super) fn super_frame<B: FrameBytes>(held: &mut HeldPacket<B>) {
    let (layout, collected) = (held.layout, held.collected);
    held.packet.count(layout.payload_len());
    let len = held.packet.frame_len();
    held.packet.vnet = gso_header(&layout);
    rewrite_headers(held.packet.head_mut(), &layout, len, collected);
}

/// The header of a super-frame: always with a partial checksum (OUT-2), never with ECN (OUT-4).
fn gso_header(layout: &Layout) -> VnetHdr {
    VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: gso_type(layout),
        hdr_len: layout.payload(),
        // LIM-5: a payload behind IP headers is shorter than 65535 bytes.
        gso_size: length(layout.payload_len() as usize),
        csum_start: layout.l4(),
        csum_offset: layout.transport().checksum_offset(),
        num_buffers: 0,
    }
}

const fn gso_type(layout: &Layout) -> u8 {
    match (layout.transport(), layout.network()) {
        (Transport::Tcp, Network::Ipv4) => GSO_TCPV4,
        (Transport::Tcp, Network::Ipv6) => GSO_TCPV6,
        (Transport::Udp, _) => GSO_UDP_L4,
    }
}

/// Brings the headers in `frame` up to date for a packet of `len` bytes.
fn rewrite_headers(frame: &mut [u8], layout: &Layout, len: usize, collected: u8) {
    let (l3, l4) = (usize::from(layout.l3()), usize::from(layout.l4()));
    match layout.network() {
        Network::Ipv4 => {
            let id = Ipv4::at(frame, l3).map_or(0, Ipv4::id);
            ipv4::rewrite(frame, l3, length(len.saturating_sub(l3)), id);
        }
        Network::Ipv6 => {
            ipv6::rewrite(frame, l3, length(len.saturating_sub(l3 + ipv6::HEADER_LEN)))
        }
    }
    let l4_len = length(len.saturating_sub(l4));
    let partial = checksum::pseudo_header(frame, layout, u32::from(l4_len)).fold();
    match layout.transport() {
        Transport::Tcp => {
            let flags = Tcp::at(frame, l4).map_or(0, Tcp::flags);
            tcp::rewrite(frame, l4, flags | collected, partial);
        }
        Transport::Udp => udp::rewrite(frame, l4, l4_len, partial),
    }
}

/// The header of a frame that is delivered as it came. `is_verified` says that this engine found
/// the checksum right. A partial checksum is finished for a guest without `GUEST_CSUM`.
#[inline(always)]
pub(super) fn plain_header(
    frame: &mut [u8],
    host: &VnetHdr,
    is_verified: bool,
    guest_csum: bool,
) -> Result<VnetHdr, DropReason> {
    if host.flags & F_NEEDS_CSUM != 0 {
        return partial_header(frame, host, guest_csum);
    }
    let is_valid = is_verified || host.flags & F_DATA_VALID != 0;
    Ok(PLAIN[usize::from(is_valid && guest_csum)])
}

/// Headers of frames with nothing to be said but whether they were verified. Copied whole: writing
/// one field by field and reading it back in larger pieces would wait for the store buffer.
static PLAIN: [VnetHdr; 2] = [
    VnetHdr::PLAIN,
    VnetHdr {
        flags: F_DATA_VALID,
        ..VnetHdr::PLAIN
    },
];

#[cold]
#[inline(never)]
fn partial_header(
    frame: &mut [u8],
    host: &VnetHdr,
    guest_csum: bool,
) -> Result<VnetHdr, DropReason> {
    let field_end = usize::from(host.csum_start) + usize::from(host.csum_offset) + 2;
    if field_end > frame.len() {
        return Err(DropReason::ChecksumPlace);
    }
    if guest_csum {
        return Ok(VnetHdr {
            flags: F_NEEDS_CSUM,
            csum_start: host.csum_start,
            csum_offset: host.csum_offset,
            ..VnetHdr::default()
        });
    }
    checksum::complete(frame, host.csum_start, host.csum_offset)
        .map_err(|_| DropReason::ChecksumPlace)?;
    Ok(VnetHdr::default())
}

/// A length that the size limit keeps below 2^16 (LIM-1, LIM-2).
fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
