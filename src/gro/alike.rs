//! Whether two frames are equal in every header bit that has to be equal, found in one sweep.
//!
//! The rules of `network` and `tcp` look at single fields. For a full segment of a stream, which
//! is nearly every frame that matters, all of them say the same: nothing differs. So that is asked
//! first, by comparing the headers in blocks under a mask; only if something differs are the
//! rules asked one by one which it was. A test holds the two together.
//!
//! The mask covers everything but the IPv4 identification, the TCP sequence number and checksums.
//! So a frame that is alike belongs to the same flow, has its headers in the same places and, if it
//! is as long, the same payload length.

use crate::wire::ethernet::{HEADER_LEN, MAX_TAGS, TAG_LEN};
use crate::wire::{Layout, Network, Transport, ipv4, ipv6, tcp, udp};

/// Bytes that are compared: IPv6 with two tags and timestamps needs 94. Frames with longer headers
/// merge as well, by the rules alone.
pub(super) const SPAN: usize = BLOCKS * BLOCK;
const BLOCKS: usize = 6;
const BLOCK: usize = 16;

/// Bytes from the start of a frame.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub(super) struct Head(pub(super) [u8; SPAN]);

impl Head {
    /// That of no frame.
    pub(super) const NONE: Self = Self([0; SPAN]);
}

/// Lengths of a TCP header in words, from 5 to 15, and a UDP header as the first.
const TRANSPORTS: usize = 12;

/// What has to be equal, by number of tags, network protocol and transport header; for headers
/// without IP options or extensions.
static MASKS: [[[Head; TRANSPORTS]; 2]; MAX_TAGS + 1] = [masks(0), masks(1), masks(2)];

const fn masks(tags: usize) -> [[Head; TRANSPORTS]; 2] {
    let l3 = HEADER_LEN + tags * TAG_LEN;
    // Identification and checksum.
    let ipv4 = &[l3 + 4, l3 + 5, l3 + 10, l3 + 11];
    [
        transports(ipv4, l3 + ipv4::HEADER_LEN),
        transports(&[], l3 + ipv6::HEADER_LEN),
    ]
}

const fn transports(network: &[usize], l4: usize) -> [Head; TRANSPORTS] {
    let mut masks = [Head::NONE; TRANSPORTS];
    // Checksum.
    masks[0] = mask(l4 + udp::HEADER_LEN, network, &[l4 + 6, l4 + 7]);
    // Sequence number and checksum.
    let tcp = &[l4 + 4, l4 + 5, l4 + 6, l4 + 7, l4 + 16, l4 + 17];
    let mut at = 1;
    while at < TRANSPORTS {
        masks[at] = mask(l4 + tcp::HEADER_LEN + 4 * (at - 1), network, tcp);
        at += 1;
    }
    masks
}

/// All bytes before `end` but those that are free.
const fn mask(end: usize, network: &[usize], transport: &[usize]) -> Head {
    let mut mask = Head::NONE;
    let mut at = 0;
    while at < end && at < SPAN {
        mask.0[at] = 0xff;
        at += 1;
    }
    without(without(mask, network), transport)
}

const fn without(mut mask: Head, free: &[usize]) -> Head {
    let mut at = 0;
    while at < free.len() {
        mask.0[free[at]] = 0;
        at += 1;
    }
    mask
}

/// The mask for frames of this layout; `None` for IPv6 extension headers and for headers beyond
/// [`SPAN`], which are rare.
#[inline(always)]
pub(super) fn mask_for(layout: Layout) -> Option<&'static Head> {
    let [l3, l4, end] = [layout.l3(), layout.l4(), layout.payload()].map(usize::from);
    let (network, network_len) = match layout.network() {
        Network::Ipv4 => (0, ipv4::HEADER_LEN),
        Network::Ipv6 => (1, ipv6::HEADER_LEN),
    };
    if l4 != l3 + network_len || end > SPAN {
        return None;
    }
    let transport = match layout.transport() {
        Transport::Tcp => (end.checked_sub(l4 + tcp::HEADER_LEN)?) / 4 + 1,
        Transport::Udp => 0,
    };
    let masks = MASKS.get(l3.checked_sub(HEADER_LEN)? / TAG_LEN)?;
    masks.get(network)?.get(transport)
}

/// Whether two frames are equal under a mask, which ends at `end`. With a single branch, so that
/// the compiler turns it into vector instructions.
#[inline(always)]
pub(super) fn is_alike(mask: &Head, first: &Head, new: &[u8; SPAN], end: u16) -> bool {
    let mut differing = (0..BLOCKS - 1).fold([0; 2], |differing, at| {
        or(differing, difference(mask, first, new, at))
    });
    // Few headers are that long.
    if usize::from(end) > (BLOCKS - 1) * BLOCK {
        differing = or(differing, difference(mask, first, new, BLOCKS - 1));
    }
    differing[0] | differing[1] == 0
}

/// Which bits of the `at`-th block differ.
#[inline(always)]
fn difference(mask: &Head, first: &Head, new: &[u8; SPAN], at: usize) -> [u64; 2] {
    let [mask, first, new] = [block(&mask.0, at), block(&first.0, at), block(new, at)];
    [(first[0] ^ new[0]) & mask[0], (first[1] ^ new[1]) & mask[1]]
}

#[inline(always)]
const fn or(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] | b[0], a[1] | b[1]]
}

/// The `at`-th block of a head.
#[inline(always)]
fn block(bytes: &[u8; SPAN], at: usize) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    [2 * at, 2 * at + 1].map(|at| u64::from_ne_bytes(words[at]))
}
