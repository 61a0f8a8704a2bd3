//! When a set-up was replaced nothing of the old one is touched or kept.

use std::sync::Arc;
use std::time::Duration;

use crate::packet::{A, B, tcp4};
use crate::rig::{BUFFER, Rig, at_us, config, numbered, segment, with_timeout};

#[test]
fn f58_the_memory_is_released_when_apply_returns() {
    let mut rig = Rig::new(&with_timeout(Duration::from_secs(1)));
    let memory = Arc::clone(&rig.rx.driver.memory);
    // The drivers of both rings, and this one.
    const OURS: usize = 3;
    for round in 0..20 {
        let now = at_us(round * 100);
        // Something held, something waiting, a frame in hand.
        rig.inject(&segment(0).build());
        rig.tx.post_tx(&numbered(1));
        rig.tx.kick();
        rig.settle(now);
        assert!(Arc::strong_count(&memory) > OURS);
        rig.stop(now);
        assert_eq!(Arc::strong_count(&memory), OURS, "round {round}");
        rig.rx.restart();
        rig.tx.restart();
        rig.apply(now);
    }
}

#[test]
fn f58_a_broken_ring_does_not_keep_the_memory() {
    let mut rig = Rig::new(&config());
    rig.tx.driver.set_avail_idx(40_000);
    rig.rx.driver.set_avail_idx(40_000);
    rig.tx.kick();
    rig.inject(&tcp4(A, B).payload(1).build());
    rig.rest(at_us(1));
    rig.stop(at_us(2));
    assert_eq!(Arc::strong_count(&rig.rx.driver.memory), 2);
}

#[test]
fn f58_descriptors_are_released_when_apply_returns() {
    let mut rig = Rig::new(&config());
    let kick = Arc::clone(rig.rx.setup.kick.as_ref().unwrap());
    let call = Arc::clone(rig.rx.setup.call.as_ref().unwrap());
    assert_eq!(Arc::strong_count(&kick), 3);
    rig.stop(at_us(1));
    assert_eq!(Arc::strong_count(&kick), 2);
    assert_eq!(Arc::strong_count(&call), 2);
}

#[test]
fn f49_a_stopped_ring_is_not_touched_any_more() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    rig.stop(at_us(1));
    let (rx, tx) = (rig.rx.driver.used_ring(), rig.tx.driver.used_ring());
    rig.inject(&segment(0).build());
    rig.tx.post_tx(&numbered(1));
    rig.rx.kick();
    rig.tx.kick();
    assert_eq!(rig.settle(at_us(2)), None);
    assert_eq!(rig.rx.driver.used_ring(), rx);
    assert_eq!(rig.tx.driver.used_ring(), tx);
}

#[test]
fn f49_a_frame_in_hand_at_the_stop_is_sent_after_the_next_start() {
    use vhost_user_gro::uplink::fault::Verdict::{Full, Pass};
    use vhost_user_gro::uplink::fault::{FaultQueue, Pattern};

    let mut rig = Rig::with_uplink(&config(), 8, |queue| {
        let send = Pattern::Cycle(vec![Pass, Pass, Full, Full, Pass, Pass]);
        Box::new(FaultQueue::new(queue, send, Pattern::Cycle(Vec::new())))
    });
    rig.apply(at_us(0));
    for number in 0..4 {
        rig.tx.post_tx(&numbered(number));
    }
    rig.tx.kick();
    rig.settle(at_us(1));
    assert_eq!(rig.stop(at_us(2)).tx, Some(2));
    rig.tx.restart();
    rig.apply(at_us(3));
    rig.rest(at_us(4));
    assert_eq!(crate::rig::numbers(&rig.sent()), [0, 1, 2, 3]);
}
