//! Order, holding and flushing (F10 to F14).

use core::time::Duration;

use super::{ALL, Rig, merged, merged_bytes};
use crate::gro::{Conflict, FlushReason, GroConfig, GroResult, GroTypes, HashMode};
use crate::time::Instant;
use crate::wire::sample::{ACK, Sample};
use crate::wire::tcp::{CWR, FIN, PSH, RST, SYN, URG};

const ONE_BUCKET: GroConfig = GroConfig {
    enabled: true,
    gro_normal_batch: 8,
    gro_max_size: 65535,
    gro_max_segs: 65535,
    udp_gro: true,
    udp_exclude_ports: crate::gro::PortSet::TUNNELS,
    hash_mode: HashMode::Zero,
};

fn flow(number: u16) -> Sample {
    let mut sample = Sample::tcp4();
    sample.source_port += number;
    sample
}

#[test]
fn f10_a_flush_by_age_counts_from_the_first_segment() {
    let mut rig = Rig::all();
    let timeout = Duration::from_micros(20);
    let stream = flow(0).stream(3);
    assert_eq!(rig.engine.earliest(), None);
    rig.send(&stream[0]);
    rig.wait(Duration::from_micros(19));
    rig.send(&stream[1]);
    rig.send(&flow(1));
    rig.engine
        .flush_older(rig.now, timeout, FlushReason::Deadline);
    assert_eq!(
        (rig.engine.held(), rig.engine.earliest()),
        (2, Some(Instant::ZERO))
    );
    rig.wait(Duration::from_micros(1));
    rig.engine
        .flush_older(rig.now, timeout, FlushReason::Deadline);
    assert_eq!(rig.engine.earliest(), Some(Instant::from_nanos(19_000)));
    assert_eq!(rig.drain()[0].segs, 2);
    assert_eq!(rig.engine.stats().completed(FlushReason::Deadline), 1);
    // The clock may be younger than the age asked for.
    rig.engine
        .flush_older(Instant::ZERO, timeout, FlushReason::Deadline);
    assert_eq!(rig.engine.held(), 1);
}

#[test]
fn f10_a_flush_goes_bucket_by_bucket_oldest_first() {
    let mut rig = Rig::new(ONE_BUCKET, ALL);
    for number in [3, 1, 2] {
        rig.send(&flow(number));
    }
    rig.send(&flow(3).next());
    let bytes = |number: u16| flow(number).bytes();
    let delivered = rig.finish();
    assert_eq!(delivered[0].segs, 2);
    assert_eq!(delivered[1].bytes, bytes(1));
    assert_eq!(delivered[2].bytes, bytes(2));
}

#[test]
fn f10_the_oldest_of_all_buckets_leaves_when_the_pool_runs_out() {
    let mut rig = Rig::all();
    for number in 0..10 {
        rig.send(&flow(number));
        rig.wait(Duration::from_nanos(1));
    }
    for number in 0..10 {
        assert!(rig.engine.flush_oldest(FlushReason::Pool));
        assert_eq!(rig.drain()[0].bytes, flow(number).bytes());
    }
    assert!(!rig.engine.flush_oldest(FlushReason::Pool));
    assert_eq!(rig.engine.stats().completed(FlushReason::Pool), 10);
}

#[test]
fn f11_sequence_numbers_wrap() {
    for start in [1000, 0xffff_f000, 0x7fff_f000, u32::MAX - 99] {
        let mut first = Sample::tcp4();
        first.seq = start;
        assert_eq!(merged(&first.stream(100)), [100], "{start:#x}");
    }
}

#[test]
fn f12_nothing_overtakes_what_is_held() {
    type Special = fn(&mut Sample);
    let specials: [Special; 11] = [
        |s| s.flags |= PSH,
        |s| s.flags |= FIN,
        |s| s.flags |= RST,
        |s| s.flags |= URG,
        |s| s.flags = SYN,
        |s| s.flags |= CWR,
        |s| s.options = vec![1; 4],
        |s| s.ip_options = vec![1; 4],
        |s| s.mf = true,
        |s| s.padding = 3,
        |s| s.window = 5,
    ];
    for (number, special) in specials.into_iter().enumerate() {
        let mut frames = Sample::tcp4().stream(11);
        special(&mut frames[5]);
        // `merged` compares the order.
        let packets = merged(&frames);
        assert_eq!(packets.first(), Some(&if number < 2 { 6 } else { 5 }));
    }
    let mut frames: Vec<_> = Sample::tcp4()
        .stream(11)
        .iter()
        .map(Sample::bytes)
        .collect();
    frames[5][70] ^= 1;
    assert_eq!(merged_bytes(&frames), [5, 1, 5]);
}

#[test]
fn f12_what_starts_no_packet_leaves_at_once() {
    for flag in [FIN, SYN, RST, PSH, URG, CWR] {
        let mut first = Sample::tcp4();
        first.flags |= flag;
        assert_eq!(Rig::all().send(&first), GroResult::Normal, "{flag:#x}");
    }
    let mut first = Sample::tcp4();
    first.flags = 0;
    assert_eq!(
        Rig::all().send(&first),
        GroResult::Held,
        "ACK is not needed"
    );
}

#[test]
fn f12_a_fragment_completes_all_flows_between_its_hosts_and_no_other() {
    let mut rig = Rig::all();
    let mut other_host = flow(0);
    other_host.host = 7;
    let mut other_vlan = flow(0);
    other_vlan.tags = vec![(0x8100, 1)];
    for sample in [&flow(0), &flow(1), &flow(2), &other_host, &other_vlan] {
        rig.send(sample);
    }
    let mut fragment = Sample::udp4();
    fragment.fragment_offset = 5;
    rig.send(&fragment);
    assert_eq!(rig.engine.held(), 2);
    assert_eq!(rig.engine.stats().completed(FlushReason::Order), 3);
    assert_eq!(rig.drain()[3].bytes, fragment.bytes());
}

#[test]
fn f12_a_damaged_header_completes_its_own_flow_only() {
    let mut rig = Rig::all();
    rig.send(&flow(0));
    rig.send(&flow(1));
    let mut damaged = flow(1).next().bytes();
    damaged[24] ^= 1;
    rig.send_as(damaged.clone(), crate::wire::VnetHdr::default());
    assert_eq!(rig.engine.held(), 1);
    let delivered = rig.drain();
    assert_eq!(delivered[0].bytes, flow(1).bytes());
    assert_eq!(delivered[1].bytes, damaged);
}

#[test]
fn f13_bare_acks_keep_their_number_and_wait_for_nobody() {
    let mut rig = Rig::all();
    let ack = Sample::tcp4().payload_len(0);
    for _ in 0..4 {
        assert_eq!(rig.send(&ack), GroResult::Normal);
    }
    let mut handshake = ack;
    handshake.flags = SYN | ACK;
    assert_eq!(rig.send(&handshake), GroResult::Normal);
    assert_eq!(rig.engine.ready_len(), 5);
    assert_eq!(rig.engine.held(), 0);
}

#[test]
fn f13_a_bare_ack_completes_its_flow_first() {
    let mut rig = Rig::all();
    rig.send(&flow(0));
    rig.send(&flow(0).next().payload_len(0));
    let reason = FlushReason::Conflict(Conflict::NoPayload);
    assert_eq!(rig.engine.stats().completed(reason), 1);
    assert_eq!(rig.drain().len(), 2);
}

#[test]
fn f14_a_full_bucket_gives_up_its_oldest() {
    let mut rig = Rig::new(ONE_BUCKET, ALL);
    for number in 0..8 {
        rig.send(&flow(number));
    }
    // Merging does not make the oldest younger.
    assert_eq!(rig.send(&flow(0).next()), GroResult::Merged);
    assert_eq!(rig.engine.ready_len(), 0);
    assert_eq!(rig.send(&flow(8)), GroResult::Held);
    assert_eq!(rig.engine.held(), 8);
    assert_eq!(rig.drain()[0].segs, 2);
    assert_eq!(rig.engine.stats().completed(FlushReason::Eviction), 1);
}

#[test]
fn f14_every_frame_is_accounted_for() {
    let mut rig = Rig::new(ONE_BUCKET, ALL);
    let (mut sent, mut delivered) = (0_u64, 0_u64);
    for round in 0..50_u32 {
        for number in 0..20 {
            let mut sample = flow(number);
            sample.seq += round * 100;
            sample.id = u16::try_from(round).unwrap();
            rig.send(&sample);
            sent += 1;
        }
        for _ in 0..10 {
            rig.send(&flow(99).payload_len(0));
            sent += 1;
        }
        for packet in rig.drain() {
            delivered += u64::from(packet.segs);
        }
        let stats = rig.engine.stats();
        assert_eq!(stats.frames, sent);
        assert_eq!(stats.merged + stats.held + stats.normal, sent);
        assert_eq!(delivered + rig.engine.held() as u64, sent);
    }
}

#[test]
fn batches_count_segments() {
    let mut rig = Rig::all();
    let stream = flow(0).stream(8);
    for frame in &stream[..7] {
        rig.send(frame);
        assert!(!rig.engine.should_hand_over());
    }
    let mut last = stream[7].clone();
    last.flags |= PSH;
    rig.send(&last);
    assert!(rig.engine.should_hand_over());
    rig.drain();
    assert!(!rig.engine.should_hand_over());
    for number in 1..9 {
        assert!(!rig.engine.should_hand_over());
        rig.send(&flow(number).payload_len(0));
    }
    assert!(rig.engine.should_hand_over());
}

#[test]
fn a_change_of_types_completes_what_is_held_under_the_old_ones() {
    let mut rig = Rig::all();
    for frame in flow(0).stream(2) {
        rig.send(&frame);
    }
    rig.engine.set_types(GroTypes::default());
    assert_eq!(rig.engine.stats().completed(FlushReason::Teardown), 1);
    assert_eq!(rig.drain()[0].segs, 2);
    assert_eq!(rig.send(&flow(0)), GroResult::Normal);
}

#[test]
fn nothing_joins_a_packet_that_is_complete_but_not_yet_delivered() {
    let [first, second] = Sample::tcp4().stream(2).try_into().unwrap();
    let mut rig = Rig::all();
    rig.send(&first);
    rig.engine.flush_all(FlushReason::PollEnd);
    rig.send(&Sample::tcp6());
    // Shorter than the first, so it is looked up in the table.
    assert_eq!(rig.send(&second.payload_len(7)), GroResult::Held);
    assert_eq!((rig.engine.ready_len(), rig.engine.held()), (1, 2));
}
