//! How often the list is handed over and the guest interrupted (rules BATCH-1 to 4, ORD-4).

use std::time::Duration;

use vhost_user_gro::device::Features;
use vhost_user_gro::gro::GroConfig;
use vhost_user_gro::worker::PairConfig;

use crate::packet::{A, ACK, B, Built, PSH, tcp4};
use crate::rig::{BUFFER, Rig, at_us, plain, segment, with_timeout};

fn batched(gro_normal_batch: u32) -> PairConfig {
    PairConfig {
        gro: GroConfig {
            gro_normal_batch,
            ..GroConfig::default()
        },
        ..with_timeout(Duration::ZERO)
    }
}

/// Frames that are never held, each of its own flow.
fn pushes(count: u16) -> Vec<Built> {
    (0..count)
        .map(|nth| tcp4(A.port(nth), B).flags(PSH | ACK).payload(100).build())
        .collect()
}

/// Hand-overs for what is injected at once.
fn hand_overs(rig: &mut Rig, frames: &[Built]) -> u64 {
    let before = rig.rx_stats().hand_overs;
    rig.inject_all(frames);
    rig.settle(at_us(1));
    rig.rx_stats().hand_overs - before
}

#[test]
fn batch_1_the_list_is_handed_over_when_it_has_grown_enough() {
    for (batch, frames, expected) in [
        (1, 20, 20),
        (8, 7, 1),
        (8, 8, 1),
        (8, 9, 2),
        (8, 20, 3),
        (64, 20, 1),
        (64, 63, 1),
    ] {
        let mut rig = Rig::new(&batched(batch));
        let count = hand_overs(&mut rig, &pushes(frames));
        assert_eq!(count, expected, "batch {batch}, {frames} frames");
        assert_eq!(rig.rx.packets().len(), usize::from(frames));
    }
}

#[test]
fn batch_2_a_super_frame_counts_as_its_segments() {
    let mut rig = Rig::new(&batched(8));
    // Nine segments close at the last one and are handed over at once; two frames follow.
    let mut frames: Vec<_> = (0..8).map(|nth| segment(nth).build()).collect();
    frames.push(segment(8).flags(PSH | ACK).build());
    frames.extend(pushes(2));
    assert_eq!(hand_overs(&mut rig, &frames), 2);
    // With fewer segments than a batch it waits for the end of the poll.
    let mut rig = Rig::new(&batched(8));
    let mut frames: Vec<_> = (0..4).map(|nth| segment(nth).build()).collect();
    frames.push(segment(4).flags(PSH | ACK).build());
    frames.extend(pushes(2));
    assert_eq!(hand_overs(&mut rig, &frames), 1);
}

#[test]
fn batch_3_a_poll_of_nothing_hands_nothing_over() {
    let mut rig = Rig::new(&batched(8));
    assert_eq!(hand_overs(&mut rig, &[]), 0);
}

#[test]
fn ord_4_what_a_poll_flushes_goes_with_its_last_hand_over() {
    let mut rig = Rig::new(&batched(64));
    // One segment is held until the end of the poll, others are in the list before.
    let mut frames = vec![segment(0).build()];
    frames.extend(pushes(5));
    assert_eq!(hand_overs(&mut rig, &frames), 1);
    assert_eq!(rig.rx.packets().len(), 6);
}

#[test]
fn batch_4_the_guest_is_interrupted_once_for_a_poll() {
    for batch in [1, 8, 64] {
        let mut rig = Rig::new(&batched(batch));
        assert_eq!(rig.rx.calls(), 0, "nothing was published yet");
        for _ in 0..3 {
            rig.inject_all(&pushes(40));
            rig.settle(at_us(1));
            assert_eq!(rig.rx.calls(), 1, "batch {batch}");
            let (_, chains) = rig.rx.collect();
            rig.rx.give_back(&chains);
        }
    }
}

#[test]
fn fill_6_a_guest_that_polls_is_not_interrupted() {
    for event_idx in [false, true] {
        let mut rig = Rig::unstarted(&batched(8), 256);
        rig.features = if event_idx {
            plain() | Features::EVENT_IDX
        } else {
            plain()
        };
        rig.rx.post_rx(256, BUFFER);
        rig.apply(at_us(0));
        // The first decision after a start is for whatever a former run left unsaid.
        rig.inject_all(&pushes(1));
        rig.settle(at_us(1));
        assert_eq!(rig.rx.calls(), 1);
        if event_idx {
            rig.rx.driver.set_used_event(50);
        } else {
            rig.rx.driver.set_avail_flags(1);
        }
        rig.inject_all(&pushes(40));
        rig.settle(at_us(2));
        assert_eq!(rig.rx.calls(), 0);
        if event_idx {
            rig.inject_all(&pushes(40));
            rig.settle(at_us(3));
            assert_eq!(rig.rx.calls(), 1, "entry 50 was used");
        }
    }
}
