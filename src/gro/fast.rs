//! The frame that everybody hopes for: the next segment of the stream, with nothing changed.
//!
//! Says yes only where the parser and all rules of `join` would say yes, with far fewer
//! instructions; a test compares the two. To say no costs nothing but time: the frame then goes
//! the long way, which finds out what is the matter.

use super::alike::is_alike;
use super::join::Join;
use super::network::IdMode;
use super::packet::HeldPacket;
use super::tcp;
use crate::wire::ipv4::Ipv4;
use crate::wire::tcp::Tcp;
use crate::wire::udp::Udp;
use crate::wire::{Layout, Network, Transport, array_at};

/// A frame that continues a held packet.
pub(super) struct Next {
    pub(super) layout: Layout,
    pub(super) join: Join,
}

/// Whether a frame has the same ports, if it has its headers in the same places. Most frames of
/// other flows do not, and need not be looked at further.
#[inline(always)]
pub(super) fn is_likely<B: AsRef<[u8]>>(held: &HeldPacket<B>, frame: &[u8]) -> bool {
    let l4 = usize::from(held.layout.l4);
    array_at::<4>(frame, l4) == array_at::<4>(held.packet.head.as_ref(), l4)
}

/// Whether a frame, of which nothing is known yet, continues a held packet in the plainest way.
/// Its transport checksum is not looked at.
#[inline(always)]
pub(super) fn next<B: AsRef<[u8]>>(
    held: &HeldPacket<B>,
    frame: &[u8],
    merge_mark: u64,
) -> Option<Next> {
    let mask = held.mask?;
    let first = held.packet.head.as_ref();
    if !is_alike(mask, first, frame, held.layout.payload) || held.merge_mark != merge_mark {
        return None;
    }
    let layout = held.layout.of_alike(frame)?;
    let len = layout.payload_len;
    if !held.room.has_for(len) {
        return None;
    }
    let id_mode = match layout.network {
        Network::Ipv4 => {
            let id = Ipv4::at(frame, usize::from(layout.l3))?.id();
            (id == held.next_id).then_some(())?;
            held.id_mode.or(IdMode::Incrementing)
        }
        Network::Ipv6 => IdMode::Undecided,
    };
    let flags = match layout.transport {
        Transport::Tcp => {
            let header = Tcp::at(frame, usize::from(layout.l4))?;
            (header.seq() == held.next_seq).then_some(())?;
            header.flags() & tcp::COLLECTED
        }
        Transport::Udp => {
            (Udp::at(frame, usize::from(layout.l4))?.checksum() != 0).then_some(())?;
            0
        }
    };
    let is_last = match layout.transport {
        Transport::Tcp => flags != 0,
        Transport::Udp => held.room.is_last(),
    };
    Some(Next {
        layout,
        join: Join {
            id_mode,
            flags: u32::from(flags),
            payload_len: len,
            closes: u32::from(is_last || len < held.layout.payload_len),
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gro::join::{self, Joining};
    use crate::gro::{GroConfig, GroEngine, GroTypes};
    use crate::time::Instant;
    use crate::wire::sample::{Sample, TIMESTAMPS};
    use crate::wire::{RxMeta, ipv4, layout};

    const ALL: GroTypes = GroTypes {
        csum: true,
        tcp4: true,
        tcp6: true,
        ecn: true,
        udp4: true,
        udp6: true,
    };

    /// An engine that holds these frames as one packet.
    fn holding(frames: &[Sample]) -> GroEngine<Vec<u8>> {
        let mut engine = GroEngine::new(GroConfig::default());
        engine.set_types(ALL);
        for frame in frames {
            engine.receive(Instant::ZERO, frame.bytes(), RxMeta::default());
        }
        assert_eq!(engine.held(), 1);
        engine
    }

    /// What the parser and the rules say of a frame that is of the held flow.
    fn long_way(engine: &GroEngine<Vec<u8>>, frame: &[u8]) -> Option<(Layout, Join)> {
        let layout = layout::parse(frame).ok()?;
        let key = crate::gro::flow::FlowKey::read(frame, &layout)?;
        let (_, held) = engine
            .table
            .find(engine.home(&key, &RxMeta::default()), &key)?;
        engine.check_eligible(frame, &layout).ok()?;
        let joining = Joining {
            frame,
            layout,
            merge_mark: 0,
        };
        let join = join::check(held, &joining, &engine.config).ok()?;
        Some((layout, join))
    }

    fn short_way(engine: &GroEngine<Vec<u8>>, frame: &[u8]) -> Option<(Layout, Join)> {
        let held = engine.table.get(engine.recent)?;
        let next = is_likely(held, frame)
            .then(|| next(held, frame, 0))
            .flatten()?;
        Some((next.layout, next.join))
    }

    fn sample() -> impl Strategy<Value = Sample> {
        (any::<bool>(), any::<bool>(), 0_usize..3, any::<bool>()).prop_map(
            |(is_v6, is_udp, tags, has_options)| {
                let network = if is_v6 { Network::Ipv6 } else { Network::Ipv4 };
                let transport = if is_udp {
                    Transport::Udp
                } else {
                    Transport::Tcp
                };
                let mut sample = Sample::new(network, transport);
                sample.tags = vec![(0x8100, 7); tags];
                if has_options {
                    sample.options = TIMESTAMPS.to_vec();
                }
                sample
            },
        )
    }

    proptest! {
        #[test]
        fn says_what_the_long_way_says(
            first in sample(),
            held in 1_usize..4,
            len in 0_usize..102,
            flags in prop_oneof![3 => Just(0x10_u8), 1 => any::<u8>()],
            change in prop::option::of((0_usize..140, 1_u8..=255)),
            repairs_ip: bool,
        ) {
            let mut frames = first.stream(held + 1);
            let mut next = frames.pop().unwrap().payload_len(len);
            next.flags = flags;
            let engine = holding(&frames);
            let mut frame = next.bytes();
            if let Some((at, bits)) = change && let Some(byte) = frame.get_mut(at) {
                *byte ^= bits;
            }
            let l3 = 14 + 4 * first.tags.len();
            if repairs_ip && let Some(ip) = Ipv4::at(&frame, l3).filter(|ip| ip.version() == 4) {
                let (total_len, id) = (ip.total_len(), ip.id());
                ipv4::rewrite(&mut frame, l3, total_len, id);
            }
            let (short, long) = (short_way(&engine, &frame), long_way(&engine, &frame));
            let is_fixed_id = long.is_some_and(|(_, join)| join.id_mode == IdMode::Fixed);
            if !is_fixed_id {
                prop_assert_eq!(short, long);
            } else if short.is_some() {
                prop_assert_eq!(short, long);
            }
        }
    }

    #[test]
    fn the_next_segment_goes_the_short_way() {
        for network in [Network::Ipv4, Network::Ipv6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                let frames = Sample::new(network, transport).stream(4);
                let engine = holding(&frames[..3]);
                let frame = frames[3].bytes();
                assert!(short_way(&engine, &frame).is_some(), "{:?}", frames[3]);
            }
        }
    }

    #[test]
    fn a_fixed_identification_goes_the_short_way_once_decided() {
        let mut frames = Sample::tcp4().stream(3);
        frames.iter_mut().for_each(|frame| frame.id = 7);
        let engine = holding(&frames[..2]);
        assert!(short_way(&engine, &frames[2].bytes()).is_some());
    }
}
