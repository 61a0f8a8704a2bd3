//! Link and network rules: what must be equal, below the transport, for two frames to merge.

use super::headers::{Headers, NetworkHeader};
use super::stats::Conflict;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;

/// How the IPv4 identification of a held packet behaves (rule IP4-8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IdMode {
    /// One segment only, or IPv6.
    #[default]
    Undecided,
    /// The same in every segment; only with DF set.
    Fixed,
    /// One more in each segment.
    Incrementing,
}

/// The first rule of sections 4.1 to 4.3 by which two frames of one flow differ.
pub(super) fn difference(first: &Headers<'_>, new: &Headers<'_>) -> Option<Conflict> {
    if !is_same_link(first, new) {
        return Some(Conflict::Ethernet);
    }
    if !is_same_vlan_priority(first, new) {
        return Some(Conflict::VlanPriority);
    }
    match (first.network, new.network) {
        (NetworkHeader::Ipv4(first), NetworkHeader::Ipv4(new)) => ipv4_difference(first, new),
        (NetworkHeader::Ipv6(first, first_ext), NetworkHeader::Ipv6(new, new_ext)) => {
            ipv6_difference(first, new).or_else(|| {
                (!is_same_extensions(first, first_ext, new, new_ext))
                    .then_some(Conflict::Ip6Extensions)
            })
        }
        _ => Some(Conflict::Headers),
    }
}

fn ipv4_difference(first: Ipv4<'_>, new: Ipv4<'_>) -> Option<Conflict> {
    if first.ttl() != new.ttl() {
        return Some(Conflict::Ttl);
    }
    if first.tos() != new.tos() {
        return Some(Conflict::Tos);
    }
    (first.is_df() != new.is_df()).then_some(Conflict::Df)
}

fn ipv6_difference(first: Ipv6<'_>, new: Ipv6<'_>) -> Option<Conflict> {
    if first.flow_label() != new.flow_label() {
        return Some(Conflict::FlowLabel);
    }
    if first.traffic_class() != new.traffic_class() {
        return Some(Conflict::Tos);
    }
    (first.hop_limit() != new.hop_limit()).then_some(Conflict::Ttl)
}

/// ETH-1. The EtherType chain is part of the flow key.
fn is_same_link(first: &Headers<'_>, new: &Headers<'_>) -> bool {
    first.macs == new.macs
}

/// VLAN-1: priority and DEI; TPID and ID are part of the flow key.
fn is_same_vlan_priority(first: &Headers<'_>, new: &Headers<'_>) -> bool {
    first.tags == new.tags
}

/// IP6-3: all bytes between the fixed header and L4, and the chain of next-header values.
fn is_same_extensions(first: Ipv6<'_>, first_ext: &[u8], new: Ipv6<'_>, new_ext: &[u8]) -> bool {
    first.next_header() == new.next_header() && first_ext == new_ext
}

/// IP4-8: the second segment decides the mode, the others keep to it. `ahead` is how far the
/// identification is ahead of the first, `segs` the number of segments so far.
///
/// Source: `inet_gro_flush`, `include/net/gro.h`; fixed only with DF (DEV-4).
#[inline]
pub(super) const fn next_id_mode(
    mode: IdMode,
    ahead: u16,
    is_df: bool,
    segs: u32,
) -> Option<IdMode> {
    match mode {
        IdMode::Undecided if ahead == 1 => Some(IdMode::Incrementing),
        IdMode::Undecided if ahead == 0 && is_df => Some(IdMode::Fixed),
        IdMode::Incrementing if ahead as u32 == segs & 0xffff => Some(mode),
        IdMode::Fixed if ahead == 0 => Some(mode),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::IdMode::{Fixed, Incrementing, Undecided};
    use super::next_id_mode;

    #[test]
    fn f05_the_second_segment_decides_how_identifications_go_on() {
        for is_df in [false, true] {
            let fixed = is_df.then_some(Fixed);
            assert_eq!(next_id_mode(Undecided, 0, is_df, 1), fixed);
            assert_eq!(next_id_mode(Undecided, 1, is_df, 1), Some(Incrementing));
            assert_eq!(next_id_mode(Undecided, 2, is_df, 1), None);
            assert_eq!(next_id_mode(Undecided, u16::MAX, is_df, 1), None);
        }
        for (segs, ahead) in [(2, 2), (65535, 65535), (65536, 0), (65537, 1)] {
            let next = |mode, ahead| next_id_mode(mode, ahead, true, segs);
            assert_eq!(next(Incrementing, ahead), Some(Incrementing));
            assert_eq!(next(Incrementing, ahead.wrapping_add(1)), None);
            assert_eq!(next(Incrementing, ahead.wrapping_sub(1)), None);
            assert_eq!(next(Fixed, 0), Some(Fixed));
            assert_eq!(next(Fixed, 1), None);
        }
    }
}
