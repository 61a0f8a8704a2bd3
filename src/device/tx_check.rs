//! What the header of a frame from the guest may say (rule TX-5). Nothing in it is trusted.

use super::features::Offloads;
use crate::wire::VnetHdr;
use crate::wire::vnet_hdr::{
    F_NEEDS_CSUM, F_UDP_TUNNEL_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4,
};

/// Bytes of an Ethernet header.
const ETH_HLEN: usize = 14;
/// Bytes of one VLAN tag.
const VLAN_HLEN: usize = 4;
/// Largest frame taken: 65535 bytes of IP, an Ethernet header and two VLAN tags.
pub(super) const FRAME_MAX: usize = 65535 + ETH_HLEN + 2 * VLAN_HLEN;
/// Segment size that Linux keeps for itself (rule LIM-5).
const GSO_BY_FRAGS: u16 = 65535;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;

/// Why a frame from the guest was not handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxDrop {
    /// The chain is not valid.
    BadChain,
    /// Shorter than the virtio-net header and an Ethernet header.
    TooShort,
    /// Longer than any frame may be.
    TooLong,
    /// A segmentation type that is unknown, or bits and flags beside it that do not fit.
    GsoType,
    /// A checksum or segmentation that was not negotiated.
    NotNegotiated,
    /// A segmentation type without a partial checksum.
    GsoWithoutCsum,
    /// A segment size that is not possible.
    GsoSize,
    /// The checksum lies beyond the frame, or where the segmentation type does not allow it.
    CsumOffset,
    /// The frame is not what its segmentation type says, or its headers are cut.
    Headers,
}

impl TxDrop {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::BadChain,
        Self::TooShort,
        Self::TooLong,
        Self::GsoType,
        Self::NotNegotiated,
        Self::GsoWithoutCsum,
        Self::GsoSize,
        Self::CsumOffset,
        Self::Headers,
    ];

    /// The reason as it appears in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadChain => "bad_chain",
            Self::TooShort => "too_short",
            Self::TooLong => "too_long",
            Self::GsoType => "gso_type",
            Self::NotNegotiated => "not_negotiated",
            Self::GsoWithoutCsum => "gso_without_csum",
            Self::GsoSize => "gso_size",
            Self::CsumOffset => "csum_offset",
            Self::Headers => "headers",
        }
    }
}

/// Checks the header of a frame of `frame_len` bytes that begins with `head`, and returns it with
/// only what is meant: unknown flags and unused fields 0, `hdr_len` computed.
///
/// # Errors
/// The frame must be dropped.
pub(super) fn check(
    vnet: &VnetHdr,
    head: &[u8],
    frame_len: usize,
    allowed: Offloads,
) -> Result<VnetHdr, TxDrop> {
    if frame_len < ETH_HLEN {
        return Err(TxDrop::TooShort);
    }
    // The types of tunnels, which it belongs to, are refused below.
    if vnet.flags & F_UDP_TUNNEL_CSUM != 0 {
        return Err(TxDrop::GsoType);
    }
    let mut checked = VnetHdr::default();
    if vnet.flags & F_NEEDS_CSUM != 0 {
        if !allowed.csum {
            return Err(TxDrop::NotNegotiated);
        }
        let end = usize::from(vnet.csum_start) + usize::from(vnet.csum_offset) + 2;
        if end > frame_len {
            return Err(TxDrop::CsumOffset);
        }
        checked.flags = F_NEEDS_CSUM;
        checked.csum_start = vnet.csum_start;
        checked.csum_offset = vnet.csum_offset;
        // A tap wants the header to reach behind the checksum, and never beyond the frame.
        checked.hdr_len = u16::try_from(end).map_err(|_| TxDrop::CsumOffset)?;
    }
    if vnet.gso_type == GSO_NONE {
        return Ok(checked);
    }
    let kind = Kind::of(vnet.gso_type, allowed)?;
    if checked.flags & F_NEEDS_CSUM == 0 {
        return Err(TxDrop::GsoWithoutCsum);
    }
    if vnet.gso_size == 0 || vnet.gso_size == GSO_BY_FRAGS {
        return Err(TxDrop::GsoSize);
    }
    if vnet.csum_offset != kind.csum_offset() {
        return Err(TxDrop::CsumOffset);
    }
    let l4 = locate_l4(head).ok_or(TxDrop::Headers)?;
    let is_kind = match kind {
        Kind::Tcp4 => !l4.is_ipv6 && l4.protocol == IPPROTO_TCP,
        Kind::Tcp6 => l4.is_ipv6 && l4.protocol == IPPROTO_TCP,
        Kind::Udp => l4.protocol == IPPROTO_UDP,
    };
    if !is_kind || l4.offset != usize::from(vnet.csum_start) {
        return Err(TxDrop::Headers);
    }
    let hdr_len = l4.offset + kind.header_len(head.get(l4.offset..).unwrap_or_default())?;
    if hdr_len > head.len() {
        return Err(TxDrop::Headers);
    }
    checked.gso_type = vnet.gso_type;
    checked.gso_size = vnet.gso_size;
    checked.hdr_len = u16::try_from(hdr_len).map_err(|_| TxDrop::Headers)?;
    Ok(checked)
}

/// The segmentation types that can be negotiated.
#[derive(Clone, Copy)]
enum Kind {
    Tcp4,
    Tcp6,
    Udp,
}

impl Kind {
    fn of(gso_type: u8, allowed: Offloads) -> Result<Self, TxDrop> {
        let has_ecn = gso_type & GSO_ECN != 0;
        let (kind, is_allowed) = match gso_type & !GSO_ECN {
            GSO_TCPV4 => (Self::Tcp4, allowed.tso4),
            GSO_TCPV6 => (Self::Tcp6, allowed.tso6),
            GSO_UDP_L4 if !has_ecn => (Self::Udp, allowed.uso),
            _ => return Err(TxDrop::GsoType),
        };
        if is_allowed && (allowed.ecn || !has_ecn) {
            Ok(kind)
        } else {
            Err(TxDrop::NotNegotiated)
        }
    }

    const fn csum_offset(self) -> u16 {
        match self {
            Self::Tcp4 | Self::Tcp6 => 16,
            Self::Udp => 6,
        }
    }

    /// Bytes of the transport header that `l4` begins with.
    fn header_len(self, l4: &[u8]) -> Result<usize, TxDrop> {
        match self {
            Self::Udp => Ok(8),
            Self::Tcp4 | Self::Tcp6 => {
                let words = usize::from(l4.get(12).ok_or(TxDrop::Headers)? >> 4);
                if words < 5 {
                    return Err(TxDrop::Headers);
                }
                Ok(words * 4)
            }
        }
    }
}

/// Where the transport header begins.
struct L4 {
    is_ipv6: bool,
    protocol: u8,
    offset: usize,
}

/// Finds the transport header behind at most two VLAN tags and an IP header with its extensions;
/// `None` for anything else, and when the headers are cut.
fn locate_l4(head: &[u8]) -> Option<L4> {
    let be16 = |at: usize| Some(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]));
    let mut l3 = ETH_HLEN;
    while l3 < ETH_HLEN + 2 * VLAN_HLEN && matches!(be16(l3 - 2)?, ETH_P_8021Q | ETH_P_8021AD) {
        l3 += VLAN_HLEN;
    }
    let version_byte = *head.get(l3)?;
    match be16(l3 - 2)? {
        ETH_P_IP if version_byte >> 4 == 4 => {
            let words = usize::from(version_byte & 0xf);
            (words >= 5).then_some(L4 {
                is_ipv6: false,
                protocol: *head.get(l3 + 9)?,
                offset: l3 + words * 4,
            })
        }
        ETH_P_IPV6 if version_byte >> 4 == 6 => {
            let mut protocol = *head.get(l3 + 6)?;
            let mut offset = l3 + 40;
            // Hop-by-hop, routing and destination options, at most 8 (rule IP6-3).
            for _ in 0..8 {
                if !matches!(protocol, 0 | 43 | 60) {
                    break;
                }
                protocol = *head.get(offset)?;
                offset += 8 + usize::from(*head.get(offset + 1)?) * 8;
            }
            Some(L4 {
                is_ipv6: true,
                protocol,
                offset,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::all_features;
    use super::*;

    /// An Ethernet frame with these tags, a version of IP and a transport protocol, headers only.
    fn frame(tags: &[u16], is_ipv6: bool, protocol: u8) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        for tag in tags {
            bytes.extend(tag.to_be_bytes());
            bytes.extend([0, 7]);
        }
        if is_ipv6 {
            bytes.extend(ETH_P_IPV6.to_be_bytes());
            bytes.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
            bytes.extend([0xfd; 32]);
        } else {
            bytes.extend(ETH_P_IP.to_be_bytes());
            bytes.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol]);
            bytes.extend([10; 10]);
        }
        // A TCP header with timestamps; UDP looks at none of it.
        let mut l4 = [0; 32];
        l4[12] = 8 << 4;
        bytes.extend(l4);
        bytes
    }

    /// A header that fits `frame`, for its transport header at `l4`.
    fn header(gso_type: u8, l4: u16) -> VnetHdr {
        let is_udp = gso_type & !GSO_ECN == GSO_UDP_L4;
        VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type,
            hdr_len: 0xffff,
            gso_size: 1448,
            csum_start: l4,
            csum_offset: if is_udp { 6 } else { 16 },
            num_buffers: 0xffff,
        }
    }

    fn everything() -> Offloads {
        all_features().host_offloads()
    }

    fn run(vnet: &VnetHdr, head: &[u8]) -> Result<VnetHdr, TxDrop> {
        check(vnet, head, 4000, everything())
    }

    #[test]
    fn numbers_follow_the_order_of_the_list() {
        for (number, reason) in TxDrop::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }

    #[test]
    fn a_segmentation_header_passes_with_its_length_computed() {
        for (tags, extra) in [(&[][..], 0), (&[0x8100], 4), (&[0x88a8, 0x8100], 8)] {
            for (gso_type, is_ipv6, protocol, l4, l4_len) in [
                (GSO_TCPV4, false, IPPROTO_TCP, 34, 32),
                (GSO_TCPV4 | GSO_ECN, false, IPPROTO_TCP, 34, 32),
                (GSO_TCPV6, true, IPPROTO_TCP, 54, 32),
                (GSO_UDP_L4, false, IPPROTO_UDP, 34, 8),
                (GSO_UDP_L4, true, IPPROTO_UDP, 54, 8),
            ] {
                let l4 = l4 + extra;
                let vnet = header(gso_type, l4);
                let expected = VnetHdr {
                    hdr_len: l4 + l4_len,
                    num_buffers: 0,
                    ..vnet
                };
                let head = frame(tags, is_ipv6, protocol);
                assert_eq!(run(&vnet, &head), Ok(expected), "{gso_type} {tags:x?}");
            }
        }
    }

    #[test]
    fn extension_headers_are_walked() {
        let mut head = frame(&[], true, 0);
        // Hop-by-hop of 8 bytes, destination options of 16, then TCP.
        let options = [[60, 0, 1, 4, 0, 0, 0, 0], [6, 1, 1, 12, 0, 0, 0, 0], [0; 8]].concat();
        head.splice(54..54, options);
        let vnet = header(GSO_TCPV6, 78);
        assert_eq!(run(&vnet, &head).map(|checked| checked.hdr_len), Ok(110));
    }

    #[test]
    fn a_plain_frame_keeps_nothing_of_its_header() {
        let vnet = VnetHdr {
            flags: !(F_NEEDS_CSUM | F_UDP_TUNNEL_CSUM),
            gso_type: GSO_NONE,
            ..header(GSO_TCPV4, 34)
        };
        assert_eq!(run(&vnet, &frame(&[], false, 6)), Ok(VnetHdr::default()));
    }

    #[test]
    fn f38_flags_that_mean_nothing_here_are_left_out() {
        let vnet = VnetHdr {
            flags: !F_UDP_TUNNEL_CSUM,
            ..header(GSO_TCPV4, 34)
        };
        let checked = run(&vnet, &frame(&[], false, IPPROTO_TCP)).unwrap();
        assert_eq!(checked.flags, F_NEEDS_CSUM);
    }

    #[test]
    fn a_partial_checksum_passes_and_the_length_reaches_behind_it() {
        let vnet = VnetHdr {
            gso_type: GSO_NONE,
            hdr_len: 3,
            ..header(GSO_TCPV4, 34)
        };
        let expected = VnetHdr {
            flags: F_NEEDS_CSUM,
            hdr_len: 52,
            csum_start: 34,
            csum_offset: 16,
            ..VnetHdr::default()
        };
        let head = frame(&[], false, 6);
        assert_eq!(check(&vnet, &head, 52, everything()), Ok(expected));
        let short = check(&vnet, &head, 51, everything());
        assert_eq!(short, Err(TxDrop::CsumOffset));
    }

    #[test]
    fn f38_each_lie_is_refused_by_its_name() {
        let head = frame(&[], false, IPPROTO_TCP);
        let good = header(GSO_TCPV4, 34);
        assert!(run(&good, &head).is_ok());
        for (vnet, reason) in [
            (
                VnetHdr {
                    gso_type: 2,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                VnetHdr {
                    gso_type: 3,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                VnetHdr {
                    gso_type: 0x21,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                VnetHdr {
                    gso_type: 0x41,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                VnetHdr {
                    gso_type: GSO_ECN,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                VnetHdr {
                    gso_type: GSO_UDP_L4 | GSO_ECN,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                // Both types of a tunnel at once.
                VnetHdr {
                    gso_type: 0x61,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (
                // The sum of a tunnel without a tunnel.
                VnetHdr {
                    flags: F_NEEDS_CSUM | F_UDP_TUNNEL_CSUM,
                    ..good
                },
                TxDrop::GsoType,
            ),
            (VnetHdr { flags: 0, ..good }, TxDrop::GsoWithoutCsum),
            (
                VnetHdr {
                    gso_size: 0,
                    ..good
                },
                TxDrop::GsoSize,
            ),
            (
                VnetHdr {
                    gso_size: 65535,
                    ..good
                },
                TxDrop::GsoSize,
            ),
            (
                VnetHdr {
                    csum_offset: 6,
                    ..good
                },
                TxDrop::CsumOffset,
            ),
            (
                VnetHdr {
                    csum_start: 65535,
                    ..good
                },
                TxDrop::CsumOffset,
            ),
            (
                VnetHdr {
                    csum_offset: 65535,
                    ..good
                },
                TxDrop::CsumOffset,
            ),
            (
                VnetHdr {
                    csum_start: 38,
                    ..good
                },
                TxDrop::Headers,
            ),
            (
                VnetHdr {
                    gso_type: GSO_TCPV6,
                    ..good
                },
                TxDrop::Headers,
            ),
            (header(GSO_UDP_L4, 34), TxDrop::Headers),
        ] {
            assert_eq!(run(&vnet, &head), Err(reason), "{vnet:?}");
        }
        let mut short_tcp = head.clone();
        short_tcp[34 + 12] = 4 << 4;
        assert_eq!(run(&good, &short_tcp), Err(TxDrop::Headers));
        assert_eq!(run(&good, &head[..60]), Err(TxDrop::Headers));
        assert_eq!(
            check(&good, &head[..13], 13, everything()),
            Err(TxDrop::TooShort)
        );
    }

    #[test]
    fn f38_what_was_not_negotiated_is_refused() {
        let tcp4 = frame(&[], false, IPPROTO_TCP);
        let tcp6 = frame(&[], true, IPPROTO_TCP);
        let udp = frame(&[], false, IPPROTO_UDP);
        let all = everything();
        for (head, vnet, allowed) in [
            (
                &tcp4,
                header(GSO_TCPV4, 34),
                Offloads { csum: false, ..all },
            ),
            (&tcp4, header(GSO_NONE, 34), Offloads { csum: false, ..all }),
            (
                &tcp4,
                header(GSO_TCPV4, 34),
                Offloads { tso4: false, ..all },
            ),
            (
                &tcp6,
                header(GSO_TCPV6, 54),
                Offloads { tso6: false, ..all },
            ),
            (&udp, header(GSO_UDP_L4, 34), Offloads { uso: false, ..all }),
            (
                &tcp4,
                header(GSO_TCPV4 | GSO_ECN, 34),
                Offloads { ecn: false, ..all },
            ),
        ] {
            assert!(check(&vnet, head, 4000, all).is_ok());
            let result = check(&vnet, head, 4000, allowed);
            assert_eq!(result, Err(TxDrop::NotNegotiated), "{vnet:?}");
        }
    }
}
