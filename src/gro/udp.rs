//! UDP rules (section 4.5). Source: `udp_gro_receive_segment`, `net/ipv4/udp_offload.c`.

use super::config::PortSet;
use super::stats::{Bail, Conflict};
use crate::wire::udp::Udp;

/// Most datagrams in one packet (UDP-5); the oldest guests take no more.
///
/// Source: `UDP_GRO_CNT_MAX`, `net/ipv4/udp_offload.c`.
pub(super) const MAX_SEGS: u32 = 64;

/// UDP-2 (first half) and UDP-6: whether a sound datagram may take part at all.
#[inline]
pub(super) fn check_eligible(new: Udp<'_>, excluded: &PortSet) -> Result<(), Bail> {
    if new.checksum() == 0 {
        return Err(Bail::UdpNoChecksum);
    }
    if excluded.contains(new.destination_port()) {
        return Err(Bail::UdpPort);
    }
    Ok(())
}

/// UDP-4 and UDP-5: a datagram of `len` payload bytes joins a packet of `segs` datagrams whose
/// first has `first_len`. Returns whether nothing may follow.
#[inline]
pub(super) fn check_payload(len: u32, first_len: u32, segs: u32) -> Result<bool, Conflict> {
    if len > first_len {
        return Err(Conflict::LargerPayload);
    }
    Ok(len < first_len || segs + 1 >= MAX_SEGS)
}
