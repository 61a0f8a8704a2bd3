//! Link and network rules: what must be equal, below the transport, for two frames to merge.

use super::headers::{Headers, NetworkHeader, same_words};
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

/// Applies all rules of sections 4.1 to 4.3 that belong to the merge. `first` are the headers of
/// the held packet, which has `segs` segments.
#[inline]
pub(super) fn check(
    first: &Headers<'_>,
    new: &Headers<'_>,
    mode: IdMode,
    segs: u32,
) -> Result<IdMode, Conflict> {
    if !is_same_link(first, new) {
        return Err(Conflict::Ethernet);
    }
    if !is_same_vlan_priority(first, new) {
        return Err(Conflict::VlanPriority);
    }
    match (first.network, new.network) {
        (NetworkHeader::Ipv4(first), NetworkHeader::Ipv4(new)) => {
            check_ipv4(first, new, mode, segs)
        }
        (NetworkHeader::Ipv6(first, first_ext), NetworkHeader::Ipv6(new, new_ext)) => {
            check_ipv6(first, new)?;
            if !is_same_extensions(first, first_ext, new, new_ext) {
                return Err(Conflict::Ip6Extensions);
            }
            Ok(IdMode::Undecided)
        }
        _ => Err(Conflict::Headers),
    }
}

#[inline]
fn check_ipv4(first: Ipv4<'_>, new: Ipv4<'_>, mode: IdMode, segs: u32) -> Result<IdMode, Conflict> {
    if first.ttl() != new.ttl() {
        return Err(Conflict::Ttl);
    }
    if first.tos() != new.tos() {
        return Err(Conflict::Tos);
    }
    if first.is_df() != new.is_df() {
        return Err(Conflict::Df);
    }
    next_id_mode(first, new, mode, segs).ok_or(Conflict::Id)
}

#[inline]
fn check_ipv6(first: Ipv6<'_>, new: Ipv6<'_>) -> Result<(), Conflict> {
    if first.flow_label() != new.flow_label() {
        return Err(Conflict::FlowLabel);
    }
    if first.traffic_class() != new.traffic_class() {
        return Err(Conflict::Tos);
    }
    if first.hop_limit() != new.hop_limit() {
        return Err(Conflict::Ttl);
    }
    Ok(())
}

/// ETH-1. The EtherType chain is part of the flow key.
#[inline]
fn is_same_link(first: &Headers<'_>, new: &Headers<'_>) -> bool {
    first.macs == new.macs
}

/// VLAN-1: priority and DEI; TPID and ID are part of the flow key.
#[inline]
fn is_same_vlan_priority(first: &Headers<'_>, new: &Headers<'_>) -> bool {
    same_words(first.tags, new.tags)
}

/// IP6-3: all bytes between the fixed header and L4, and the chain of next-header values.
#[inline]
fn is_same_extensions(first: Ipv6<'_>, first_ext: &[u8], new: Ipv6<'_>, new_ext: &[u8]) -> bool {
    first.next_header() == new.next_header() && same_words(first_ext, new_ext)
}

/// IP4-8: the second segment decides the mode, the others keep to it.
///
/// Source: `inet_gro_flush`, `include/net/gro.h`; fixed only with DF (DEV-4).
#[inline]
fn next_id_mode(first: Ipv4<'_>, new: Ipv4<'_>, mode: IdMode, segs: u32) -> Option<IdMode> {
    let ahead = u32::from(new.id().wrapping_sub(first.id()));
    match mode {
        IdMode::Undecided if ahead == 1 => Some(IdMode::Incrementing),
        IdMode::Undecided if ahead == 0 && new.is_df() => Some(IdMode::Fixed),
        IdMode::Incrementing if ahead == segs & 0xffff => Some(mode),
        IdMode::Fixed if ahead == 0 => Some(mode),
        _ => None,
    }
}
