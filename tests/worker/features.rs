//! What the guest gets is what it acked, in this session and not in the one before.

use std::time::Duration;

use vhost_user_gro::device::Features;
use vhost_user_gro::gro::{GroConfig, PortSet};
use vhost_user_gro::uplink::Offloads;
use vhost_user_gro::wire::vnet_hdr::{
    F_DATA_VALID, F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4,
};
use vhost_user_gro::worker::PairConfig;

use crate::packet::{A, B, Built, Packet, tcp4, tcp6, udp4, udp6};
use crate::rig::{
    BUFFER, Got, HEADERS, MSS, Rig, at_us, config, linux, plain, segment, sequence, with_timeout,
};

const GUEST: [Features; 6] = [
    Features::GUEST_CSUM,
    Features::GUEST_TSO4,
    Features::GUEST_TSO6,
    Features::GUEST_ECN,
    Features::MRG_RXBUF,
    Features::EVENT_IDX,
];

/// Every set of these features in which segmentation comes with checksums.
fn legal_sets() -> impl Iterator<Item = Features> {
    (0..1_u32 << GUEST.len())
        .map(|bits| {
            GUEST
                .iter()
                .enumerate()
                .filter(|(nth, _)| bits >> nth & 1 == 1)
                .fold(plain(), |set, (_, feature)| set | *feature)
        })
        .filter(|set| {
            let has = |feature| set.contains(feature);
            let tso = has(Features::GUEST_TSO4) || has(Features::GUEST_TSO6);
            (!tso || has(Features::GUEST_CSUM)) && (!has(Features::GUEST_ECN) || tso)
        })
}

/// Two interleaved streams, one of each IP version, and a packet that the host merged.
fn traffic() -> Vec<Built> {
    let mut frames = Vec::new();
    for nth in 0..5 {
        frames.push(segment(nth).build());
        frames.push(tcp6(A, B).seq(1 + nth * 1428).payload(1428).build());
    }
    frames.push(
        segment(5)
            .payload(3 * MSS)
            .partial_csum()
            .host_gso_size(Some(1448))
            .build(),
    );
    frames.push(
        tcp6(A, B)
            .seq(1 + 5 * 1428)
            .payload(500)
            .partial_csum()
            .build(),
    );
    frames
}

/// Payload of all packets of one IP version, in order.
fn stream(packets: &[Got], ethertype: [u8; 2], headers: usize) -> Vec<u8> {
    packets
        .iter()
        .filter(|packet| packet.frame[12..14] == ethertype)
        .flat_map(|packet| packet.frame[headers..].iter().copied())
        .collect()
}

fn check_header(packet: &Got, features: Features) {
    let vnet = &packet.vnet;
    if !features.contains(Features::GUEST_CSUM) {
        assert_eq!(vnet.flags, 0, "{features:?}");
    }
    assert_eq!(vnet.flags & !(F_NEEDS_CSUM | F_DATA_VALID), 0);
    match vnet.gso_type {
        GSO_NONE => assert!(packet.frame.len() <= 1514, "{features:?}"),
        GSO_TCPV4 => assert!(features.contains(Features::GUEST_TSO4)),
        GSO_TCPV6 => assert!(features.contains(Features::GUEST_TSO6)),
        other => panic!("type {other} was never acked"),
    }
    if vnet.gso_type != GSO_NONE {
        assert_eq!(vnet.flags, F_NEEDS_CSUM);
    }
    if !features.contains(Features::MRG_RXBUF) {
        assert_eq!(vnet.num_buffers, 1);
    }
}

#[test]
fn f33_every_legal_set_gets_the_same_payload_in_its_own_form() {
    let frames = traffic();
    let payload = |headers: usize, wanted: [u8; 2]| -> Vec<u8> {
        frames
            .iter()
            .filter(|frame| frame.bytes[12..14] == wanted)
            .flat_map(|frame| frame.bytes[headers..].iter().copied())
            .collect()
    };
    let (v4, v6) = (payload(54, [8, 0]), payload(74, [0x86, 0xdd]));
    let mut merged = 0;
    for features in legal_sets() {
        let mut rig = Rig::unstarted(&config(), 256);
        rig.features = features;
        let is_large =
            features.contains(Features::GUEST_TSO4) && !features.contains(Features::MRG_RXBUF);
        if is_large {
            rig.rx.post_rx(64, 66_000);
        } else {
            rig.rx.post_rx(256, BUFFER);
        }
        rig.apply(at_us(0));
        rig.inject_all(&frames);
        rig.rest(at_us(1));
        let packets = rig.rx.packets();
        for packet in &packets {
            check_header(packet, features);
        }
        merged += packets.iter().filter(|packet| packet.segs() > 1).count();
        assert!(stream(&packets, [8, 0], 54) == v4, "{features:?}");
        assert!(stream(&packets, [0x86, 0xdd], 74) == v6, "{features:?}");
        assert_eq!(rig.rx_stats().pool_in_use, 0);
    }
    assert!(merged > 20, "sets with segmentation do get super-frames");
}

/// Trains of five datagrams, one of each IP version, interleaved.
fn trains() -> Vec<Built> {
    let of_both = |payload| [udp4(A, B).payload(payload), udp6(A, B).payload(payload)];
    (0..5)
        .flat_map(|_| of_both(1200))
        .map(|packet: Packet| packet.build())
        .collect()
}

/// What a guest with these features gets of [`trains`], one IP version after the other.
fn delivered(rig: &mut Rig, features: Features) -> [Vec<Got>; 2] {
    rig.features = features;
    rig.rx.post_rx(24, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&trains());
    rig.rest(at_us(1));
    let packets = rig.rx.packets();
    rig.stop(at_us(100_000));
    rig.rx.restart();
    let is_ip4 = |got: &Got| got.frame[12..14] == [8, 0];
    let (ip4, ip6) = packets.into_iter().partition(is_ip4);
    [ip4, ip6]
}

/// As one packet if merging is wanted, else each as it came.
fn check_train(packets: &[Got], sent: &[Built], is_merged: bool) {
    if is_merged {
        assert_eq!(packets.len(), 1);
        let vnet = &packets[0].vnet;
        assert_eq!((vnet.gso_type, vnet.gso_size), (GSO_UDP_L4, 1200));
        assert_eq!((vnet.flags, vnet.csum_offset), (F_NEEDS_CSUM, 6));
        assert_eq!(packets[0].segs(), 5);
    } else {
        let frames = packets.iter().map(|got| &got.frame);
        assert!(frames.eq(sent.iter().map(|frame| &frame.bytes)));
        assert!(packets.iter().all(|got| got.vnet.gso_type == GSO_NONE));
    }
}

#[test]
fn f33_datagrams_merge_for_a_guest_that_acked_it_for_their_ip_version() {
    let bits = [Features::GUEST_USO4, Features::GUEST_USO6];
    let (ip4, ip6): (Vec<_>, Vec<_>) = trains()
        .into_iter()
        .partition(|frame| frame.bytes[12..14] == [8, 0]);
    // One rig for all: what a session acked must not be seen by the next.
    let mut rig = Rig::unstarted(&config(), 256);
    for base in [linux(), plain()] {
        for acked in [3, 0, 1, 2] {
            let has = |nth: usize| acked >> nth & 1 == 1;
            let features = [0, 1]
                .into_iter()
                .filter(|&nth| has(nth))
                .fold(base, |features, nth| features | bits[nth]);
            let [got4, got6] = delivered(&mut rig, features);
            let can = base.contains(Features::GUEST_CSUM);
            check_train(&got4, &ip4, can && has(0));
            check_train(&got6, &ip6, can && has(1));
        }
    }
}

#[test]
fn datagrams_stay_alone_where_the_configuration_says_so() {
    let port = trains()[0].bytes[36..38].try_into().map(u16::from_be_bytes);
    let excluded = PortSet::new(&[port.expect("two bytes")]).expect("it is one");
    for gro in [
        GroConfig {
            udp_gro: false,
            ..GroConfig::default()
        },
        GroConfig {
            udp_exclude_ports: excluded,
            ..GroConfig::default()
        },
    ] {
        let config = PairConfig { gro, ..config() };
        let mut rig = Rig::unstarted(&config, 256);
        let uso = Features::GUEST_USO4 | Features::GUEST_USO6;
        let packets = delivered(&mut rig, linux() | uso).concat();
        assert_eq!(packets.len(), trains().len());
        assert!(packets.iter().all(|got| got.vnet.gso_type == GSO_NONE));
    }
}

#[test]
fn f31_a_legacy_guest_gets_a_header_of_10_bytes() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.features = Features::default();
    rig.rx.post_rx(8, 1524);
    rig.apply(at_us(0));
    let frame = segment(0).payload(1460).build();
    rig.inject(&frame);
    rig.rest(at_us(1));
    let used = rig.rx.driver.collect().expect("it fits exactly");
    assert_eq!(rig.rx.driver.written(&used)[10..], frame.bytes);
}

fn offloads(csum: bool, tso4: bool, tso6: bool, ecn: bool) -> Offloads {
    Offloads {
        csum,
        tso4,
        tso6,
        ecn,
        uso: false,
    }
}

#[test]
fn f36_the_uplink_follows_the_set_up() {
    let mut rig = Rig::new(&config());
    assert_eq!(rig.peer.offloads(), offloads(true, true, true, true));
    rig.features = plain() | Features::GUEST_CSUM | Features::GUEST_TSO6;
    rig.apply(at_us(1));
    assert_eq!(rig.peer.offloads(), offloads(true, false, true, false));
    // The host has one switch for both IP versions.
    rig.features = linux() | Features::GUEST_USO4;
    rig.apply(at_us(1));
    assert_eq!(rig.peer.offloads(), offloads(true, true, true, true));
    rig.features = rig.features | Features::GUEST_USO6;
    rig.apply(at_us(1));
    assert!(rig.peer.offloads().uso);
    // Segmentation without checksums is no set at all.
    rig.features = plain() | Features::GUEST_TSO4 | Features::GUEST_ECN;
    rig.apply(at_us(2));
    assert_eq!(rig.peer.offloads(), Offloads::default());
    rig.features = linux();
    rig.apply(at_us(3));
    assert_eq!(rig.peer.offloads(), offloads(true, true, true, true));
    rig.stop(at_us(4));
    assert_eq!(rig.peer.offloads(), Offloads::default());
}

#[test]
fn f37_nothing_of_one_session_is_seen_by_the_next() {
    let mut rig = Rig::new(&with_timeout(Duration::from_secs(1)));
    // Held at the moment of the stop: delivered, because the ring can take it.
    rig.inject_all(&(0..3).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    rig.settle(at_us(1));
    rig.stop(at_us(2));
    let packets = rig.rx.packets();
    assert_eq!(sequence(&packets), [1, 1449, 2897]);
    assert_eq!(rig.rx.calls(), 1);

    // A minimal driver on the same memory, with one small ring.
    rig.features = plain();
    rig.rx.restart();
    rig.apply(at_us(3));
    let frame = tcp4(B, A).payload(100).build();
    rig.inject(&frame);
    rig.rest(at_us(4));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].frame, frame.bytes);
    assert_eq!(packets[0].vnet.flags, 0);
    rig.stop(at_us(5));

    // And one as the first.
    rig.features = linux();
    rig.rx.restart();
    rig.apply(at_us(6));
    rig.inject_all(&(3..5).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    rig.rest(at_us(7));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].segs(), 2);
    rig.check_conservation(6);
}

#[test]
fn f37_what_the_ring_cannot_take_any_more_is_dropped_and_counted() {
    let mut rig = Rig::unstarted(&with_timeout(Duration::from_secs(1)), 8);
    rig.rx.post_rx(1, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&(0..3).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    rig.settle(at_us(1));
    rig.stop(at_us(2));
    assert!(rig.rx.packets().is_empty());
    assert_eq!(rig.rx_stats().dropped_at_stop, 3);
    rig.rx.restart();
    rig.rx.post_rx(7, BUFFER);
    rig.apply(at_us(3));
    rig.rest(at_us(4));
    assert!(rig.rx.packets().is_empty());
    rig.check_conservation(3);
}

#[test]
fn f66_a_frame_above_the_mtu_is_dropped_and_counted() {
    let with_mtu = PairConfig {
        mtu: Some(1500),
        ..config()
    };
    let sized = |len: usize| tcp4(A, B).payload(len - HEADERS).build();
    let tag = |count: usize| vec![(0x8100, 5); count];
    for (frame, is_allowed) in [
        (sized(1514), true),
        (sized(1515), false),
        (tcp4(A, B).vlan(tag(1)).payload(1460).build(), true),
        (tcp4(A, B).vlan(tag(1)).payload(1461).build(), false),
        (tcp4(A, B).vlan(tag(2)).payload(1460).build(), true),
        (tcp4(A, B).vlan(tag(2)).payload(1461).build(), false),
    ] {
        for negotiated in [true, false] {
            let mut rig = Rig::unstarted(&with_mtu, 8);
            rig.features = if negotiated {
                linux() | Features::MTU
            } else {
                linux()
            };
            rig.rx.post_rx(8, 4096);
            rig.apply(at_us(0));
            rig.inject(&frame);
            rig.rest(at_us(1));
            let is_delivered = is_allowed || !negotiated;
            assert_eq!(rig.rx.packets().len(), usize::from(is_delivered));
            assert_eq!(rig.rx_stats().above_mtu, u64::from(!is_delivered));
            rig.check_conservation(1);
        }
    }
}

#[test]
fn f66_merging_and_host_packets_may_be_longer_than_the_mtu() {
    let mut rig = Rig::unstarted(
        &PairConfig {
            mtu: Some(1500),
            ..config()
        },
        256,
    );
    rig.features = linux() | Features::MTU;
    rig.rx.post_rx(256, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&(0..10).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    let host = |gso_size| {
        tcp4(B, A)
            .payload(4000)
            .partial_csum()
            .host_gso_size(Some(gso_size))
            .build()
    };
    rig.inject_all(&[host(1448), host(1460), host(1461), host(9000)]);
    rig.rest(at_us(1));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 3);
    assert_eq!(rig.rx_stats().above_mtu, 2, "by segment, not by total");
}
