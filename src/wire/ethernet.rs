//! Ethernet II with up to two VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).
//!
//! ```text
//! | destination 6 | source 6 | [TPID 2 | TCI 2] 0..=2 times | EtherType 2 | payload
//! ```

use super::{Malformed, array_at};

/// Bytes of an Ethernet header without tags.
pub const HEADER_LEN: usize = 14;
/// Bytes of both MAC addresses.
pub const MACS_LEN: usize = 12;
/// Bytes that one VLAN tag adds.
pub const TAG_LEN: usize = 4;
/// Most tags that are understood (rule VLAN-3).
pub const MAX_TAGS: usize = 2;

/// EtherType of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
/// TPID of a customer tag. Source: IEEE 802.1Q.
pub const TPID_CUSTOMER: u16 = 0x8100;
/// TPID of a service tag. Source: IEEE 802.1ad.
pub const TPID_SERVICE: u16 = 0x88a8;

/// Where the link header ends and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// Offset of the network header.
    pub l3: usize,
    /// EtherType behind all tags.
    pub ethertype: u16,
}

/// Walks over the addresses and tags of a frame.
///
/// # Errors
/// [`Malformed::LinkTruncated`] or [`Malformed::TooManyTags`].
#[inline]
pub fn walk(frame: &[u8]) -> Result<LinkHeader, Malformed> {
    let mut l3 = HEADER_LEN;
    loop {
        let Some(raw) = array_at::<2>(frame, l3 - 2) else {
            return Err(Malformed::LinkTruncated);
        };
        let ethertype = u16::from_be_bytes(*raw);
        if !matches!(ethertype, TPID_CUSTOMER | TPID_SERVICE) {
            return Ok(LinkHeader { l3, ethertype });
        }
        if l3 == HEADER_LEN + MAX_TAGS * TAG_LEN {
            return Err(Malformed::TooManyTags);
        }
        l3 += TAG_LEN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tail: &[u8]) -> Vec<u8> {
        [&[0; MACS_LEN], tail].concat()
    }

    #[test]
    fn f08_tags_shift_the_network_header() {
        let ends_at = |tail: &[u8]| walk(&frame(tail)).map(|link| (link.l3, link.ethertype));
        assert_eq!(ends_at(&[8, 0]), Ok((14, TYPE_IPV4)));
        assert_eq!(ends_at(&[0x81, 0, 0, 0, 0x86, 0xdd]), Ok((18, TYPE_IPV6)));
        assert_eq!(
            ends_at(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]),
            Ok((22, TYPE_IPV4))
        );
        assert_eq!(
            ends_at(&[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0]),
            Err(Malformed::TooManyTags)
        );
    }

    #[test]
    fn f07_a_cut_link_header_is_named() {
        let whole = frame(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]);
        for len in 0..whole.len() {
            assert_eq!(walk(&whole[..len]), Err(Malformed::LinkTruncated), "{len}");
        }
    }
}
