//! A guest that is short of buffers: nothing half delivered, nothing lost, nothing stuck.

use std::time::Duration;

use vhost_user_gro::worker::PairConfig;

use crate::packet::{A, ACK, B, Built, PSH, tcp4};
use crate::rig::{
    BUFFER, HEADERS, MSS, Rig, at_us, config, linux, plain, segment, sequence, with_timeout,
};

/// Merging within one poll only, so that tests need no second deadline.
fn at_poll_end() -> PairConfig {
    with_timeout(Duration::ZERO)
}

/// Frames of one stream that are delivered one by one.
fn singles(count: u32) -> Vec<Built> {
    (0..count)
        .map(|nth| segment(nth).flags(PSH | ACK).build())
        .collect()
}

#[test]
fn f26_a_packet_waits_whole_for_its_buffers() {
    let mut rig = Rig::unstarted(&at_poll_end(), 256);
    rig.rx.post_rx(3, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&(0..4).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    rig.settle(at_us(1));
    assert_eq!(
        rig.rx.driver.used_idx(),
        0,
        "3 buffers are too few for 5858 bytes"
    );
    assert_eq!(rig.rx.calls(), 0);

    rig.rx.post_rx(2, BUFFER);
    rig.rx.kick();
    rig.settle(at_us(2));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].segs(), 4);
    assert_eq!(packets[0].vnet.num_buffers, 4);
    rig.check_conservation(4);
}

#[test]
fn f26_a_guest_that_never_fills_its_ring_gets_segments_after_a_while() {
    let mut rig = Rig::unstarted(&at_poll_end(), 256);
    rig.rx.post_rx(3, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&(0..4).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    let due = rig
        .settle(at_us(0))
        .expect("the packet does not wait for ever");
    assert_eq!(due, at_us(10_000));
    assert_eq!(
        rig.settle(due),
        None,
        "no buffer is left, so a kick will come"
    );
    let (packets, chains) = rig.rx.collect();
    assert_eq!(sequence(&packets), [1, 1449, 2897]);
    assert!(packets.iter().all(|packet| packet.vnet.gso_size == 0));

    // The rest follows with the next buffers.
    rig.rx.give_back(&chains);
    rig.rx.kick();
    assert_eq!(rig.settle(at_us(20_000)), None);
    assert_eq!(sequence(&rig.rx.packets()), [4345]);
    rig.check_conservation(4);
    assert_eq!(rig.rx_stats().resegmented, 1);

    // Another such packet is not made to wait, as the last one waited in vain.
    rig.rx.post_rx(1, BUFFER);
    rig.inject_all(&(4..8).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    assert_eq!(rig.settle(at_us(30_000)), None);
    assert_eq!(rig.rx.packets().len(), 3);

    // One that finds its buffers ends that.
    rig.rx.post_rx(200, BUFFER);
    rig.rx.kick();
    rig.settle(at_us(40_000));
    rig.inject_all(&(8..20).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    rig.settle(at_us(40_000));
    assert_eq!(rig.rx.packets().last().unwrap().segs(), 12);
    rig.check_conservation(20);
}

#[test]
fn f10_a_guest_without_any_buffer_costs_no_wake_ups() {
    let mut rig = Rig::unstarted(&at_poll_end(), 256);
    rig.apply(at_us(0));
    rig.inject_all(&(0..4).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    assert_eq!(rig.settle(at_us(1)), None);
    rig.inject_all(&singles(3));
    let polls = rig.rx_stats().polls;
    assert_eq!(rig.settle(at_us(1_000_000)), None);
    assert_eq!(rig.rx_stats().polls, polls, "the uplink is masked");
}

#[test]
fn f27_a_plain_frame_too_large_for_its_chain_is_dropped_and_the_next_arrives() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.features = plain();
    rig.rx.post_rx(8, 1526);
    rig.apply(at_us(0));
    let sized = |seq, len: usize| {
        tcp4(A, B)
            .flags(PSH | ACK)
            .seq(seq)
            .payload(len - HEADERS)
            .build()
    };
    rig.inject_all(&[sized(1, 1514), sized(2, 1600), sized(3, 1514)]);
    rig.settle(at_us(1));
    assert_eq!(sequence(&rig.rx.packets()), [1, 3]);
    assert_eq!(rig.rx_stats().dropped_too_big, 1);
    assert_eq!(rig.rx.driver.used_idx(), 2, "no chain was used up for it");
    rig.check_conservation(3);
}

#[test]
fn f27_a_super_frame_too_large_for_its_chain_is_cut() {
    let mut rig = Rig::unstarted(&at_poll_end(), 8);
    rig.features = linux().without(vhost_user_gro::device::Features::MRG_RXBUF);
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    let frames: Vec<_> = (0..6).map(|nth| segment(nth).build()).collect();
    rig.inject_all(&frames);
    rig.settle(at_us(1));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 6);
    for (nth, (packet, frame)) in packets.iter().zip(&frames).enumerate() {
        // The identification is counted up; the rest is as it came.
        assert_eq!(packet.frame[34..], frame.bytes[34..], "segment {nth}");
        assert_eq!(packet.vnet.num_buffers, 1);
    }
    assert_eq!(rig.rx_stats().resegmented, 1);
    rig.check_conservation(6);
}

#[test]
fn f26_a_packet_that_is_cut_goes_on_where_the_buffers_ran_out() {
    // A full ring of 8 cannot take 20 segments: it is cut, and the guest returns them by three.
    let mut rig = Rig::unstarted(&at_poll_end(), 8);
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&(0..20).map(|nth| segment(nth).build()).collect::<Vec<_>>());
    let mut got = Vec::new();
    let mut pending = Vec::new();
    for round in 0..20 {
        assert_eq!(rig.settle(at_us(round)), None);
        let (packets, chains) = rig.rx.collect();
        got.extend(packets);
        pending.extend(chains);
        let returned: Vec<_> = pending.drain(..pending.len().min(3)).collect();
        rig.rx.give_back(&returned);
        rig.rx.kick();
    }
    let expected: Vec<u32> = (0..20).map(|nth| 1 + nth * 1448).collect();
    assert_eq!(sequence(&got), expected);
    assert_eq!(rig.rx_stats().resegmented, 1);
    rig.check_conservation(20);
}

#[test]
fn f29_a_burst_of_100_arrives_through_a_ring_of_8() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&singles(100));
    let mut now = rig.rest(at_us(1));
    let mut got = Vec::new();
    let mut with_guest = Vec::new();
    for _ in 0..92 {
        let (packets, chains) = rig.rx.collect();
        got.extend(packets);
        with_guest.extend(chains);
        let one = with_guest.remove(0);
        let event_before = rig.rx.driver.used_flags();
        assert_eq!(event_before, 0, "the guest is asked for a kick");
        rig.rx.give_back(&[one]);
        rig.rx.kick();
        now = rig.rest(now);
    }
    got.extend(rig.rx.packets());
    let expected: Vec<u32> = (0..100).map(|nth| 1 + nth * 1448).collect();
    assert_eq!(sequence(&got), expected);
    rig.check_conservation(100);
    assert_eq!(rig.rx_stats().pool_in_use, 0);
}

#[test]
fn fill_3_a_kick_is_asked_for_only_while_a_packet_waits() {
    const NO_NOTIFY: u16 = 1;
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    assert_eq!(rig.rx.driver.used_flags(), NO_NOTIFY);
    rig.inject_all(&singles(8));
    rig.rest(at_us(1));
    assert_eq!(rig.rx.driver.used_flags(), NO_NOTIFY, "all found room");
    rig.inject_all(&singles(1));
    rig.rest(at_us(100));
    assert_eq!(rig.rx.driver.used_flags(), 0, "one waits");
    let (_, chains) = rig.rx.collect();
    rig.rx.give_back(&chains);
    rig.rx.kick();
    rig.rest(at_us(200));
    assert_eq!(rig.rx.packets().len(), 1);
    assert_eq!(rig.rx.driver.used_flags(), NO_NOTIFY, "none waits any more");
}

#[test]
fn eng_7_an_empty_pool_brings_out_the_oldest() {
    let mut rig = Rig::unstarted(
        &PairConfig {
            pool_frames: 4,
            ..with_timeout(Duration::from_secs(1))
        },
        256,
    );
    rig.rx.post_rx(256, BUFFER);
    rig.apply(at_us(0));
    let frames: Vec<_> = (0..50)
        .map(|nth| tcp4(A.port(nth), B).payload(MSS).build())
        .collect();
    rig.inject_all(&frames);
    rig.settle(at_us(1));
    let packets = rig.rx.packets();
    assert!(
        packets.len() >= 46,
        "at most four are held: {}",
        packets.len()
    );
    assert!(rig.rx_stats().pool_empty > 0);
    rig.check_conservation(50);
    rig.rest(at_us(2));
    let mut got: Vec<_> = [packets, rig.rx.packets()].concat();
    got.sort_by(|a, b| a.frame.cmp(&b.frame));
    let mut expected: Vec<_> = frames.into_iter().map(|frame| frame.bytes).collect();
    expected.sort();
    assert!(got.iter().map(|packet| &packet.frame).eq(&expected));
    assert_eq!(rig.rx_stats().pool_in_use, 0);
}
