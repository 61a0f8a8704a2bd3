//! Whether two frames are equal in every header bit that has to be equal, found in one sweep.
//!
//! The rules of `network` and `tcp` look at single fields. For a frame that merges, which is
//! nearly every frame that matters, all of them say the same: nothing differs. So that is asked
//! first, by comparing the headers in blocks under a mask; only if something differs are the
//! rules asked one by one which it was. A test holds the two together.
//!
//! The mask also covers addresses, ports, VLAN identities and every length field of a header, so
//! a frame that is alike belongs to the same flow and has its headers in the same places.

use crate::wire::ethernet::{HEADER_LEN, MAX_TAGS, TAG_LEN};
use crate::wire::tcp::{FIN, PSH};
use crate::wire::{Layout, Network, Transport, ipv4, ipv6};

const BLOCK: usize = 16;
/// Blocks in a mask: IPv6 with two tags and all TCP options needs 122 bytes.
const BLOCKS: usize = 8;

/// Set where bits have to be equal.
pub(super) type Mask = [[u8; BLOCK]; BLOCKS];

/// Masks by number of tags, network and transport protocol, for headers without extensions.
static MASKS: [[[Mask; 2]; 2]; MAX_TAGS + 1] = [masks(0), masks(1), masks(2)];

const fn masks(tags: usize) -> [[Mask; 2]; 2] {
    let l3 = HEADER_LEN + tags * TAG_LEN;
    // Total length, identification and checksum.
    let ipv4: &[(usize, u8)] = &bytes_from(l3, [2, 3, 4, 5, 10, 11]);
    // Payload length.
    let ipv6: &[(usize, u8)] = &bytes_from(l3, [4, 5]);
    [
        transports(ipv4, l3 + ipv4::HEADER_LEN),
        transports(ipv6, l3 + ipv6::HEADER_LEN),
    ]
}

const fn transports(network: &[(usize, u8)], l4: usize) -> [Mask; 2] {
    // Sequence number and checksum; FIN and PSH, which are collected.
    let tcp = mask(network, &bytes_from(l4, [4, 5, 6, 7, 16, 17]));
    let tcp = mask_more(tcp, &[(l4 + 13, FIN | PSH)]);
    // Length and checksum.
    let udp = mask(network, &bytes_from(l4, [4, 5, 6, 7]));
    [tcp, udp]
}

/// All bits of the bytes at these places behind `start`.
const fn bytes_from<const N: usize>(start: usize, places: [usize; N]) -> [(usize, u8); N] {
    let mut bytes = [(0, 0xff); N];
    let mut at = 0;
    while at < N {
        bytes[at].0 = start + places[at];
        at += 1;
    }
    bytes
}

const fn mask(network: &[(usize, u8)], transport: &[(usize, u8)]) -> Mask {
    mask_more(mask_more([[0xff; BLOCK]; BLOCKS], network), transport)
}

/// Frees bits of a mask.
const fn mask_more(mut mask: Mask, free: &[(usize, u8)]) -> Mask {
    let mut at = 0;
    while at < free.len() {
        let (byte, bits) = free[at];
        mask[byte / BLOCK][byte % BLOCK] &= !bits;
        at += 1;
    }
    mask
}

/// The mask for frames of this layout; `None` for IPv6 extension headers, which are rare.
#[inline]
pub(super) fn mask_for(layout: &Layout) -> Option<&'static Mask> {
    let l3 = usize::from(layout.l3);
    let (network, network_len) = match layout.network {
        Network::Ipv4 => (0, ipv4::HEADER_LEN),
        Network::Ipv6 => (1, ipv6::HEADER_LEN),
    };
    if usize::from(layout.l4) != l3 + network_len {
        return None;
    }
    let transport = match layout.transport {
        Transport::Tcp => 0,
        Transport::Udp => 1,
    };
    let masks = MASKS.get(l3.checked_sub(HEADER_LEN)? / TAG_LEN)?;
    masks.get(network)?.get(transport)
}

/// Compares `len` bytes of headers.
#[inline(always)]
pub(super) fn is_alike(mask: &Mask, first: &[u8], new: &[u8], len: u16) -> bool {
    let len = usize::from(len);
    let (Some(first), Some(new), Some(mask)) = (
        first.get(..len),
        new.get(..len),
        mask.as_flattened().get(..len),
    ) else {
        return false;
    };
    let (first_blocks, _) = first.as_chunks::<BLOCK>();
    let (new_blocks, _) = new.as_chunks::<BLOCK>();
    let (mask_blocks, _) = mask.as_chunks::<BLOCK>();
    // The last block overlaps the one before.
    let (Some(first), Some(new), Some(mask)) =
        (first.last_chunk(), new.last_chunk(), mask.last_chunk())
    else {
        return false;
    };
    let mut differing = difference_under(mask, first, new);
    for ((first, new), mask) in first_blocks.iter().zip(new_blocks).zip(mask_blocks) {
        let [low, high] = difference_under(mask, first, new);
        differing = [differing[0] | low, differing[1] | high];
    }
    differing[0] | differing[1] == 0
}

/// Without branches, so that the compiler turns it into two vector instructions.
#[inline(always)]
fn difference_under(mask: &[u8; BLOCK], first: &[u8; BLOCK], new: &[u8; BLOCK]) -> [u64; 2] {
    let ([first, mask], new) = ([words(first), words(mask)], words(new));
    [(first[0] ^ new[0]) & mask[0], (first[1] ^ new[1]) & mask[1]]
}

#[inline(always)]
fn words(block: &[u8; BLOCK]) -> [u64; 2] {
    let [low, high] = block.as_chunks::<8>().0 else {
        return [0; 2];
    };
    [u64::from_ne_bytes(*low), u64::from_ne_bytes(*high)]
}
