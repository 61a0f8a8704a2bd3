//! Which frames may be merged (F01 to F09), and limits.

use super::{ALL, Rig, merged, merged_bytes};
use crate::gro::flow::FlowKey;
use crate::gro::{Bail, Conflict, FlushReason, GroConfig, GroResult, GroTypes, HashMode, PortSet};
use crate::wire::sample::{Sample, TIMESTAMPS, plain_sum};
use crate::wire::tcp::{CWR, FIN, PSH, RST, SYN, URG};
use crate::wire::vnet_hdr::{F_DATA_VALID, F_NEEDS_CSUM};
use crate::wire::{Malformed, Network, RxMeta, Transport, VnetHdr, ipv4, layout};

/// The second of two segments in order, with one change; and the rule that it breaks.
fn conflict(first: &Sample, change: impl FnOnce(&mut Sample)) -> Option<Conflict> {
    let mut second = first.next();
    change(&mut second);
    let mut rig = Rig::all();
    rig.send(first);
    rig.send(&second);
    let broken = Conflict::ALL.into_iter().find(|conflict| {
        let reason = FlushReason::Conflict(*conflict);
        rig.engine.stats().completed(reason) == 1
    });
    let delivered: Vec<_> = rig
        .finish()
        .iter()
        .flat_map(super::Delivered::cut)
        .collect();
    assert_eq!(delivered, [first.bytes(), second.bytes()]);
    broken
}

#[test]
fn f05_every_field_of_tcp_that_must_be_equal() {
    for mut first in [Sample::tcp4(), Sample::tcp6()] {
        first.options = TIMESTAMPS.to_vec();
        first.tags = vec![(0x8100, 100)];
        let broken = |change: fn(&mut Sample)| conflict(&first, change);
        assert_eq!(broken(|_| {}), None);
        assert_eq!(broken(|s| s.macs[0] ^= 4), Some(Conflict::Ethernet));
        assert_eq!(broken(|s| s.macs[11] ^= 1), Some(Conflict::Ethernet));
        assert_eq!(
            broken(|s| s.tags[0].1 |= 0x2000),
            Some(Conflict::VlanPriority)
        );
        assert_eq!(
            broken(|s| s.tags[0].1 |= 0x1000),
            Some(Conflict::VlanPriority)
        );
        assert_eq!(broken(|s| s.ttl = 63), Some(Conflict::Ttl));
        assert_eq!(broken(|s| s.tos = 0x10), Some(Conflict::Tos));
        assert_eq!(broken(|s| s.tos = 3), Some(Conflict::Tos));
        assert_eq!(broken(|s| s.ack += 1), Some(Conflict::Acknowledgement));
        assert_eq!(broken(|s| s.window -= 1), Some(Conflict::FlagWord));
        assert_eq!(broken(|s| s.flags |= 0x40), Some(Conflict::FlagWord));
        assert_eq!(broken(|s| s.flags |= SYN), Some(Conflict::FlagWord));
        assert_eq!(broken(|s| s.flags |= RST), Some(Conflict::FlagWord));
        assert_eq!(broken(|s| s.flags |= URG), Some(Conflict::FlagWord));
        assert_eq!(broken(|s| s.flags = 0), Some(Conflict::FlagWord));
        assert_eq!(broken(|s| s.flags |= CWR), Some(Conflict::Cwr));
        assert_eq!(broken(|s| s.options[7] = 8), Some(Conflict::Options));
        assert_eq!(broken(|s| s.options[11] = 8), Some(Conflict::Options));
        assert_eq!(
            broken(|s| s.options.rotate_left(2)),
            Some(Conflict::Options)
        );
        assert_eq!(
            broken(|s| s.options.truncate(8)),
            Some(Conflict::FlagWord),
            "the header length is part of the word"
        );
        assert_eq!(
            broken(|s| s.urgent_pointer = 1),
            Some(Conflict::UrgentPointer)
        );
        assert_eq!(broken(|s| s.seq += 1), Some(Conflict::Sequence));
        assert_eq!(broken(|s| s.seq -= 100), Some(Conflict::Sequence));
        assert_eq!(
            broken(|s| *s = s.clone().payload_len(101)),
            Some(Conflict::LargerPayload)
        );
        assert_eq!(
            broken(|s| *s = s.clone().payload_len(0)),
            Some(Conflict::NoPayload)
        );
    }
}

#[test]
fn f05_ipv4_identification_and_df() {
    let ids = |df: bool, ids: &[u16]| {
        let mut frame = Sample::tcp4();
        frame.df = df;
        let mut frames = frame.stream(ids.len());
        for (frame, id) in frames.iter_mut().zip(ids) {
            frame.id = *id;
        }
        let mut rig = Rig::all();
        frames.iter().for_each(|frame| {
            rig.send(frame);
        });
        rig.finish()
            .iter()
            .map(|packet| packet.segs)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(true, &[8, 9, 10]), [3]);
    assert_eq!(ids(false, &[8, 9, 10]), [3]);
    assert_eq!(ids(true, &[8, 8, 8]), [3]);
    assert_eq!(ids(false, &[8, 8, 8]), [1, 1, 1]);
    assert_eq!(ids(true, &[8, 9, 9]), [2, 1]);
    assert_eq!(ids(true, &[8, 8, 9]), [2, 1]);
    assert_eq!(ids(true, &[8, 10, 12]), [1, 1, 1]);
    assert_eq!(ids(true, &[8, 7, 6]), [1, 1, 1]);
    assert_eq!(ids(true, &[65534, 65535, 0, 1]), [4]);
    assert_eq!(
        conflict(&Sample::tcp4(), |s| s.df = false),
        Some(Conflict::Df)
    );
    assert_eq!(conflict(&Sample::tcp4(), |s| s.id = 7), Some(Conflict::Id));
}

#[test]
fn f05_ipv6_flow_label_and_extension_headers() {
    let plain = Sample::tcp6();
    assert_eq!(
        conflict(&plain, |s| s.flow_label = 1),
        Some(Conflict::FlowLabel)
    );
    let mut first = plain;
    first.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 4, 0, 0, 0, 0])];
    let extensions = Some(Conflict::Ip6Extensions);
    assert_eq!(conflict(&first, |_| {}), None);
    assert_eq!(conflict(&first, |s| s.extensions[1].1[5] = 1), extensions);
    assert_eq!(conflict(&first, |s| s.extensions[0].0 = 60), extensions);
    assert_eq!(conflict(&first, |s| s.extensions[1].0 = 43), extensions);
    assert_eq!(conflict(&first, |s| s.extensions.truncate(1)), extensions);
}

#[test]
fn f05_metadata_must_be_equal() {
    let mut rig = Rig::all();
    for (frame, merge_mark) in Sample::tcp4().stream(4).iter().zip([1, 1, 2, 2]) {
        let meta = RxMeta {
            merge_mark,
            ..RxMeta::default()
        };
        rig.engine.receive(rig.now, frame.bytes(), &meta);
    }
    let conflicts = FlushReason::Conflict(Conflict::Metadata);
    assert_eq!(rig.engine.stats().completed(conflicts), 1);
    assert_eq!(rig.finish().len(), 2);
}

#[test]
fn f01_a_damaged_segment_leaves_alone_and_in_its_place() {
    for damage_at in [24, 46, 60] {
        let mut frames: Vec<_> = Sample::tcp4()
            .stream(10)
            .iter()
            .map(Sample::bytes)
            .collect();
        frames[4][damage_at] ^= 1;
        assert_eq!(merged_bytes(&frames), [4, 1, 5], "byte {damage_at}");
    }
}

#[test]
fn f01_right_but_unusual_checksums_merge() {
    // Find an acknowledgement number for which the right checksum is zero; all ones is then
    // right as well.
    let mut frame = Sample::tcp4();
    let field = frame.checksum_place().1;
    let sum = |frame: &Sample| {
        let bytes = frame.bytes();
        u16::from_be_bytes([bytes[field], bytes[field + 1]])
    };
    frame.ack += u32::from(sum(&frame));
    assert_eq!(sum(&frame), 0);
    for stored in [0_u16, 0xffff] {
        let mut first = frame.bytes();
        first[field..field + 2].copy_from_slice(&stored.to_be_bytes());
        let mut rig = Rig::all();
        assert_eq!(rig.send_as(first, VnetHdr::default()), GroResult::Held);
        assert_eq!(rig.send(&frame.next()), GroResult::Merged);
    }
}

#[test]
fn f01_the_host_may_vouch_for_a_checksum() {
    let mut rig = Rig::all();
    let vouched = VnetHdr {
        flags: F_DATA_VALID,
        ..VnetHdr::default()
    };
    for frame in Sample::tcp4().stream(3) {
        let mut frame = frame.bytes();
        let field = Sample::tcp4().checksum_place().1;
        frame[field] ^= 0xff;
        rig.send_as(frame, vouched);
    }
    assert_eq!(rig.finish()[0].segs, 3);
}

#[test]
fn f01_a_partial_checksum_elsewhere_is_not_vouched_for() {
    let (frame, vnet) = Sample::tcp4().partial();
    for (csum_start, csum_offset) in [(14, 16), (34, 6), (33, 17)] {
        let mut rig = Rig::all();
        let elsewhere = VnetHdr {
            csum_start,
            csum_offset,
            ..vnet
        };
        assert_eq!(rig.send_as(frame.clone(), elsewhere), GroResult::Normal);
        assert_eq!(rig.engine.stats().bailed(Bail::Checksum), 1);
        assert_eq!(rig.finish()[0].vnet, elsewhere, "passed on as received");
    }
}

#[test]
fn f02_no_packet_passes_65535_bytes() {
    for (network, len, per_packet) in [
        (Network::Ipv4, 1448, 45),
        (Network::Ipv6, 1448, 45),
        (Network::Ipv4, 8948, 7),
        (Network::Ipv4, 32700, 2),
        (Network::Ipv4, 32748, 1),
    ] {
        let frames = Sample::new(network, Transport::Tcp)
            .payload_len(len)
            .stream(2 * per_packet + 1);
        let full = u32::try_from(per_packet).unwrap();
        assert_eq!(merged(&frames), [full, full, 1], "{network:?} {len}");
    }
}

/// A stream of which every frame is looked at by all rules: the short way knows no extensions.
fn with_extensions() -> Sample {
    let mut first = Sample::tcp6();
    first.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
    first
}

#[test]
fn f02_the_limit_is_exact_and_counts_tags_and_extensions() {
    let fits = |first: &Sample, len: usize| {
        let mut frames = first.clone().payload_len(32000).stream(3);
        frames[2] = frames[2].clone().payload_len(len);
        merged(&frames).len() == 1
    };
    for (plain, headers) in [
        (Sample::tcp4(), 40),
        (Sample::tcp6(), 60),
        (with_extensions(), 68),
    ] {
        for tags in 0..=2 {
            let mut first = plain.clone();
            first.tags = vec![(0x8100, 1); tags];
            let room = 65535 - headers - 4 * tags - 64000;
            assert!(fits(&first, room), "{first:?}");
            assert!(!fits(&first, room + 1), "{first:?}");
        }
    }
}

#[test]
fn f02_a_lower_limit_and_a_segment_limit_hold() {
    let config = GroConfig {
        gro_max_size: 1500,
        ..GroConfig::default()
    };
    let segs_of = |config: GroConfig, first: Sample, len: usize| {
        let mut rig = Rig::new(config, ALL);
        for frame in first.payload_len(len).stream(8) {
            rig.send(&frame);
        }
        rig.finish()
            .iter()
            .map(|packet| packet.segs)
            .collect::<Vec<_>>()
    };
    let segs = |config: GroConfig| segs_of(config, Sample::tcp4(), 365);
    assert_eq!(segs(config), [4, 4]);
    assert_eq!(segs_of(config, with_extensions(), 358), [4, 4]);
    let config = GroConfig {
        gro_max_segs: 3,
        ..GroConfig::default()
    };
    assert_eq!(segs(config), [3, 3, 2]);
    assert_eq!(segs_of(config, with_extensions(), 358), [3, 3, 2]);
    let beyond = GroConfig {
        gro_max_size: u32::MAX,
        ..GroConfig::default()
    };
    assert_eq!(segs(beyond), [8]);
    assert_eq!(segs_of(beyond, Sample::tcp4(), 32747), [2; 4]);
    assert_eq!(segs_of(beyond, Sample::tcp4(), 32748), [1; 8]);
}

#[test]
fn f02_one_byte_segments() {
    for first in [Sample::tcp4(), with_extensions()] {
        assert_eq!(merged(&first.payload_len(1).stream(1000)), [1000]);
    }
}

#[test]
fn f23_push_and_finish_join_and_close() {
    for first in [Sample::tcp4(), with_extensions()] {
        for flags in [PSH, FIN, PSH | FIN] {
            let mut frames = first.stream(4);
            frames[2].flags |= flags;
            assert_eq!(merged(&frames), [3, 1], "{flags:#x}");
        }
    }
}

#[test]
fn f03_padding_is_neither_payload_nor_trimmed() {
    for network in [Network::Ipv4, Network::Ipv6] {
        let data = Sample::new(network, Transport::Tcp).payload_len(1448);
        let mut ack = data.next().payload_len(0);
        ack.padding = 6;
        let mut short = data.next().payload_len(2);
        short.padding = 4;
        let after = Sample {
            padding: 0,
            ..short.next().payload_len(1448)
        };
        let frames = [data, ack, short, after];
        assert_eq!(merged(&frames), [1, 1, 1, 1]);
    }
}

#[test]
fn f04_fragments_never_merge_and_keep_their_place() {
    let stream = Sample::tcp4().stream(6);
    let mut fragment = Sample::udp4().payload_len(100);
    fragment.mf = true;
    let mut later = Sample::udp4();
    // Its payload, where ports would be, looks like the stream.
    later.fragment_offset = 185;
    later.source_port = 40000;
    let mut frames = stream[..3].to_vec();
    frames.extend([fragment, later]);
    frames.extend_from_slice(&stream[3..]);
    assert_eq!(merged(&frames), [3, 1, 1, 3]);
}

#[test]
fn f06_ip_options_pass_and_keep_their_place() {
    let mut frames = Sample::tcp4().stream(5);
    frames[2].ip_options = vec![0x94, 4, 0, 0];
    assert_eq!(merged(&frames), [2, 1, 2]);
    frames
        .iter_mut()
        .for_each(|frame| frame.ip_options = vec![1; 4]);
    assert_eq!(merged(&frames), [1; 5]);
}

#[test]
fn f06_equal_extension_headers_merge() {
    let mut first = Sample::tcp6();
    first.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 12, 0, 0, 0, 0])];
    assert_eq!(merged(&first.stream(3)), [3]);
}

#[test]
fn f06_routing_segments_left_fail_their_checksum() {
    // Type 2, one segment left, to some other host: the sum then covers that host.
    let last = [9_u8; 16];
    let mut first = Sample::tcp6();
    first.extensions = vec![(43, [[2, 1, 0, 0, 0, 0].as_slice(), &last].concat())];
    let mut frame = first.bytes();
    let field = first.checksum_place().1;
    let unsummed = |bytes: &[u8]| bytes.iter().map(|byte| !byte).collect::<Vec<_>>();
    let stored = unsummed(&frame[field..field + 2]);
    let sum = plain_sum(&[stored.as_slice(), &unsummed(&frame[38..54]), &last].concat());
    frame[field..field + 2].copy_from_slice(&(!sum).to_be_bytes());
    let mut arrived = frame.clone();
    arrived[38..54].copy_from_slice(&last);

    let mut rig = Rig::all();
    assert_eq!(rig.send_as(frame, VnetHdr::default()), GroResult::Normal);
    assert_eq!(rig.engine.stats().bailed(Bail::Checksum), 1);
    assert_eq!(rig.send_as(arrived, VnetHdr::default()), GroResult::Held);
}

#[test]
fn f06_routing_segments_left_never_merge_even_if_vouched_for() {
    for (left, merged) in [(0, vec![3]), (1, vec![1, 1, 1])] {
        let mut first = Sample::tcp6();
        first.extensions = vec![
            (60, vec![0; 6]),
            (43, [[0, left, 0, 0, 0, 0].as_slice(), &[9; 16]].concat()),
        ];
        let partial = VnetHdr {
            flags: F_NEEDS_CSUM,
            csum_start: u16::try_from(first.checksum_place().0).unwrap(),
            csum_offset: 16,
            ..VnetHdr::default()
        };
        let valid = VnetHdr {
            flags: F_DATA_VALID,
            ..VnetHdr::default()
        };
        for host in [partial, valid] {
            let mut rig = Rig::all();
            for frame in first.stream(3) {
                rig.send_as(frame.bytes(), host);
            }
            let delivered = rig.finish();
            let segs: Vec<_> = delivered.iter().map(|packet| packet.segs).collect();
            assert_eq!(segs, merged, "{left} left, {host:?}");
        }
    }
}

#[test]
fn f07_lying_lengths_pass_unmerged_and_counted() {
    let stream = Sample::tcp4().stream(3);
    let lie = |at: usize, value: u8| {
        let mut frames: Vec<_> = stream.iter().map(Sample::bytes).collect();
        frames[1][at] = value;
        if at < 34 {
            let bytes = &frames[1];
            let (total, id) = (
                u16::from_be_bytes([bytes[16], bytes[17]]),
                u16::from_be_bytes([bytes[18], bytes[19]]),
            );
            ipv4::rewrite(&mut frames[1], 14, total, id);
        }
        merged_bytes(&frames)
    };
    for value in [0, 1, 4, 5, 6, 14, 15, 139, 255] {
        assert_eq!(lie(17, value), [1, 1, 1], "total length {value}");
    }
    for words in [0, 1, 4, 15] {
        assert_eq!(lie(46, words << 4), [1, 1, 1], "data offset {words}");
    }
    for words in [0, 1, 4] {
        // Not even a header: nothing is known of the flow, so it keeps waiting.
        let mut rig = Rig::all();
        rig.send(&stream[0]);
        let mut frame = stream[1].bytes();
        frame[14] = 0x40 | words;
        rig.send_as(frame, VnetHdr::default());
        assert_eq!(rig.engine.held(), 1);
        let reason = Bail::Malformed(Malformed::Ip4Header);
        assert_eq!(rig.engine.stats().bailed(reason), 1);
        assert_eq!(rig.engine.stats().bypassed, 1);
    }
}

#[test]
fn f07_another_version_than_the_ethertype_says_is_no_ip() {
    for (sample, reason) in [
        (Sample::tcp4(), Malformed::Ip4Header),
        (Sample::tcp6(), Malformed::Ip6Header),
    ] {
        for version in (0..16).filter(|version| sample.bytes()[14] >> 4 != *version) {
            let mut rig = Rig::all();
            rig.send(&sample);
            let mut frame = sample.next().bytes();
            frame[14] = version << 4 | frame[14] & 0xf;
            if sample.network == Network::Ipv4 {
                let (total, id) = (140, sample.next().id);
                ipv4::rewrite(&mut frame, 14, total, id);
            }
            assert_eq!(rig.send_as(frame, VnetHdr::default()), GroResult::Normal);
            assert_eq!(rig.engine.held(), 1, "nothing is known of its flow");
            assert_eq!(rig.engine.stats().bailed(Bail::Malformed(reason)), 1);
        }
    }
}

#[test]
fn f08_vlans_do_not_mix() {
    let mut rig = Rig::all();
    let tags: [&[(u16, u16)]; 6] = [
        &[],
        &[(0x8100, 10)],
        &[(0x8100, 20)],
        &[(0x8100, 0)],
        &[(0x88a8, 1), (0x8100, 10)],
        &[(0x8100, 1), (0x8100, 2), (0x8100, 3)],
    ];
    for frame in Sample::tcp4().stream(4) {
        for tags in tags {
            let mut frame = frame.clone();
            frame.tags = tags.to_vec();
            rig.send(&frame);
        }
    }
    let delivered = rig.finish();
    let mut shapes: Vec<_> = delivered
        .iter()
        .map(|packet| (packet.segs, packet.vnet.csum_start))
        .collect();
    shapes.sort_unstable();
    let three_tags = [(1, 0); 4];
    let streams = [(4, 34), (4, 38), (4, 38), (4, 38), (4, 42)];
    assert_eq!(shapes, [three_tags.as_slice(), &streams].concat());
}

#[test]
fn f09_other_frames_pass_without_disturbing_anyone() {
    let mut rig = Rig::all();
    rig.send(&Sample::tcp4());
    for len in [14, 60, 1514] {
        let mut frame = vec![0x33; len];
        frame[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(
            rig.send_as(frame.clone(), VnetHdr::default()),
            GroResult::Normal
        );
        let delivered = rig.drain();
        assert_eq!(delivered[0].bytes, frame);
        assert_eq!(delivered[0].vnet, VnetHdr::default());
    }
    assert_eq!(rig.send(&Sample::tcp4().next()), GroResult::Merged);
}

#[test]
fn udp_merges_equal_datagrams() {
    for network in [Network::Ipv4, Network::Ipv6] {
        let first = Sample::new(network, Transport::Udp);
        let lens = |lens: &[usize]| {
            let mut frames = first.stream(lens.len());
            for (frame, len) in frames.iter_mut().zip(lens) {
                *frame = frame.clone().payload_len(*len);
            }
            merged(&frames)
        };
        assert_eq!(lens(&[100, 100, 100]), [3]);
        assert_eq!(lens(&[100, 100, 50, 100]), [3, 1]);
        assert_eq!(lens(&[100, 101, 101]), [1, 2]);
        assert_eq!(lens(&[100; 65]), [64, 1]);
        assert_eq!(lens(&[100, 0, 100]), [1, 1, 1]);
    }
}

#[test]
fn udp_packets_have_at_most_64_datagrams() {
    for mut first in [Sample::udp4(), with_extensions()] {
        first.transport = Transport::Udp;
        assert_eq!(merged(&first.stream(130)), [64, 64, 2], "{first:?}");
    }
}

#[test]
fn udp_without_checksum_or_to_a_tunnel_port_passes() {
    let mut without = Sample::udp4().bytes();
    without[40..42].fill(0);
    let frames = [
        Sample::udp4().bytes(),
        without,
        Sample::udp4().next().bytes(),
    ];
    assert_eq!(merged_bytes(&frames), [1, 1, 1]);
    let mut rig = Rig::all();
    for (number, frame) in Sample::udp4().stream(3).iter().enumerate() {
        let mut frame = frame.bytes();
        if number == 2 {
            frame[40..42].fill(0);
        }
        // Not even if the host vouches for it.
        let vouched = VnetHdr {
            flags: F_DATA_VALID,
            ..VnetHdr::default()
        };
        rig.send_as(frame, vouched);
    }
    assert_eq!(rig.engine.stats().bailed(Bail::UdpNoChecksum), 1);
    let mut tunnelled = Sample::udp4();
    tunnelled.destination_port = 4789;
    assert_eq!(merged(&tunnelled.stream(3)), [1, 1, 1]);
    let config = GroConfig {
        udp_exclude_ports: PortSet::EMPTY,
        ..GroConfig::default()
    };
    let mut rig = Rig::new(config, ALL);
    assert_eq!(rig.send(&tunnelled), GroResult::Held);
}

#[test]
fn types_that_the_guest_did_not_ack_never_merge() {
    let verdict = |types: GroTypes, sample: Sample| {
        let mut rig = Rig::new(GroConfig::default(), types);
        rig.send(&sample)
    };
    let tcp6 = Sample::tcp6;
    let udp6 = || Sample::new(Network::Ipv6, Transport::Udp);
    let without = |change: fn(&mut GroTypes)| {
        let mut types = ALL;
        change(&mut types);
        [Sample::tcp4(), tcp6(), Sample::udp4(), udp6()]
            .map(|sample| verdict(types, sample) == GroResult::Held)
    };
    assert_eq!(without(|_| {}), [true; 4]);
    assert_eq!(without(|types| types.csum = false), [false; 4]);
    assert_eq!(without(|t| t.tcp4 = false), [false, true, true, true]);
    assert_eq!(without(|t| t.tcp6 = false), [true, false, true, true]);
    assert_eq!(without(|t| t.udp4 = false), [true, true, false, true]);
    assert_eq!(without(|t| t.udp6 = false), [true, true, true, false]);
    assert_eq!(without(|t| t.ecn = false), [true; 4]);
}

#[test]
fn switched_off_nothing_merges() {
    let off = GroConfig {
        enabled: false,
        ..GroConfig::default()
    };
    let no_udp = GroConfig {
        udp_gro: false,
        ..GroConfig::default()
    };
    let mut rig = Rig::new(off, ALL);
    assert_eq!(rig.send(&Sample::tcp4()), GroResult::Normal);
    let mut rig = Rig::new(no_udp, ALL);
    assert_eq!(rig.send(&Sample::udp4()), GroResult::Normal);
    assert_eq!(rig.send(&Sample::tcp4()), GroResult::Held);
}

#[test]
fn a_given_hash_is_no_merge_condition() {
    let config = GroConfig {
        hash_mode: HashMode::Given,
        ..GroConfig::default()
    };
    let mut rig = Rig::new(config, ALL);
    for (frame, merge_mark) in Sample::tcp4().stream(2).iter().zip([3, 11]) {
        let meta = RxMeta {
            merge_mark,
            ..RxMeta::default()
        };
        rig.engine.receive(rig.now, frame.bytes(), &meta);
    }
    assert_eq!(rig.finish()[0].segs, 2);
}

#[test]
fn f05_the_last_and_shorter_segment_keeps_to_the_mode_of_the_identification() {
    let segs = |ids: [u16; 4]| {
        let mut frames = Sample::tcp4().stream(4);
        let last = frames.pop().unwrap().payload_len(7);
        frames.push(last);
        let mut rig = Rig::all();
        for (frame, id) in frames.iter_mut().zip(ids) {
            frame.id = id;
            rig.send(frame);
        }
        let delivered = rig.finish();
        delivered
            .iter()
            .map(|packet| packet.segs)
            .collect::<Vec<_>>()
    };
    assert_eq!(segs([7, 7, 7, 7]), [4]);
    assert_eq!(segs([7, 7, 7, 8]), [3, 1]);
    assert_eq!(segs([7, 8, 9, 10]), [4]);
    assert_eq!(segs([7, 8, 9, 9]), [3, 1]);
    assert_eq!(segs([65534, 65535, 0, 1]), [4]);
}

#[test]
fn flows_that_look_alike_in_the_table_are_told_apart() {
    let on_port = |source_port| Sample {
        source_port,
        ..Sample::tcp4()
    };
    let place = |port| {
        let frame = on_port(port).bytes();
        let key = FlowKey::read(&frame, layout::parse(&frame).unwrap()).unwrap();
        (key.hash() % 8, key.hash() >> 56)
    };
    let alike: Vec<_> = (1..=u16::MAX)
        .filter(|port| place(*port) == place(1))
        .take(4)
        .collect();
    assert_eq!(alike.len(), 4);
    let mut rig = Rig::all();
    for port in &alike {
        rig.send(&on_port(*port));
    }
    // The last segment is found in the table, as it is shorter.
    for port in alike.iter().rev() {
        let last = on_port(*port).stream(2).remove(1).payload_len(7);
        assert_eq!(rig.send(&last), GroResult::Merged, "{port}");
    }
    assert_eq!(rig.engine.held(), 0);
}
