//! How long a packet may be held, and what an idle pair costs.

use std::time::Duration;

use crate::packet::{ACK, PSH};
use crate::rig::{MSS, Rig, at_us, config, segment, sequence, with_timeout};

const BURST: u32 = 7;

fn burst() -> Vec<crate::packet::Built> {
    (0..BURST).map(|nth| segment(nth).build()).collect()
}

#[test]
fn f10_a_burst_is_delivered_when_the_flush_timeout_is_over() {
    let mut rig = Rig::new(&config());
    rig.rest(at_us(0));
    rig.inject_all(&burst());
    let deadline = rig.settle(at_us(100)).expect("seven segments are held");
    assert_eq!(deadline, at_us(120), "the default timeout is 20 us");
    assert!(rig.rx.packets().is_empty(), "it may still grow");
    assert_eq!(rig.settle(at_us(119)), Some(deadline));
    assert!(rig.rx.packets().is_empty());

    rig.settle(at_us(120));
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].segs(), 7);
    assert_eq!(packets[0].frame.len(), 54 + 7 * MSS);
}

#[test]
fn f10_merging_does_not_move_the_deadline() {
    let mut rig = Rig::new(&config());
    rig.rest(at_us(0));
    rig.inject(&segment(0).build());
    let deadline = rig.settle(at_us(100));
    for nth in 1..5 {
        // The source is masked by deferral, but a turn at this time must not prolong anything.
        rig.inject(&segment(nth).build());
        assert_eq!(rig.settle(at_us(100 + 3 * u64::from(nth))), deadline);
    }
    // The timer finds the other segments as well.
    rig.settle(at_us(120));
    let packets = rig.rx.packets();
    assert_eq!(sequence(&packets)[0], 1, "the first is out in time");
    let last = rig.rest(at_us(120));
    assert!(last <= at_us(160), "{last:?}");
}

#[test]
fn f10_one_segment_at_a_time_is_never_later_than_timeout_and_one_poll() {
    let mut rig = Rig::new(&config());
    let mut now = rig.rest(at_us(0));
    for nth in 0..100 {
        now = now + Duration::from_millis(100);
        rig.inject(&segment(nth).build());
        let held_until = rig.settle(now).expect("it is held");
        assert!(held_until - now <= Duration::from_micros(20));
        rig.settle(held_until);
        let packets = rig.rx.packets();
        assert_eq!(sequence(&packets), [1 + nth * 1448]);
        now = rig.rest(held_until);
    }
}

#[test]
fn f10_nothing_held_means_no_timer_and_no_polls() {
    let mut rig = Rig::new(&config());
    rig.inject_all(&burst());
    let end = rig.rest(at_us(0));
    assert!(
        end <= at_us(60),
        "deferral ends after one empty poll: {end:?}"
    );
    let polls = rig.rx_stats().polls;
    for second in 1..100 {
        assert_eq!(rig.settle(at_us(second * 1_000_000)), None);
    }
    assert_eq!(rig.rx_stats().polls, polls);
}

#[test]
fn f10_without_a_timeout_everything_is_delivered_by_the_same_poll() {
    let mut rig = Rig::new(&with_timeout(Duration::ZERO));
    rig.inject_all(&burst());
    assert_eq!(rig.settle(at_us(5)), None, "no timer for nothing");
    let packets = rig.rx.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].segs(), 7);
}

#[test]
fn a_push_is_delivered_at_once_whatever_the_timeout() {
    let mut rig = Rig::new(&with_timeout(Duration::from_secs(1)));
    rig.inject(&segment(0).build());
    rig.inject(&segment(1).flags(PSH | ACK).build());
    rig.settle(at_us(1));
    assert_eq!(rig.rx.packets().len(), 1);
}
