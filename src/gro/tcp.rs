//! TCP rules (section 4.4), one function each. Source: `tcp_gro_receive`, `net/ipv4/tcp_offload.c`.

use super::headers::same_words;
use super::stats::Conflict;
use crate::wire::tcp::{CWR, FIN, PSH, RST, SYN, Tcp, URG};

/// Flags that may differ between the segments of one packet; they are collected.
const COLLECTED: u8 = FIN | PSH;
/// Flags of a segment that never starts a packet (TCP-12).
const NEVER_HELD: u8 = URG | PSH | RST | SYN | FIN | CWR;
/// [`COLLECTED`] within the flag word.
const COLLECTED_IN_WORD: u32 = (COLLECTED as u32) << 16;

/// A TCP header with its options.
pub(super) type Segment<'a> = (Tcp<'a>, &'a [u8]);

/// What a held packet expects of its next segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Sequence number behind the payload held so far.
    pub(super) next_seq: u32,
    /// Payload bytes of the first segment.
    pub(super) mss: u32,
}

/// What a segment that joins brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// FIN and PSH, to be shown by the merged packet.
    pub(super) flags: u8,
    /// Whether nothing may follow (TCP-10).
    pub(super) closes: bool,
}

/// Applies rules TCP-2 to TCP-11 to a segment of `len` payload bytes.
#[inline]
pub(super) fn check(
    first: Segment<'_>,
    new: Segment<'_>,
    len: u32,
    expected: Expected,
) -> Result<Joined, Conflict> {
    if !has_payload(len) {
        return Err(Conflict::NoPayload);
    }
    if has_cwr(new.0) {
        return Err(Conflict::Cwr);
    }
    if !is_same_flag_word(first.0, new.0) {
        return Err(Conflict::FlagWord);
    }
    if !is_same_ack(first.0, new.0) {
        return Err(Conflict::Acknowledgement);
    }
    if !is_same_options(first.1, new.1) {
        return Err(Conflict::Options);
    }
    if !is_same_urgent_pointer(first.0, new.0) {
        return Err(Conflict::UrgentPointer);
    }
    if !is_next_in_sequence(new.0, expected.next_seq) {
        return Err(Conflict::Sequence);
    }
    if !fits_segment_size(len, expected.mss) {
        return Err(Conflict::LargerPayload);
    }
    let flags = new.0.flags() & COLLECTED;
    Ok(Joined {
        flags,
        closes: len < expected.mss || flags != 0,
    })
}

/// TCP-12: whether a segment may wait for others. ACK need not be set.
#[inline]
pub(super) fn may_be_held(new: Tcp<'_>, len: u32) -> bool {
    has_payload(len) && new.flags() & NEVER_HELD == 0
}

/// TCP-11.
#[inline]
const fn has_payload(len: u32) -> bool {
    len > 0
}

/// TCP-2. A held packet never has CWR, because TCP-12 keeps it out.
#[inline]
fn has_cwr(new: Tcp<'_>) -> bool {
    new.flags() & CWR != 0
}

/// TCP-3 and TCP-5: data offset, reserved bits, flags and window, but for FIN and PSH.
#[inline]
fn is_same_flag_word(first: Tcp<'_>, new: Tcp<'_>) -> bool {
    (first.flag_word() ^ new.flag_word()) & !COLLECTED_IN_WORD == 0
}

/// TCP-4.
#[inline]
fn is_same_ack(first: Tcp<'_>, new: Tcp<'_>) -> bool {
    first.ack() == new.ack()
}

/// TCP-6: values, order and padding.
#[inline]
fn is_same_options(first: &[u8], new: &[u8]) -> bool {
    same_words(first, new)
}

/// TCP-7: also while URG is clear, or cutting the packet again would change it.
#[inline]
fn is_same_urgent_pointer(first: Tcp<'_>, new: Tcp<'_>) -> bool {
    first.urgent_pointer() == new.urgent_pointer()
}

/// TCP-8, modulo 2^32.
#[inline]
fn is_next_in_sequence(new: Tcp<'_>, next_seq: u32) -> bool {
    new.seq() == next_seq
}

/// TCP-9: the first segment's payload is the segment size of the packet.
#[inline]
const fn fits_segment_size(len: u32, mss: u32) -> bool {
    len <= mss
}
