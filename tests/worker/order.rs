//! What reaches the ring is in the order of arrival, whatever was merged on the way.

use std::time::Duration;

use crate::packet::{A, ACK, B, Built, CWR, Checksum, FIN, PSH, RST, SYN, URG, tcp4};
use crate::rig::{MSS, Rig, at_us, segment, sequence, with_timeout};

/// A timeout that no test reaches: nothing comes out because it is late.
const LONG: Duration = Duration::from_secs(1);

fn stamp(value: u8) -> Vec<u8> {
    vec![1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, 9]
}

/// Segment 5 of the stream, each with another reason not to be merged into the ones before.
fn special() -> Vec<(&'static str, Built)> {
    let base = || segment(5);
    vec![
        ("psh", base().flags(PSH | ACK).build()),
        ("fin", base().flags(FIN | ACK).build()),
        ("rst", base().flags(RST | ACK).build()),
        ("urg", base().flags(URG | ACK).urgent(1).build()),
        ("syn with data", base().flags(SYN | ACK).build()),
        ("cwr", base().flags(CWR | ACK).build()),
        ("timestamp", base().options(stamp(3)).build()),
        ("bad checksum", base().csum(Checksum::Wrong).build()),
        ("ip option", base().ip_options(vec![1; 4]).build()),
        ("ttl", base().ttl(63).build()),
        ("bare ack", base().payload(0).build()),
        ("ip checksum", base().ip_csum(Checksum::Wrong).build()),
        ("fragment", base().mf(true).df(false).build()),
    ]
}

/// The sequence number of a frame, behind IPv4 options if there are any.
fn seq(frame: &[u8]) -> u32 {
    let l4 = 14 + usize::from(frame[14] & 15) * 4;
    u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap())
}

#[test]
fn f12_a_frame_that_cannot_merge_keeps_its_place() {
    for (name, special) in special() {
        // A border between batches may lie anywhere.
        for border in 0..12 {
            let mut rig = Rig::new(&with_timeout(LONG));
            let mut frames: Vec<_> = (0..5).map(|nth| segment(nth).build()).collect();
            frames.push(special.clone());
            frames.extend((6..11).map(|nth| segment(nth).build()));
            let (first, second) = frames.split_at(border.min(frames.len()));
            rig.inject_all(first);
            rig.settle(at_us(10));
            rig.inject_all(second);
            rig.rest(at_us(20));
            let packets = rig.rx.packets();
            let mut at = 1;
            for packet in &packets {
                assert_eq!(seq(&packet.frame), at, "{name}, border {border}");
                at += u32::try_from(packet.segs() * MSS).unwrap();
            }
            let segs: usize = packets.iter().map(crate::rig::Got::segs).sum();
            assert_eq!(segs, 11, "{name}, border {border}");
            rig.check_conservation(11);
        }
    }
}

#[test]
fn f13_bare_acks_are_neither_held_nor_merged() {
    let mut rig = Rig::new(&with_timeout(LONG));
    let ack = tcp4(B, A).payload(0);
    let sack = |edge: u8| vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, edge];
    let frames = [
        tcp4(B, A).flags(SYN).build(),
        tcp4(A, B).flags(SYN | ACK).build(),
        ack.clone().build(),
        ack.clone().ack(7).build(),
        ack.clone().ack(7).build(),
        ack.clone().ack(7).build(),
        ack.clone().ack(7).build(),
        ack.clone().ack(7).options(sack(9)).build(),
        ack.clone().ack(7).options(sack(8)).build(),
        ack.clone().ack(7).window(1000).build(),
        ack.ack(7).window(2000).build(),
    ];
    rig.inject_all(&frames);
    rig.settle(at_us(1));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), frames.len());
    for (packet, frame) in packets.iter().zip(&frames) {
        assert_eq!(packet.frame, frame.bytes);
    }
}

#[test]
fn f13_an_ack_brings_out_what_its_flow_holds() {
    let mut rig = Rig::new(&with_timeout(LONG));
    rig.inject(&segment(0).build());
    rig.inject(&segment(1).build());
    rig.inject(&segment(2).payload(0).build());
    rig.settle(at_us(1));
    let packets = rig.rx.packets();
    assert_eq!(sequence(&packets), [1, 1449, 2897]);
    assert_eq!(packets.len(), 2);
}

#[test]
fn another_flow_does_not_wait_for_one_that_is_held() {
    let mut rig = Rig::new(&with_timeout(LONG));
    rig.inject(&segment(0).build());
    rig.inject(&tcp4(A.port(9), B).flags(PSH | ACK).payload(20).build());
    rig.settle(at_us(1));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].frame.len(), 74);
}
