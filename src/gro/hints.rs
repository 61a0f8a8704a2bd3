//! A guess which packet a frame continues, from a few bytes of it and before it is parsed.
//!
//! A wrong guess costs nothing but time: whether the frame does continue that packet is found out
//! by comparing all its headers.

use super::alike::SPAN;
use super::store::PacketId;
use crate::wire::ethernet::{self, TYPE_IPV6};
use crate::wire::{ipv4, ipv6};

/// Flows that are told apart; more than can be held, so that few share a place.
const PLACES: usize = 256;

/// Which packets were last seen.
pub(super) struct Hints {
    /// By any frame: frames of a flow come in bursts.
    last: PacketId,
    /// By a frame at each place.
    places: [PacketId; PLACES],
}

impl Hints {
    pub(super) fn new() -> Self {
        Self {
            last: PacketId::NONE,
            places: [PacketId::NONE; PLACES],
        }
    }

    /// The packet that the last frame belonged to.
    #[inline(always)]
    pub(super) const fn last(&self) -> PacketId {
        self.last
    }

    /// The packet that a frame most likely continues if it is not the last one.
    #[inline(always)]
    pub(super) fn of(&self, head: &[u8; SPAN]) -> PacketId {
        self.places[usize::from(place_of(head))]
    }

    #[inline(always)]
    pub(super) fn set_last(&mut self, id: PacketId) {
        self.last = id;
    }

    /// Remembers where a frame went.
    #[inline(always)]
    pub(super) fn set(&mut self, frame: &[u8], id: PacketId) {
        if let Some(head) = frame.first_chunk() {
            self.places[usize::from(place_of(head))] = id;
        }
        self.last = id;
    }
}

/// The place of a frame: from what are its ports, if it has no tags and no extensions.
#[inline(always)]
fn place_of(head: &[u8; SPAN]) -> u8 {
    /// Bits of the golden ratio's fractional part: spreads neighbouring ports.
    const SPREAD: u32 = 0x9e37_79b1;
    const V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
    const V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
    let at = if head[ethernet::MACS_LEN] == TYPE_IPV6.to_be_bytes()[0] {
        V6
    } else {
        V4
    };
    let ports = [head[at], head[at + 1], head[at + 2], head[at + 3]];
    let [.., place] = (u32::from_le_bytes(ports).wrapping_mul(SPREAD)).to_le_bytes();
    place
}
