//! What a packet and its header say (F15 to F23), and frames that the host had merged.

use super::{ALL, Delivered, Rig, merged};
use crate::gro::{DropReason, FlushReason, GroConfig, GroResult, GroTypes};
use crate::wire::checksum::Sum;
use crate::wire::sample::{Sample, TIMESTAMPS};
use crate::wire::tcp::{FIN, PSH};
use crate::wire::vnet_hdr::{
    F_DATA_VALID, F_NEEDS_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4,
};
use crate::wire::{Network, Transport, VnetHdr, checksum};

/// The packet that these frames become.
fn one(frames: &[Sample]) -> Delivered {
    let mut rig = Rig::all();
    for frame in frames {
        rig.send(frame);
    }
    let mut delivered = rig.finish();
    assert_eq!(delivered.len(), 1);
    delivered.remove(0)
}

fn hex(vnet: &VnetHdr) -> String {
    let filled = VnetHdr {
        num_buffers: 1,
        ..*vnet
    };
    filled
        .encode()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn field(packet: &Delivered, at: usize) -> u16 {
    u16::from_be_bytes([packet.bytes[at], packet.bytes[at + 1]])
}

#[test]
fn f15_worked_value_tcp4() {
    let mut first = Sample::tcp4().payload_len(1448);
    first.options = TIMESTAMPS.to_vec();
    first.id = 100;
    let packet = one(&first.stream(3));
    assert_eq!(hex(&packet.vnet), "01014200a805220010000100");
    assert_eq!(packet.bytes.len(), 4410);
    assert_eq!((field(&packet, 16), field(&packet, 24)), (4396, 0x3d31));
    assert_eq!(field(&packet, 50), 0xfd55);
}

#[test]
fn f15_worked_value_udp4() {
    let mut frames = Sample::udp4().payload_len(1200).stream(3);
    frames.iter_mut().for_each(|frame| frame.id = 0);
    let packet = one(&frames);
    assert_eq!(hex(&packet.vnet), "01052a00b004220006000100");
    assert_eq!(packet.bytes.len(), 3642);
    assert_eq!((field(&packet, 16), field(&packet, 24)), (3628, 0x408a));
    assert_eq!((field(&packet, 38), field(&packet, 40)), (3608, 0xfa60));
}

#[test]
fn f15_worked_shape_tcp6() {
    let mut first = Sample::tcp6().payload_len(1428);
    first.options = TIMESTAMPS.to_vec();
    let mut frames = first.stream(3);
    frames[2] = frames[2].clone().payload_len(10);
    frames[2].flags |= PSH;
    let packet = one(&frames);
    assert_eq!(hex(&packet.vnet), "010456009405360010000100");
    assert_eq!((packet.bytes.len(), field(&packet, 18)), (2952, 2898));
}

#[test]
fn f16_header_length_is_exact() {
    let hdr_len = |network, tags: usize, options: &[u8]| {
        let mut first = Sample::new(network, Transport::Tcp);
        first.tags = vec![(0x8100, 1); tags];
        first.options = options.to_vec();
        one(&first.stream(2)).vnet.hdr_len
    };
    assert_eq!(hdr_len(Network::Ipv4, 0, &[]), 54);
    assert_eq!(hdr_len(Network::Ipv4, 0, &TIMESTAMPS), 66);
    assert_eq!(hdr_len(Network::Ipv6, 0, &[]), 74);
    assert_eq!(hdr_len(Network::Ipv6, 0, &TIMESTAMPS), 86);
    assert_eq!(hdr_len(Network::Ipv4, 1, &[]), 58);
    assert_eq!(hdr_len(Network::Ipv6, 2, &[]), 82);
}

#[test]
fn f17_completing_the_checksum_gives_a_valid_packet() {
    for network in [Network::Ipv4, Network::Ipv6] {
        for len in [1, 7, 1448, 9001] {
            let first = Sample::new(network, Transport::Tcp).payload_len(len);
            let mut packet = one(&first.stream(5));
            let vnet = packet.vnet;
            checksum::complete(&mut packet.bytes, vnet.csum_start, vnet.csum_offset).unwrap();
            let parsed = etherparse::PacketHeaders::from_ethernet_slice(&packet.bytes).unwrap();
            let tcp = parsed.transport.unwrap().tcp().unwrap();
            let expected = match parsed.net.unwrap() {
                etherparse::NetHeaders::Ipv4(ip, _) => {
                    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    tcp.calc_checksum_ipv4(&ip, parsed.payload.slice())
                }
                etherparse::NetHeaders::Ipv6(ip, _) => {
                    tcp.calc_checksum_ipv6(&ip, parsed.payload.slice())
                }
                etherparse::NetHeaders::Arp(_) => unreachable!("an IP packet was sent"),
            };
            assert_eq!(tcp.checksum, expected.unwrap());
            assert_eq!(parsed.payload.slice().len(), 5 * len);
        }
    }
}

#[test]
fn f18_a_partial_checksum_is_passed_on_or_finished() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let sample = Sample::new(Network::Ipv4, transport);
        let (frame, vnet) = sample.partial();
        let deliver = |types: GroTypes| {
            let mut rig = Rig::new(GroConfig::default(), types);
            rig.send_as(frame.clone(), vnet);
            rig.finish().remove(0)
        };
        let with = deliver(ALL);
        assert_eq!((with.vnet, &with.bytes), (vnet, &frame));
        let without = deliver(GroTypes::default());
        assert_eq!(
            (without.vnet, without.bytes),
            (VnetHdr::default(), sample.bytes())
        );
    }
}

#[test]
fn f18_partial_and_full_checksums_merge() {
    let stream = Sample::tcp4().stream(4);
    let mut rig = Rig::all();
    for (frame, is_partial) in stream.iter().zip([true, false, false, true]) {
        let (bytes, vnet) = frame.partial();
        if is_partial {
            rig.send_as(bytes, vnet);
        } else {
            rig.send(frame);
        }
    }
    let packet = rig.finish().remove(0);
    let whole: Vec<_> = stream.iter().map(Sample::bytes).collect();
    assert_eq!((packet.segs, packet.cut()), (4, whole));
}

#[test]
fn f18_a_partial_checksum_outside_the_frame_is_dropped() {
    let vnet = VnetHdr {
        flags: F_NEEDS_CSUM,
        csum_start: 60,
        csum_offset: 95,
        ..VnetHdr::default()
    };
    let mut rig = Rig::all();
    let frame = vec![0; 156];
    assert_eq!(rig.send_as(frame.clone(), vnet), GroResult::Dropped);
    assert_eq!(rig.engine.stats().dropped(DropReason::ChecksumPlace), 1);
    let inside = VnetHdr {
        csum_offset: 94,
        ..vnet
    };
    assert_eq!(rig.send_as(frame, inside), GroResult::Normal);
}

#[test]
fn f19_valid_is_claimed_only_of_what_was_verified() {
    let flags = |types: GroTypes, frame: Vec<u8>, host: u8| {
        let mut rig = Rig::new(GroConfig::default(), types);
        let vnet = VnetHdr {
            flags: host,
            ..VnetHdr::default()
        };
        rig.send_as(frame, vnet);
        rig.finish()[0].vnet.flags
    };
    let good = Sample::tcp4().bytes();
    let mut bad = good.clone();
    bad[90] ^= 1;
    let mut fragment = Sample::tcp4();
    fragment.mf = true;
    let mut sctp = good.clone();
    sctp[23] = 132;
    assert_eq!(flags(ALL, good.clone(), 0), F_DATA_VALID);
    assert_eq!(flags(ALL, bad.clone(), 0), 0);
    assert_eq!(flags(ALL, fragment.bytes(), 0), 0);
    assert_eq!(flags(ALL, sctp.clone(), 0), 0);
    assert_eq!(flags(ALL, sctp, F_DATA_VALID), F_DATA_VALID);
    let none = GroTypes::default();
    assert_eq!(flags(none, good, F_DATA_VALID), 0);
    assert_eq!(flags(none, bad, F_DATA_VALID), 0);
    let (partial, vnet) = Sample::tcp4().partial();
    let mut rig = Rig::all();
    let both = VnetHdr {
        flags: F_NEEDS_CSUM | F_DATA_VALID,
        ..vnet
    };
    rig.send_as(partial, both);
    assert_eq!(rig.finish()[0].vnet.flags, F_NEEDS_CSUM);
}

#[test]
fn f20_ip_header_of_a_merged_packet_is_right() {
    for checksum in [0_u16, 0xffff] {
        let mut first = Sample::tcp4();
        // With this identification the right checksum is zero, and all ones is right as well.
        let bytes = first.bytes();
        first.id = u16::from_be_bytes([bytes[24], bytes[25]]);
        let mut frames: Vec<_> = first.stream(3).iter().map(Sample::bytes).collect();
        frames[0][24..26].copy_from_slice(&checksum.to_be_bytes());
        let mut rig = Rig::all();
        for frame in frames {
            rig.send_as(frame, VnetHdr::default());
        }
        let packet = rig.finish().remove(0);
        assert_eq!((packet.segs, field(&packet, 16)), (3, 340));
        assert!(Sum::of(&packet.bytes[14..34]).is_all_ones());
    }
}

#[test]
fn f21_segment_size_is_that_of_the_first_segment() {
    for len in [536, 1208, 1448, 8948] {
        let packet = one(&Sample::tcp4().payload_len(len).stream(4));
        assert_eq!(usize::from(packet.vnet.gso_size), len);
    }
    let sizes = |lens: &[usize]| {
        let mut sample = Sample::tcp4();
        let frames: Vec<_> = lens
            .iter()
            .map(|len| {
                let frame = sample.clone().payload_len(*len);
                sample = frame.next();
                frame
            })
            .collect();
        merged(&frames)
    };
    assert_eq!(sizes(&[1448, 1448, 700, 1448]), [3, 1]);
    assert_eq!(sizes(&[700, 1448]), [1, 1]);
}

#[test]
fn f23_push_and_finish_show_and_close() {
    for (flag, byte) in [(PSH, 0x00), (FIN, 0xff), (PSH | FIN, 0x55)] {
        let mut frames = Sample::tcp4().stream(5);
        frames[2].flags |= flag;
        frames.iter_mut().for_each(|frame| frame.payload.fill(byte));
        assert_eq!(merged(&frames), [3, 2]);
        let packet = one(&frames[..3]);
        assert_eq!(packet.bytes[47] & (PSH | FIN), flag);
        assert!(packet.bytes[54..].iter().all(|found| *found == byte));
    }
}

#[test]
fn singles_are_delivered_as_they_came() {
    let sample = Sample::tcp6();
    let packet = one(std::slice::from_ref(&sample));
    assert_eq!(packet.bytes, sample.bytes());
    assert_eq!(packet.vnet.gso_type, GSO_NONE);
    assert_eq!((packet.vnet.hdr_len, packet.vnet.csum_start), (0, 0));
}

#[test]
fn a_runt_is_dropped() {
    let mut rig = Rig::all();
    assert_eq!(
        rig.send_as(vec![0; 13], VnetHdr::default()),
        GroResult::Dropped
    );
    assert_eq!(rig.engine.stats().dropped(DropReason::Runt), 1);
    assert!(rig.finish().is_empty());
}

/// A frame that the host merged from `segs` segments of 100 bytes, and its header.
fn host_merged(sample: &Sample, segs: usize) -> (Vec<u8>, VnetHdr) {
    let (frame, partial) = sample.clone().payload_len(100 * segs).partial();
    let gso_type = match (sample.transport, sample.network) {
        (Transport::Tcp, Network::Ipv4) => GSO_TCPV4,
        (Transport::Tcp, Network::Ipv6) => crate::wire::vnet_hdr::GSO_TCPV6,
        (Transport::Udp, _) => GSO_UDP_L4,
    };
    let vnet = VnetHdr {
        gso_type,
        gso_size: 100,
        // A tap says how much of the frame lies in one piece, not where headers end.
        hdr_len: 128,
        num_buffers: 9,
        ..partial
    };
    (frame, vnet)
}

#[test]
fn host_merged_frames_pass_in_their_place() {
    for sample in [Sample::tcp4(), Sample::tcp6(), Sample::udp4()] {
        let mut rig = Rig::all();
        rig.send(&sample);
        let mut other = sample.clone();
        other.source_port += 1;
        rig.send(&other);
        let (frame, mut vnet) = host_merged(&sample.next(), 3);
        vnet.flags |= 0x40;
        assert_eq!(rig.send_as(frame.clone(), vnet), GroResult::Normal);
        assert_eq!(rig.engine.stats().completed(FlushReason::Order), 1);
        let stats = rig.engine.stats();
        assert_eq!((stats.host_gso, stats.normal, stats.frames), (1, 1, 3));
        assert_eq!(rig.engine.held(), 1);
        let delivered = rig.drain();
        assert_eq!(delivered[0].bytes, sample.bytes());
        assert_eq!((delivered[1].segs, &delivered[1].bytes), (3, &frame));
        assert!(!delivered[1].needs_segmentation);
        let headers = frame.len() - 300;
        assert_eq!(usize::from(delivered[1].vnet.hdr_len), headers);
        assert_eq!(delivered[1].vnet.gso_size, 100);
        let header = delivered[1].vnet;
        assert_eq!((header.flags, header.num_buffers), (F_NEEDS_CSUM, 0));
    }
}

#[test]
fn a_checksum_over_another_address_becomes_partial_from_what_it_was() {
    // A routing header with one segment left: the sum covers the last stop, not the next.
    let mut sample = Sample::tcp6().payload_len(300);
    sample.extensions = vec![(43, [[2, 1, 0, 0, 0, 0].as_slice(), &[9; 16]].concat())];
    let mut frame = sample.bytes();
    let (l4, field) = sample.checksum_place();
    let pseudo = [&frame[22..38], &[9; 16]].concat();
    frame[field..field + 2].fill(0);
    let tcp_len = u16::try_from(frame.len() - l4).unwrap();
    let sum = Sum::of(&pseudo)
        .plus_word(tcp_len)
        .plus_word(6)
        .plus(&frame[l4..]);
    frame[field..field + 2].copy_from_slice(&sum.complement().to_be_bytes());
    let vnet = VnetHdr {
        flags: F_DATA_VALID,
        gso_type: GSO_TCPV6,
        gso_size: 100,
        ..VnetHdr::default()
    };
    let mut rig = Rig::all();
    assert_eq!(rig.send_as(frame.clone(), vnet), GroResult::Normal);
    let mut delivered = rig.drain().remove(0);
    let VnetHdr {
        csum_start,
        csum_offset,
        ..
    } = delivered.vnet;
    checksum::complete(&mut delivered.bytes, csum_start, csum_offset).unwrap();
    assert_eq!(delivered.bytes, frame);
}

#[test]
fn host_merged_frames_whose_segments_no_length_field_can_hold_are_dropped() {
    for (gso_size, result) in [(65_514, GroResult::Dropped), (65_495, GroResult::Normal)] {
        let mut vnet = host_merged(&Sample::tcp4(), 3).1;
        vnet.gso_size = gso_size;
        // The rest of the frame fits behind the transport header, with the IP header it does not.
        let mut frame = Sample::tcp4().bytes();
        frame.resize(54 + 65_515, 0);
        assert_eq!(Rig::all().send_as(frame, vnet), result, "{gso_size}");
    }
}

#[test]
fn host_merged_frames_that_the_guest_did_not_ack_are_to_be_cut() {
    let needs = |types: GroTypes, sample: &Sample, ecn: u8| {
        let mut rig = Rig::new(GroConfig::default(), types);
        let (frame, mut vnet) = host_merged(sample, 3);
        vnet.gso_type |= ecn;
        rig.send_as(frame, vnet);
        rig.finish()[0].needs_segmentation
    };
    let without = |change: fn(&mut GroTypes)| {
        let mut types = ALL;
        change(&mut types);
        types
    };
    assert!(!needs(ALL, &Sample::tcp4(), 0));
    assert!(!needs(ALL, &Sample::tcp4(), GSO_ECN));
    assert!(needs(without(|t| t.ecn = false), &Sample::tcp4(), GSO_ECN));
    assert!(!needs(without(|t| t.ecn = false), &Sample::tcp4(), 0));
    assert!(needs(without(|t| t.tcp4 = false), &Sample::tcp4(), 0));
    assert!(needs(without(|t| t.tcp6 = false), &Sample::tcp6(), 0));
    assert!(needs(without(|t| t.udp4 = false), &Sample::udp4(), 0));
    assert!(needs(without(|t| t.csum = false), &Sample::tcp4(), 0));
}

#[test]
fn host_merged_datagrams_beyond_128_are_to_be_cut() {
    for (sample, segs, is_cut) in [
        (Sample::udp4(), 128, false),
        (Sample::udp4(), 129, true),
        (Sample::tcp4(), 129, false),
    ] {
        let mut rig = Rig::all();
        let (frame, vnet) = host_merged(&sample, segs);
        rig.send_as(frame, vnet);
        let packet = rig.finish().remove(0);
        assert_eq!(packet.segs, u32::try_from(segs).unwrap());
        assert_eq!(packet.needs_segmentation, is_cut, "{segs}");
    }
}

#[test]
fn a_host_merged_frame_without_partial_checksum_gets_one_if_vouched_for() {
    let sample = Sample::tcp6();
    let (frame, vnet) = host_merged(&sample, 3);
    let full = sample.payload_len(300).bytes();
    let vouched = VnetHdr {
        flags: F_DATA_VALID,
        csum_start: 0,
        csum_offset: 0,
        ..vnet
    };
    let mut rig = Rig::all();
    rig.send_as(full.clone(), vouched);
    let packet = rig.drain().remove(0);
    assert_eq!((&packet.bytes, packet.vnet.flags), (&frame, F_NEEDS_CSUM));
    assert_eq!(packet.vnet.csum_start, 54);
    let unknown = VnetHdr {
        flags: 0,
        ..vouched
    };
    assert_eq!(rig.send_as(full, unknown), GroResult::Dropped);
    assert_eq!(rig.engine.stats().dropped(DropReason::GsoHeader), 1);
}

#[test]
fn a_host_header_of_one_segment_is_plain() {
    let (frame, mut vnet) = host_merged(&Sample::tcp4(), 1);
    vnet.gso_size = 1448;
    let mut rig = Rig::all();
    assert_eq!(rig.send_as(frame, vnet), GroResult::Held);
    let packet = rig.finish().remove(0);
    assert_eq!((packet.vnet.gso_type, packet.vnet.gso_size), (GSO_NONE, 0));
    assert_eq!(packet.vnet.flags, F_NEEDS_CSUM);

    let (frame, vnet) = host_merged(&Sample::tcp4(), 2);
    let mut rig = Rig::all();
    assert_eq!(rig.send_as(frame, vnet), GroResult::Normal);
    assert_eq!(rig.finish()[0].vnet.gso_size, 100);
}

#[test]
fn host_headers_that_no_guest_takes_are_dropped() {
    type Damage = fn(&mut VnetHdr);
    let damages: [Damage; 8] = [
        |v| v.gso_size = 0,
        |v| v.gso_size = u16::MAX,
        |v| v.gso_type = GSO_UDP,
        |v| v.gso_type = 0x20 | GSO_TCPV4,
        |v| v.gso_type = GSO_ECN,
        |v| v.gso_type = crate::wire::vnet_hdr::GSO_TCPV6,
        |v| v.csum_start += 1,
        |v| v.csum_offset = 6,
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let (frame, mut vnet) = host_merged(&Sample::tcp4(), 3);
        damage(&mut vnet);
        let mut rig = Rig::all();
        assert_eq!(rig.send_as(frame, vnet), GroResult::Dropped, "{number}");
    }
}
