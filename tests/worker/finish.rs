//! What the uplink cannot do for a frame from the guest is done in front of it (rules TX-7, TX-8,
//! TX-10). Segments are judged by `etherparse`.

use vhost_user_gro::device::Features;
use vhost_user_gro::uplink::Offloads;
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{
    F_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET_HDR_LEN,
};
use vhost_user_gro::worker::PairConfig;

use crate::cut::{Headers, cut, has_right_checksum, word};
use crate::packet::{A, ACK, B, CWR, FIN, PSH, Packet, tcp4, tcp6, udp4, udp6};
use crate::recording::{Recording, Refusal, Sent};
use crate::rig::{Rig, all_offloads, at_us, config, linux};

/// Payload of a segment.
pub(crate) const GSO: usize = 1000;
/// Timestamps.
const OPTIONS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 1];

/// What an uplink has that can do nothing.
const NOTHING: Offloads = Offloads {
    csum: false,
    tso4: false,
    tso6: false,
    ecn: false,
    uso: false,
};

/// A running pair on an uplink that takes over what `host` says, with a guest that acked all there
/// is on transmit but `without`.
fn on(host: Offloads, without: Features) -> (Rig, Recording) {
    let config = PairConfig {
        uplink_offloads: host,
        ..config()
    };
    let (mut rig, uplink) = Recording::rig(&config);
    rig.features = (linux()
        | Features::HOST_TSO4
        | Features::HOST_TSO6
        | Features::HOST_ECN
        | Features::HOST_USO)
        .without(without);
    rig.apply(at_us(0));
    (rig, uplink)
}

/// A packet whose checksum is partial, and what is to be done about it.
pub(crate) fn packet(packet: &Packet, gso_type: u8) -> (VnetHdr, Vec<u8>) {
    let built = packet.clone().partial_csum().build();
    let gso_size = if gso_type == 0 { 0 } else { GSO };
    let vnet = VnetHdr {
        gso_type,
        gso_size: u16::try_from(gso_size).unwrap(),
        ..built.meta.vnet
    };
    (vnet, built.bytes)
}

/// Posts it in buffers of at most `piece` bytes.
pub(crate) fn post(rig: &mut Rig, (vnet, bytes): &(VnetHdr, Vec<u8>), piece: usize) {
    let message = [&vnet.encode()[..], bytes].concat();
    let mut lens = vec![u32::try_from(VNET_HDR_LEN).unwrap()];
    lens.extend(
        bytes
            .chunks(piece)
            .map(|piece| u32::try_from(piece.len()).unwrap()),
    );
    rig.tx.driver.post_tx(&message, &lens);
    rig.tx.kick();
}

/// What comes out for one packet.
fn sent(host: Offloads, message: &(VnetHdr, Vec<u8>)) -> Vec<Sent> {
    let (mut rig, uplink) = on(host, Features::default());
    post(&mut rig, message, 4000);
    rig.settle(at_us(1));
    let used = rig.tx.driver.collect_all();
    assert!(used.len() == 1 && used[0].len == 0);
    uplink.sent()
}

/// A packet of each type, with one tag.
pub(crate) fn kinds(payload: usize) -> [(VnetHdr, Vec<u8>); 4] {
    let of = |base: Packet, gso_type| {
        let tagged = base.vlan(vec![(0x8100, 7)]).id(0xfffe);
        let tagged = tagged.seq(u32::MAX - 1500).flags(ACK | PSH | FIN);
        packet(&tagged.payload(payload), gso_type)
    };
    let options = || OPTIONS.to_vec();
    [
        of(tcp4(A, B).options(options()), GSO_TCPV4),
        of(tcp6(A, B).options(options()), GSO_TCPV6),
        of(udp4(A, B), GSO_UDP_L4),
        of(udp6(A, B), GSO_UDP_L4),
    ]
}

#[test]
fn f41_segments_are_what_a_sender_with_that_mss_would_have_sent() {
    for payload in [1, GSO, GSO + 1, 10 * GSO, 10 * GSO + 1] {
        for message in kinds(payload) {
            let segments = sent(NOTHING, &message);
            let (vnet, whole) = &message;
            assert_eq!(segments.len(), payload.div_ceil(GSO));
            let frames: Vec<_> = segments.iter().map(|sent| sent.frame.clone()).collect();
            assert_eq!(frames, cut(vnet, whole).unwrap());
            let headers = Headers::of(whole).unwrap();
            let mut bytes = Vec::<u8>::new();
            for (nth, sent) in segments.iter().enumerate() {
                assert_eq!(sent.vnet, VnetHdr::default(), "nothing is left to do");
                let frame = &sent.frame;
                assert!(has_right_checksum(frame));
                bytes.extend(&frame[headers.payload..]);
                if headers.is_ipv4 {
                    let id = word(frame, headers.l3 + 4);
                    assert_eq!(id, 0xfffe_u16.wrapping_add(u16::try_from(nth).unwrap()));
                }
                if headers.is_tcp {
                    let flags = word(frame, headers.l4 + 12) & (PSH | FIN);
                    let is_last = nth + 1 == segments.len();
                    assert_eq!(flags, if is_last { PSH | FIN } else { 0 });
                }
            }
            assert_eq!(bytes, whole[headers.payload..]);
        }
    }
}

#[test]
fn f41_the_segments_are_the_same_however_the_packet_lies_in_memory() {
    let message = packet(&tcp4(A, B).payload(60_000), GSO_TCPV4);
    let expected = cut(&message.0, &message.1).unwrap();
    for piece in [60_054, 54, 55, 1500, 4096, 30_000] {
        let (mut rig, uplink) = on(NOTHING, Features::default());
        let pieces = message.1.len().div_ceil(piece);
        if pieces > 250 {
            continue;
        }
        post(&mut rig, &message, piece);
        rig.settle(at_us(1));
        assert_eq!(uplink.frames(), expected, "in pieces of {piece}");
    }
}

#[test]
fn tx_7_only_what_the_uplink_lacks_is_done_here() {
    let all = all_offloads();
    for (lacks, cut_kinds) in [
        (all, [false; 4]),
        (Offloads { tso4: false, ..all }, [true, false, false, false]),
        (Offloads { tso6: false, ..all }, [false, true, false, false]),
        (Offloads { uso: false, ..all }, [false, false, true, true]),
        (Offloads { ecn: false, ..all }, [false; 4]),
        (Offloads { csum: false, ..all }, [true; 4]),
        (NOTHING, [true; 4]),
    ] {
        for (message, is_cut) in kinds(3 * GSO).iter().zip(cut_kinds) {
            let sent = sent(lacks, message);
            let (vnet, whole) = message;
            if is_cut {
                assert_eq!(sent.len(), 3, "{lacks:?}");
            } else {
                assert_eq!(sent.len(), 1, "{lacks:?}");
                assert_eq!(sent[0].frame, *whole);
                assert_eq!(sent[0].vnet.gso_type, vnet.gso_type);
            }
        }
    }
}

#[test]
fn tx_8_a_checksum_is_finished_where_the_uplink_carries_no_mark() {
    for base in [tcp4(A, B), tcp6(A, B), udp4(A, B), udp6(A, B)] {
        // Copied whole, and with a part in guest memory.
        for payload in [0, 1, 1447, 1448, 8999] {
            let message = packet(&base.clone().payload(payload), 0);
            let with_mark = sent(all_offloads(), &message);
            assert_eq!(with_mark[0].frame, message.1);
            assert_eq!(with_mark[0].vnet.flags, F_NEEDS_CSUM);
            let without = sent(NOTHING, &message);
            assert_eq!(without.len(), 1);
            assert_eq!(without[0].vnet, VnetHdr::default());
            assert_eq!(
                without[0].frame,
                base.clone().payload(payload).build().bytes,
                "{payload} bytes"
            );
        }
    }
}

#[test]
fn tx_8_a_udp_checksum_of_zero_becomes_all_ones() {
    let (vnet, mut bytes) = packet(&udp4(A, B).payload(2), 0);
    let headers = Headers::of(&bytes).unwrap();
    // The payload that makes the sum all ones.
    bytes[headers.payload..].fill(0);
    let field = headers.l4 + 6;
    bytes[field..field + 2].fill(0);
    let missing = headers.checksum(&bytes);
    bytes[headers.payload..].copy_from_slice(&missing.to_be_bytes());
    let pseudo = headers.pseudo_sum(&bytes);
    bytes[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    let sent = sent(NOTHING, &(vnet, bytes));
    assert_eq!(word(&sent[0].frame, field), 0xffff);
    assert!(has_right_checksum(&sent[0].frame));
}

#[test]
fn tx_10_cwr_is_left_to_an_uplink_that_can_be_told_and_else_put_on_the_first_alone() {
    let without_ecn = Offloads {
        ecn: false,
        ..all_offloads()
    };
    for (base, gso_type) in [(tcp4(A, B), GSO_TCPV4), (tcp6(A, B), GSO_TCPV6)] {
        let with_cwr = base.payload(3 * GSO).flags(ACK | CWR | PSH);
        for (host, ecn_bit, is_cut) in [
            (all_offloads(), GSO_ECN, false),
            (all_offloads(), 0, true),
            (without_ecn, GSO_ECN, true),
            (without_ecn, 0, true),
        ] {
            let message = packet(&with_cwr, gso_type | ecn_bit);
            let sent = sent(host, &message);
            if !is_cut {
                assert_eq!(sent.len(), 1);
                assert_eq!(sent[0].vnet.gso_type, gso_type | GSO_ECN);
                continue;
            }
            let l4 = usize::from(message.0.csum_start);
            let flags = sent
                .iter()
                .map(|sent| word(&sent.frame, l4 + 12) & (CWR | PSH));
            assert_eq!(flags.collect::<Vec<_>>(), [CWR, 0, PSH]);
        }
    }
}

#[test]
fn tx_10_a_guest_without_the_feature_has_its_cwr_cut_here() {
    let (mut rig, uplink) = on(all_offloads(), Features::HOST_ECN);
    let with_cwr = tcp4(A, B).payload(3 * GSO).flags(ACK | CWR);
    post(&mut rig, &packet(&with_cwr, GSO_TCPV4), 4000);
    rig.settle(at_us(1));
    assert_eq!(uplink.sent().len(), 3);
    assert_eq!(rig.tx_stats().segmented, 1);
}

#[test]
fn tx_4_a_packet_goes_on_with_the_segment_that_had_no_room() {
    let (mut rig, uplink) = on(NOTHING, Features::default());
    let messages = [
        packet(&tcp4(A, B).payload(10 * GSO), GSO_TCPV4),
        packet(&tcp4(A.port(7), B).payload(GSO), 0),
        packet(&udp4(A, B).payload(5 * GSO), GSO_UDP_L4),
    ];
    uplink.set_room(3, Refusal::Full);
    for message in &messages {
        post(&mut rig, message, 4000);
    }
    rig.settle(at_us(1));
    assert_eq!((uplink.sent().len(), rig.tx_stats().frames), (3, 0));
    assert!(rig.tx.driver.collect_all().is_empty(), "it is not sent yet");
    for (room, so_far) in [(5, 8), (3, 11), (1, 12)] {
        uplink.set_room(room, Refusal::Full);
        rig.settle(at_us(2));
        assert_eq!(uplink.sent().len(), so_far);
    }
    uplink.open();
    rig.settle(at_us(3));
    let mut expected = cut(&messages[0].0, &messages[0].1).unwrap();
    expected.push(tcp4(A.port(7), B).payload(GSO).build().bytes);
    expected.extend(cut(&messages[2].0, &messages[2].1).unwrap());
    assert_eq!(uplink.frames(), expected);
    assert_eq!(rig.tx.driver.collect_all().len(), 3);
    let stats = rig.tx_stats();
    assert_eq!((stats.segmented, stats.checksums_finished), (2, 1));
}

#[test]
fn a_stop_in_the_middle_of_a_packet_begins_it_anew() {
    let (mut rig, uplink) = on(NOTHING, Features::default());
    let message = packet(&tcp4(A, B).payload(5 * GSO), GSO_TCPV4);
    uplink.set_room(2, Refusal::Full);
    post(&mut rig, &message, 4000);
    rig.settle(at_us(1));
    assert_eq!(rig.stop(at_us(2)).tx, Some(0));
    uplink.open();
    rig.tx.restart();
    rig.apply(at_us(3));
    rig.settle(at_us(3));
    let segments = cut(&message.0, &message.1).unwrap();
    assert_eq!(uplink.frames(), [&segments[..2], &segments].concat());
}

#[test]
fn f38_a_packet_that_cannot_be_cut_is_dropped_and_the_next_one_sent() {
    // A fragment passes the checks of its header, but no segments can be made of it.
    let (mut rig, uplink) = on(NOTHING, Features::default());
    let fragment = packet(&tcp4(A, B).mf(true).payload(3 * GSO), GSO_TCPV4);
    let good = packet(&tcp4(A, B).payload(GSO), 0);
    post(&mut rig, &fragment, 4000);
    post(&mut rig, &good, 4000);
    rig.settle(at_us(1));
    assert_eq!(uplink.sent().len(), 1);
    assert_eq!(rig.tx_stats().dropped_misfit, 1);
    assert_eq!(rig.tx.driver.collect_all().len(), 2);
}

/// What the kinds of uplinks take over; a new combination belongs here.
#[test]
fn f43_on_every_kind_of_uplink_the_checksum_is_right_or_the_mark_is_there() {
    let all = all_offloads();
    for host in [all, Offloads { uso: false, ..all }, NOTHING] {
        let mut messages = kinds(7 * GSO).to_vec();
        for base in [tcp4(A, B), tcp6(A, B), udp4(A, B), udp6(A, B)] {
            messages.push(packet(&base.payload(GSO), 0));
        }
        for message in &messages {
            for sent in sent(host, message) {
                let is_marked = sent.vnet.flags & F_NEEDS_CSUM != 0;
                assert!(!is_marked || host.csum, "nobody would see the mark");
                assert!(is_marked || has_right_checksum(&sent.frame));
            }
        }
    }
}

#[test]
fn a_guest_that_negotiated_nothing_sends_its_frames_as_they_are() {
    for host in [all_offloads(), NOTHING] {
        let config = PairConfig {
            uplink_offloads: host,
            ..config()
        };
        let (mut rig, uplink) = Recording::rig(&config);
        rig.features = Features::default();
        rig.apply(at_us(0));
        let frame = tcp4(A, B).payload(GSO).build().bytes;
        // Its header has 10 bytes, whatever is in them.
        let message = [&[0; 10][..], &frame].concat();
        rig.tx.driver.post_tx(&message, &[10, 1000, 54]);
        // Not a thing that it may ask for.
        let (vnet, bytes) = packet(&tcp4(A, B).payload(GSO), 0);
        let message = [&vnet.encode()[..10], &bytes].concat();
        rig.tx.driver.post_tx(&message, &[10, 1054]);
        rig.tx.kick();
        rig.settle(at_us(1));
        assert_eq!(uplink.frames(), [frame]);
        assert_eq!(rig.tx_stats().ring.drops.total(), 1);
        assert_eq!(rig.tx.driver.collect_all().len(), 2);
    }
}
