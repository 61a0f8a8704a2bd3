//! TCP rules (section 4.4), one function each. Source: `tcp_gro_receive`, `net/ipv4/tcp_offload.c`.

use super::headers::TransportHeader;
use super::stats::Conflict;
use crate::wire::tcp::{CWR, FIN, PSH, RST, SYN, Tcp, URG};

/// Flags that may differ between the segments of one packet; they are collected.
pub(super) const COLLECTED: u8 = FIN | PSH;
/// Flags of a segment that never starts a packet (TCP-12).
const NEVER_HELD: u8 = URG | PSH | RST | SYN | FIN | CWR;
/// [`COLLECTED`] within the flag word.
const COLLECTED_IN_WORD: u32 = (COLLECTED as u32) << 16;

/// What a held packet expects of its next segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Sequence number behind the payload held so far.
    pub(super) next_seq: u32,
    /// Payload bytes of the first segment.
    pub(super) mss: u32,
}

/// The first of rules TCP-2 to TCP-7 by which two segments of one flow differ.
pub(super) fn difference(first: TransportHeader<'_>, new: TransportHeader<'_>) -> Option<Conflict> {
    let (TransportHeader::Tcp(first, first_options), TransportHeader::Tcp(new, options)) =
        (first, new)
    else {
        return None;
    };
    if has_cwr(new) {
        return Some(Conflict::Cwr);
    }
    if !is_same_flag_word(first, new) {
        return Some(Conflict::FlagWord);
    }
    if !is_same_ack(first, new) {
        return Some(Conflict::Acknowledgement);
    }
    if !is_same_options(first_options, options) {
        return Some(Conflict::Options);
    }
    (!is_same_urgent_pointer(first, new)).then_some(Conflict::UrgentPointer)
}

/// Applies rules TCP-8 to TCP-11 to a segment of `len` payload bytes. Returns its FIN and PSH,
/// which the merged packet shall show, and whether nothing may follow it.
#[inline]
pub(super) fn check_payload(
    new: Tcp<'_>,
    len: u32,
    expected: Expected,
) -> Result<(u8, bool), Conflict> {
    if !has_payload(len) {
        return Err(Conflict::NoPayload);
    }
    if !is_next_in_sequence(new, expected.next_seq) {
        return Err(Conflict::Sequence);
    }
    if !fits_segment_size(len, expected.mss) {
        return Err(Conflict::LargerPayload);
    }
    let flags = new.flags() & COLLECTED;
    // TCP-10.
    Ok((flags, len < expected.mss || flags != 0))
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
fn has_cwr(new: Tcp<'_>) -> bool {
    new.flags() & CWR != 0
}

/// TCP-3 and TCP-5: data offset, reserved bits, flags and window, but for FIN and PSH.
fn is_same_flag_word(first: Tcp<'_>, new: Tcp<'_>) -> bool {
    (first.flag_word() ^ new.flag_word()) & !COLLECTED_IN_WORD == 0
}

/// TCP-4.
fn is_same_ack(first: Tcp<'_>, new: Tcp<'_>) -> bool {
    first.ack() == new.ack()
}

/// TCP-6: values, order and padding.
fn is_same_options(first: &[u8], new: &[u8]) -> bool {
    first == new
}

/// TCP-7: also while URG is clear, or cutting the packet again would change it.
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
