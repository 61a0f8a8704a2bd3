//! IPv6 header and the walk over its extension headers (RFC 8200).

use super::{Malformed, array_at, array_at_mut, be16};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Largest payload length, in bytes; jumbo payloads are not understood.
pub const MAX_PAYLOAD: usize = 0xffff;
/// Most extension headers that are walked over (rule IP6-3).
///
/// Source: `IP6_MAX_EXT_HDRS_CNT`, `include/net/ipv6.h`.
pub const MAX_EXTENSIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// A view of the fixed IPv6 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a>(&'a [u8; HEADER_LEN]);

impl<'a> Ipv6<'a> {
    /// Borrows the header at `l3`; `None` if the frame is too short for it.
    #[must_use]
    #[inline]
    pub fn at(frame: &'a [u8], l3: usize) -> Option<Self> {
        array_at(frame, l3).map(Self)
    }

    /// IP version, 6 in a sound header.
    #[must_use]
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Traffic class: DSCP and ECN.
    #[must_use]
    pub const fn traffic_class(self) -> u8 {
        (be16(self.0, 0) >> 4 & 0xff) as u8
    }

    /// Flow label, 20 bits.
    #[must_use]
    pub const fn flow_label(self) -> u32 {
        super::be32(self.0, 0) & 0xf_ffff
    }

    /// Bytes behind the fixed header.
    #[must_use]
    pub const fn payload_len(self) -> u16 {
        be16(self.0, 4)
    }

    /// Type of the first header behind the fixed one.
    #[must_use]
    pub const fn next_header(self) -> u8 {
        self.0[6]
    }

    /// Hop limit.
    #[must_use]
    pub const fn hop_limit(self) -> u8 {
        self.0[7]
    }

    /// Source address, then destination address.
    #[must_use]
    pub fn addresses(self) -> &'a [u8; 32] {
        // The fixed header has exactly 32 bytes behind the first 8.
        self.0.last_chunk().unwrap_or(&[0; 32])
    }
}

/// What stands behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Protocol number of the upper layer.
    pub protocol: u8,
    /// Its offset in the frame.
    pub l4: usize,
}

/// Walks from the fixed header at `l3` over the allowed extension headers.
///
/// # Errors
/// [`Malformed::Ip6Fragment`] at a fragment or authentication header, [`Malformed::Ip6Chain`] if
/// the chain leaves the frame or is longer than [`MAX_EXTENSIONS`].
#[inline]
pub fn walk_extensions(frame: &[u8], l3: usize, first: u8) -> Result<Upper, Malformed> {
    let mut protocol = first;
    let mut l4 = l3 + HEADER_LEN;
    for _ in 0..=MAX_EXTENSIONS {
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION => {}
            FRAGMENT | AUTHENTICATION => return Err(Malformed::Ip6Fragment),
            _ => return Ok(Upper { protocol, l4 }),
        }
        // Next header, then the length in units of 8 bytes without the first 8.
        let Some(&[next, units]) = array_at::<2>(frame, l4) else {
            return Err(Malformed::Ip6Chain);
        };
        protocol = next;
        l4 += (usize::from(units) + 1) * 8;
        if l4 > frame.len() {
            return Err(Malformed::Ip6Chain);
        }
    }
    Err(Malformed::Ip6Chain)
}

/// Whether the packet at `l3` has another stop to make: a routing header with segments left. Its
/// transport checksum then covers an address that is not in the fixed header.
///
/// Source: RFC 8200, 4.4 and 8.1.
#[must_use]
#[cold]
pub fn has_segments_left(frame: &[u8], l3: usize) -> bool {
    let Some(mut protocol) = Ipv6::at(frame, l3).map(Ipv6::next_header) else {
        return false;
    };
    let mut at = l3 + HEADER_LEN;
    for _header in 0..=MAX_EXTENSIONS {
        let Some(&[next, units, _, left]) = array_at::<4>(frame, at) else {
            return false;
        };
        match protocol {
            ROUTING if left != 0 => return true,
            HOP_BY_HOP | ROUTING | DESTINATION => {}
            _ => return false,
        }
        protocol = next;
        at += (usize::from(units) + 1) * 8;
    }
    false
}

/// Sets the payload length of the header at `l3`. A frame without a whole header is left alone.
pub fn rewrite(frame: &mut [u8], l3: usize, payload_len: u16) {
    if let Some(fixed) = array_at_mut::<HEADER_LEN>(frame, l3) {
        [fixed[4], fixed[5]] = payload_len.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(headers: &[&[u8]]) -> Vec<u8> {
        [&[0_u8; HEADER_LEN], headers.concat().as_slice()].concat()
    }

    #[test]
    fn fields_of_a_known_header() {
        let mut bytes = [0_u8; HEADER_LEN];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0x01, 0x02, 6, 63]);
        bytes[8] = 0x20;
        bytes[39] = 0x02;
        let ip = Ipv6::at(&bytes, 0).unwrap();
        assert_eq!((ip.version(), ip.traffic_class()), (6, 0xab));
        assert_eq!((ip.flow_label(), ip.payload_len()), (0x1_2345, 0x102));
        assert_eq!((ip.next_header(), ip.hop_limit()), (6, 63));
        assert_eq!((ip.addresses()[0], ip.addresses()[31]), (0x20, 0x02));
    }

    #[test]
    fn f06_extension_headers_move_the_transport() {
        let frame = chain(&[&[60, 0, 1, 4, 0, 0, 0, 0], &[6, 1], &[0; 14], &[0; 20]]);
        let upper = walk_extensions(&frame, 0, HOP_BY_HOP);
        assert_eq!(
            upper,
            Ok(Upper {
                protocol: 6,
                l4: 64
            })
        );
    }

    #[test]
    fn f06_a_chain_that_leaves_the_frame_is_named() {
        let frame = chain(&[&[6, 1, 0, 0, 0, 0, 0, 0]]);
        assert_eq!(
            walk_extensions(&frame, 0, ROUTING),
            Err(Malformed::Ip6Chain)
        );
        assert_eq!(
            walk_extensions(&chain(&[]), 0, ROUTING),
            Err(Malformed::Ip6Chain)
        );
    }

    #[test]
    fn eight_extension_headers_are_walked_nine_are_not() {
        let option: &[u8] = &[60, 0, 1, 4, 0, 0, 0, 0];
        let last: &[u8] = &[17, 0, 1, 4, 0, 0, 0, 0];
        let eight = chain(&[[option; 7].concat().as_slice(), last]);
        let nine = chain(&[[option; 8].concat().as_slice(), last]);
        assert_eq!(
            walk_extensions(&eight, 0, DESTINATION),
            Ok(Upper {
                protocol: 17,
                l4: 104
            })
        );
        assert_eq!(
            walk_extensions(&nine, 0, DESTINATION),
            Err(Malformed::Ip6Chain)
        );
    }

    #[test]
    fn f06_fragment_and_authentication_are_refused() {
        for refused in [FRAGMENT, AUTHENTICATION] {
            assert_eq!(
                walk_extensions(&chain(&[]), 0, refused),
                Err(Malformed::Ip6Fragment)
            );
        }
    }
}
