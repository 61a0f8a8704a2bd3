//! Whether a frame joins the held packet of its flow: all rules in their order.

use super::config::GroConfig;
use super::ethernet_len;
use super::headers::{Headers, TransportHeader};
use super::network::{self, IdMode};
use super::packet::HeldPacket;
use super::stats::Conflict;
use super::{tcp, udp};

/// What changes in the held packet when the frame joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) id_mode: IdMode,
    /// FIN and PSH of the joining segment.
    pub(super) flags: u8,
    /// Whether the packet is complete with it.
    pub(super) closes: bool,
}

/// A frame that wants to join.
pub(super) struct Joining<'a> {
    pub(super) headers: Headers<'a>,
    /// Payload bytes.
    pub(super) payload_len: u32,
    /// Metadata that has to be equal (META-1).
    pub(super) merge_mark: u64,
}

/// Decides, and says which rule forbids it. The checksum is not looked at.
#[inline]
pub(super) fn check<B: AsRef<[u8]>>(
    held: &HeldPacket<B>,
    new: &Joining<'_>,
    config: &GroConfig,
) -> Result<Join, Conflict> {
    let first = Headers::read(held.packet.head.as_ref(), &held.layout).ok_or(Conflict::Headers)?;
    if held.merge_mark != new.merge_mark {
        return Err(Conflict::Metadata);
    }
    let segs = held.packet.segs;
    let id_mode = network::check(&first, &new.headers, held.id_mode, segs)?;
    let first_len = held.layout.payload_len;
    let (flags, closes) = match (first.transport, new.headers.transport) {
        (TransportHeader::Tcp(first, first_options), TransportHeader::Tcp(tcp, options)) => {
            let expected = tcp::Expected {
                next_seq: held.next_seq,
                mss: first_len,
            };
            let joined = tcp::check(
                (first, first_options),
                (tcp, options),
                new.payload_len,
                expected,
            )?;
            if segs >= config.gro_max_segs {
                return Err(Conflict::Segments);
            }
            (joined.flags, joined.closes)
        }
        (TransportHeader::Udp(_), TransportHeader::Udp(_)) => {
            (0, udp::check(new.payload_len, first_len, segs)?)
        }
        _ => return Err(Conflict::Headers),
    };
    if !fits_size(held, new.payload_len, config) {
        return Err(Conflict::Size);
    }
    Ok(Join {
        id_mode,
        flags,
        closes,
    })
}

/// LIM-1 and LIM-2: bytes behind the Ethernet header, tags included.
#[inline]
fn fits_size<B>(held: &HeldPacket<B>, payload_len: u32, config: &GroConfig) -> bool {
    let len = held.packet.len + payload_len as usize;
    ethernet_len(len) <= config.size_limit()
}
