//! The frame that everybody hopes for: the next full segment of the stream, with nothing changed.
//!
//! Says yes only where the parser and all rules of `join` would say yes, with far fewer
//! instructions; a test compares the two. To say no costs nothing but time: the frame then goes
//! the long way, which finds out what is the matter. So does the last segment of a packet, which
//! is shorter or has a flag that closes it.

use super::alike::{Head, SPAN, is_alike, mask_for};
use super::packet::HeldPacket;
use crate::wire::ipv4::{IdSum, Ipv4};
use crate::wire::tcp::Tcp;
use crate::wire::udp::Udp;
use crate::wire::{Layout, Network, Transport};

/// What is known of the next full segment of a held packet.
///
/// What changes with each segment is read again before it has left the store buffer, which can only
/// hand on what was written as a whole; so no two such fields are written or read together.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Expected {
    /// The start of the first frame.
    head: Head,
    /// What has to be equal to it.
    mask: &'static Head,
    /// Metadata of the first frame (META-1).
    pub(super) merge_mark: u64,
    /// Bytes of the first frame. [`NOTHING`] if nothing can join the short way, and in a packet
    /// that is not held.
    frame_len: usize,
    /// Frames behind the first that make the packet full.
    pub(super) max_rest: usize,
    /// TCP sequence number.
    pub(super) seq: u32,
    id_sum: IdSum,
    /// IPv4 identification.
    pub(super) id: u16,
    /// What the identification grows by with each segment; the second decides.
    pub(super) id_step: u16,
}

/// The length of no frame.
const NOTHING: usize = usize::MAX;

impl Expected {
    /// Nothing.
    pub(super) const NONE: Self = Self {
        head: Head::NONE,
        mask: &Head::NONE,
        merge_mark: 0,
        frame_len: NOTHING,
        max_rest: 0,
        seq: 0,
        id_sum: IdSum::ZERO,
        id: 0,
        id_step: 0,
    };

    /// What follows a first frame; the rest is up to the caller.
    #[inline(always)]
    pub(super) fn start(&mut self, frame: &[u8], layout: Layout) {
        (self.id, self.id_step) = (0, 0);
        if layout.network() == Network::Ipv4
            && let Some(ip) = Ipv4::at(frame, usize::from(layout.l3()))
        {
            (self.id, self.id_step) = (ip.id().wrapping_add(1), 1);
            self.id_sum = ip.id_sum();
        }
        self.frame_len = NOTHING;
        if let (Some(head), Some(mask)) = (frame.first_chunk::<SPAN>(), mask_for(layout)) {
            self.head.0 = *head;
            self.mask = mask;
            self.frame_len = frame.len();
        }
    }

    /// Nothing follows any more.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        self.frame_len = NOTHING;
    }

    /// One more full segment.
    #[inline(always)]
    pub(super) fn advance(&mut self, payload_len: u32) {
        self.seq = self.seq.wrapping_add(payload_len);
        self.id = self.id.wrapping_add(self.id_step);
    }
}

/// Whether a frame has the ports of a held packet, if it has its headers in the same places. Most
/// frames of other flows do not, and need not be looked at further.
#[inline(always)]
pub(super) fn is_likely<B>(held: &HeldPacket<B>, head: &[u8; SPAN]) -> bool {
    let l4 = usize::from(held.layout.l4()) & 63;
    let ports = |bytes: &[u8; SPAN]| {
        u32::from_ne_bytes([bytes[l4], bytes[l4 + 1], bytes[l4 + 2], bytes[l4 + 3]])
    };
    ports(head) == ports(&held.expected.head.0)
}

/// Whether a frame of `len` bytes, of which nothing else is known yet, is the next full segment of
/// a held packet. Its transport checksum is not looked at.
#[inline(always)]
pub(super) fn is_next<B>(
    held: &HeldPacket<B>,
    head: &[u8; SPAN],
    len: usize,
    merge_mark: u64,
) -> bool {
    let expected = &held.expected;
    (len == expected.frame_len)
        && (merge_mark == expected.merge_mark)
        && (held.packet.rest_len() < expected.max_rest)
        && is_alike(expected.mask, &expected.head, head, held.layout.payload())
        && expected.is_next_number(held.layout, head)
}

impl Expected {
    /// Whether a frame that is alike has the next numbers, and checksums that go with them.
    #[inline(always)]
    fn is_next_number(&self, layout: Layout, head: &[u8; SPAN]) -> bool {
        // Headers with a mask end within it: nothing is taken off here, but the compiler cannot
        // know.
        let l3 = usize::from(layout.l3()) & 31;
        let l4 = usize::from(layout.l4()) & 63;
        let is_network_next = match layout.network() {
            Network::Ipv4 => Ipv4::at(head, l3)
                .is_some_and(|ip| (ip.id() == self.id) & (ip.id_sum() == self.id_sum)),
            Network::Ipv6 => true,
        };
        is_network_next
            && match layout.transport() {
                Transport::Tcp => Tcp::at(head, l4).is_some_and(|tcp| tcp.seq() == self.seq),
                // UDP-2.
                Transport::Udp => Udp::at(head, l4).is_some_and(|udp| udp.checksum() != 0),
            }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gro::join::{self, Join, Joining};
    use crate::gro::{FlushReason, GroConfig, GroEngine, GroTypes};
    use crate::time::Instant;
    use crate::wire::sample::{Sample, TIMESTAMPS};
    use crate::wire::vnet_hdr::{F_DATA_VALID, GSO_NONE, GSO_TCPV4};
    use crate::wire::{RxMeta, VnetHdr, ipv4, layout};

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
        holding_with(GroConfig::default(), frames)
    }

    fn holding_with(config: GroConfig, frames: &[Sample]) -> GroEngine<Vec<u8>> {
        let mut engine = GroEngine::new(config);
        engine.set_types(ALL);
        for frame in frames {
            engine.receive(Instant::ZERO, frame.bytes(), &RxMeta::default());
        }
        assert_eq!(engine.held(), 1);
        engine
    }

    /// What the parser and the rules say of a frame that is of the held flow.
    fn long_way(engine: &GroEngine<Vec<u8>>, frame: &[u8]) -> Option<Join> {
        let layout = layout::parse(frame).ok()?;
        let key = crate::gro::flow::FlowKey::read(frame, layout)?;
        let home = engine.home(&key, &RxMeta::default());
        let held = engine
            .store
            .get(engine.table.find(&engine.store, home, &key)?)?;
        engine.check_eligible(frame, layout).ok()?;
        let joining = Joining {
            frame,
            layout,
            merge_mark: 0,
        };
        join::check(held, &joining, &engine.config).ok()
    }

    fn goes_the_short_way(engine: &GroEngine<Vec<u8>>, frame: &[u8]) -> bool {
        let held = engine.store.get(engine.hints.last()).unwrap();
        (frame.first_chunk()).is_some_and(|head| is_next(held, head, frame.len(), 0))
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
            let is_next = goes_the_short_way(&engine, &frame);
            // It joins, the packet stays open, and the mode of its identification is known.
            let expected = Join {
                id: engine.store.get(engine.hints.last()).unwrap().expected.id,
                id_step: u16::from(first.network == Network::Ipv4),
                flags: 0,
                payload_len: 100,
                closes: false,
            };
            prop_assert_eq!(is_next, long_way(&engine, &frame) == Some(expected));
        }
    }

    /// Samples of all kinds, with and without tags and options.
    fn kinds() -> Vec<Sample> {
        let mut kinds = Vec::new();
        for network in [Network::Ipv4, Network::Ipv6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                for tags in [vec![], vec![(0x8100, 9)], vec![(0x88a8, 7), (0x8100, 9)]] {
                    for options in [vec![], TIMESTAMPS.to_vec()] {
                        let mut sample = Sample::new(network, transport);
                        (sample.tags, sample.options) = (tags.clone(), options);
                        kinds.push(sample);
                    }
                }
            }
        }
        kinds
    }

    #[test]
    fn the_next_segment_goes_the_short_way() {
        for kind in kinds() {
            let mut frames = kind.stream(4);
            // The higher byte changes as well.
            frames
                .iter_mut()
                .zip(254..)
                .for_each(|(frame, id)| frame.id = id);
            let engine = holding(&frames[..3]);
            let frame = frames[3].bytes();
            assert!(goes_the_short_way(&engine, &frame), "{:?}", frames[3]);
        }
    }

    #[test]
    fn interleaved_flows_go_the_short_way() {
        // Flows with equal ports share a place among the hints.
        let kinds = [(Sample::tcp4(), 1000), (Sample::tcp6(), 2000)];
        let flows = kinds.into_iter().flat_map(|(flow, first_port)| {
            (0..4).map(move |port| Sample {
                source_port: first_port + port,
                ..flow.clone()
            })
        });
        let streams: Vec<_> = flows.map(|flow| flow.stream(4)).collect();
        let mut engine = GroEngine::new(GroConfig::default());
        engine.set_types(ALL);
        for number in 0..4 {
            for stream in &streams {
                let frame = stream[number].bytes();
                let is_found = engine.guess(&frame, &RxMeta::default()).is_some();
                assert_eq!(is_found, number > 0, "{number} of {:?}", stream[number]);
                engine.receive(Instant::ZERO, frame, &RxMeta::default());
            }
        }
    }

    #[test]
    fn a_checksum_goes_the_short_way_if_it_is_right_or_vouched_for() {
        let frames = Sample::tcp4().stream(3);
        let mut engine = holding(&frames[..2]);
        let mut damaged = frames[2].bytes();
        *damaged.last_mut().unwrap() ^= 1;
        let mut is_found = |frame: &[u8], flags, gso_type| {
            let meta = RxMeta {
                vnet: VnetHdr {
                    flags,
                    gso_type,
                    ..VnetHdr::default()
                },
                ..RxMeta::default()
            };
            engine.guess(frame, &meta).is_some()
        };
        assert!(is_found(&frames[2].bytes(), 0, GSO_NONE));
        assert!(is_found(&damaged, F_DATA_VALID, GSO_NONE));
        assert!(!is_found(&damaged, 0, GSO_NONE));
        assert!(!is_found(&frames[2].bytes(), 0, GSO_TCPV4));
        assert!(!is_found(&frames[2].bytes(), F_DATA_VALID, GSO_TCPV4));
    }

    #[test]
    fn a_fixed_identification_goes_the_short_way_once_decided() {
        let mut frames = Sample::tcp4().stream(3);
        frames.iter_mut().for_each(|frame| frame.id = 7);
        let engine = holding(&frames[..2]);
        assert!(goes_the_short_way(&engine, &frames[2].bytes()));
    }

    #[test]
    fn no_flipped_bits_go_the_short_way_that_the_long_way_refuses() {
        let udp6 = Sample::new(Network::Ipv6, Transport::Udp);
        let with_extension = Sample {
            extensions: vec![(60, vec![0; 6])],
            ..udp6
        };
        // Longer than what is compared.
        let with_long_header = Sample {
            tags: vec![(0x88a8, 7), (0x8100, 9)],
            options: [1; 40].to_vec(),
            ..Sample::tcp6()
        };
        for kind in kinds()
            .into_iter()
            .chain([with_extension, with_long_header])
        {
            let mut frames = kind.stream(3);
            if kind.transport == Transport::Udp {
                // Equal checksums as well.
                frames.fill(kind.clone());
            }
            frames
                .iter_mut()
                .zip(7..)
                .for_each(|(frame, id)| frame.id = id);
            let engine = holding(&frames[..2]);
            let sound = frames[2].bytes();
            for first in 0..8 * 120 {
                // Alone, and with the same bit in another word or block.
                for second in [0, 8, 16, 32].map(|distance| first + 8 * distance) {
                    let mut frame = sound.clone();
                    frame[first / 8] ^= 1 << (first % 8);
                    if second > first
                        && let Some(byte) = frame.get_mut(second / 8)
                    {
                        *byte ^= 1 << (second % 8);
                    }
                    if goes_the_short_way(&engine, &frame) {
                        let join = long_way(&engine, &frame);
                        let is_open = join.is_some_and(|join| !join.closes);
                        assert!(is_open, "bits {first} and {second} of {kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_follows_what_is_not_held_any_more() {
        let frames = Sample::tcp4().stream(3);
        let mut engine = holding(&frames[..2]);
        engine.flush_all(FlushReason::PollEnd);
        assert!(!goes_the_short_way(&engine, &frames[2].bytes()));
    }

    #[test]
    fn a_packet_that_is_full_is_continued_by_nothing() {
        let frames = Sample::tcp4().stream(3);
        let config = GroConfig {
            gro_max_segs: 2,
            ..GroConfig::default()
        };
        let engine = holding_with(config, &frames[..2]);
        assert!(!goes_the_short_way(&engine, &frames[2].bytes()));
    }
}
