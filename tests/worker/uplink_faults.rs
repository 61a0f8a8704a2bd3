//! An uplink that is full, refuses, goes down or goes away.

use std::time::Duration;

use vhost_user_gro::time::Instant;
use vhost_user_gro::uplink::UplinkOptions;
use vhost_user_gro::uplink::fault::Verdict::{Down, Full, Gone, NoMemory, Pass, Refuse, TooLong};
use vhost_user_gro::uplink::fault::{FaultOptions, FaultQueue, Pattern, SEND_FAULTS, Verdict};
use vhost_user_gro::uplink::loopback::LoopbackOptions;

use crate::logs::lines_of;
use crate::packet::{A, ACK, B, PSH, tcp4};
use crate::rig::{BUFFER, Rig, at_us, config, numbered, numbers};

/// A running pair whose uplink fails by these patterns.
fn faulty(send: Pattern, recv: Pattern) -> Rig {
    let mut rig = Rig::with_uplink(&config(), 256, |queue| {
        Box::new(FaultQueue::new(queue, send, recv))
    });
    rig.rx.post_rx(256, BUFFER);
    rig.apply(at_us(0));
    rig.rest(at_us(0));
    rig
}

fn cycle(verdicts: &[Verdict]) -> Pattern {
    Pattern::Cycle(verdicts.to_vec())
}

fn nothing() -> Pattern {
    cycle(&[])
}

/// Frames of [`post_many`].
const MANY: usize = 256;

/// Posts more bytes than a socket holds, all of them the same frame, and kicks.
fn post_many(rig: &mut Rig) -> Vec<u8> {
    let frame = vec![2; 65_000];
    let message = [&[0; 12][..], &frame].concat();
    let len = u32::try_from(message.len()).unwrap();
    let parts = rig.tx.driver.tx_parts(&message, &[len]);
    for _ in 0..MANY {
        rig.tx.driver.post(&parts).expect("descriptors are left");
    }
    rig.tx.kick();
    frame
}

/// Posts frames with these numbers and kicks.
fn post(rig: &mut Rig, numbers: std::ops::Range<u32>) {
    for number in numbers {
        rig.tx.post_tx(&numbered(number));
    }
    rig.tx.kick();
}

#[test]
fn f39_every_frame_leaves_once_and_in_order_through_a_full_uplink() {
    for passes in 0..6 {
        // A host short of memory: writable all the time, and full every other while.
        let mut verdicts = vec![Pass; passes];
        verdicts.extend([Full, Full, Full, Pass]);
        let mut rig = faulty(cycle(&verdicts), nothing());
        post(&mut rig, 0..50);
        rig.rest(at_us(1));
        assert_eq!(numbers(&rig.sent()), (0..50).collect::<Vec<_>>());
        assert_eq!(rig.tx.driver.collect_all().len(), 50);
        let stats = rig.tx_stats();
        assert_eq!(stats.frames, 50);
        assert!(stats.uplink_full > 0);
    }
}

#[test]
fn f39_a_host_short_of_memory_is_asked_again_after_a_while_only() {
    let mut rig = faulty(cycle(&[Full]), nothing());
    post(&mut rig, 0..3);
    let mut now = at_us(10);
    for _ in 0..5 {
        let due = rig.settle(now).expect("it tries again");
        assert_eq!(due, now + Duration::from_millis(1));
        now = due;
    }
    // Once to notice, once because it claims to be writable, then once for each wait.
    assert_eq!(rig.tx_stats().uplink_full, 2 + 4);
    assert!(
        rig.tx.driver.collect_all().is_empty(),
        "the frames are kept"
    );
}

#[test]
fn f39_a_full_uplink_that_tells_when_it_has_room_needs_no_clock() {
    let mut rig = Rig::new(&config());
    let frame = post_many(&mut rig);
    assert_eq!(rig.settle(at_us(1)), None, "it waits to be writable");
    let first = rig.tx_stats();
    assert!(
        first.frames < MANY as u64 && first.uplink_full == 1,
        "{first:?}"
    );
    // A kick does not make it try in vain.
    rig.tx.kick();
    rig.settle(at_us(2));
    assert_eq!(rig.tx_stats().uplink_full, 1);
    let mut count = 0;
    while count < MANY {
        let sent = rig.sent();
        assert!(!sent.is_empty(), "stuck after {count}");
        assert!(sent.iter().all(|sent| *sent == frame));
        count += sent.len();
        rig.settle(at_us(3));
    }
    assert_eq!(rig.tx.driver.collect_all().len(), MANY);
}

#[test]
fn f40_a_refused_frame_is_dropped_and_the_next_one_passes() {
    let mut rig = faulty(cycle(&[Pass, Refuse]), nothing());
    post(&mut rig, 0..10);
    assert_eq!(rig.settle(at_us(1)), None);
    assert_eq!(numbers(&rig.sent()), [0, 2, 4, 6, 8]);
    assert_eq!(rig.tx_stats().refused.invalid, 5);
    assert_eq!(rig.tx.driver.collect_all().len(), 10);
}

#[test]
fn f40_frames_are_dropped_while_the_interface_is_down() {
    let mut rig = faulty(cycle(&[Down, Down, Pass]), nothing());
    post(&mut rig, 0..9);
    rig.settle(at_us(1));
    assert_eq!(numbers(&rig.sent()), [2, 5, 8]);
    assert_eq!(rig.tx_stats().dropped_down, 6);
    assert_eq!(rig.reports.all(), (0, None), "it may come back");
}

#[test]
fn f40_each_change_of_the_link_is_logged_once() {
    let mut verdicts = vec![Pass; 5];
    verdicts.extend([Down; 10]);
    verdicts.extend([Pass; 5]);
    verdicts.extend([Full, NoMemory, Refuse, TooLong].repeat(3));
    verdicts.extend([Gone; 10]);
    let mut rig = faulty(cycle(&verdicts), nothing());
    let lines = lines_of(|| {
        post(&mut rig, 0..60);
        rig.rest(at_us(1));
    });
    let starts = ["uplink is down", "uplink is up", "uplink is gone"];
    assert_eq!(lines.len(), starts.len(), "{lines:?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{lines:?}");
    }
    assert_eq!(rig.tx.driver.collect_all().len(), 60);
}

#[test]
fn f40_each_kind_of_refusal_has_its_counter() {
    let mut rig = faulty(
        cycle(&[Full, NoMemory, Refuse, TooLong, TooLong, Down, Pass]),
        nothing(),
    );
    post(&mut rig, 0..5);
    rig.rest(at_us(1));
    let stats = rig.tx_stats();
    assert_eq!((stats.uplink_full, stats.uplink_no_memory), (1, 1));
    let refused = stats.refused;
    assert_eq!(
        (refused.invalid, refused.too_long, refused.other),
        (1, 2, 0)
    );
    assert_eq!((stats.dropped_down, stats.frames), (1, 1));
    assert_eq!(numbers(&rig.sent()), [4]);
    assert_eq!(rig.tx.driver.collect_all().len(), 5);
}

#[test]
fn f40_a_mixture_of_faults_accounts_for_every_frame() {
    let faults = SEND_FAULTS.to_vec();
    for seed in 0..20 {
        let pattern = |seed| Pattern::Seeded {
            seed,
            one_in: 3,
            faults: faults.clone(),
        };
        let mut rig = faulty(pattern(seed), pattern(seed + 100));
        let mut now = at_us(1);
        for round in 0..20 {
            post(&mut rig, round * 10..round * 10 + 10);
            rig.inject(&tcp4(A, B).flags(PSH | ACK).payload(100).build());
            now = rig.rest(now);
            rig.tx.driver.collect_all();
        }
        let sent = numbers(&rig.sent());
        assert!(sent.is_sorted_by(|a, b| a < b), "seed {seed}: {sent:?}");
        let stats = rig.tx_stats();
        assert_eq!(sent.len() as u64, stats.frames);
        assert_eq!(
            stats.frames + stats.refused.total() + stats.dropped_down,
            200
        );
        assert_eq!(rig.rx.packets().len(), 20, "seed {seed}");
    }
}

#[test]
fn f40_a_lost_uplink_is_reported_once_and_costs_nothing() {
    let mut rig = faulty(cycle(&[Gone]), nothing());
    post(&mut rig, 0..5);
    assert_eq!(rig.settle(at_us(1)), None);
    assert_eq!(rig.reports.all(), (1, Some(false)));
    post(&mut rig, 5..10);
    // What still lies in the descriptor wakes nobody.
    rig.inject(&tcp4(A, B).payload(100).build());
    assert_eq!(rig.settle(at_us(2)), None);
    let stats = rig.tx_stats();
    assert_eq!(stats.dropped_down, 10);
    assert_eq!(rig.tx.driver.collect_all().len(), 10);
    assert_eq!(rig.reports.all(), (1, Some(false)));
    let polls = rig.rx_stats().polls;
    rig.settle(at_us(1_000_000));
    assert_eq!(rig.rx_stats().polls, polls);
    // A new session does not bring it back, and is told nothing it knows.
    rig.stop(at_us(1_000_001));
    rig.rx.restart();
    rig.tx.restart();
    rig.apply(at_us(1_000_002));
    post(&mut rig, 10..12);
    rig.settle(at_us(1_000_003));
    assert_eq!(rig.tx_stats().dropped_down, 12);
    assert_eq!(rig.reports.all(), (1, Some(false)));
}

#[test]
fn f40_the_other_end_hangs_up() {
    for reads in [true, false] {
        let mut rig = Rig::new(&config());
        rig.rest(at_us(0));
        if !reads {
            // Nobody reads, so only the descriptor itself can tell.
            rig.rx.setup.enabled = false;
            rig.apply(at_us(1));
        }
        let (other, _) = vhost_user_gro::uplink::pair::PairQueue::new()
            .map(|(queue, peer)| (peer, queue))
            .unwrap();
        drop(std::mem::replace(&mut rig.peer, other));
        assert_eq!(rig.rest(at_us(2)), at_us(2));
        assert_eq!(rig.reports.all(), (1, Some(false)), "reads: {reads}");
    }
}

#[test]
fn f40_frames_that_wait_for_a_full_uplink_do_not_wait_for_one_that_is_gone() {
    // The first poll finds nothing, the second one learns that the device is gone.
    let mut rig = faulty(nothing(), cycle(&[Full, Gone]));
    post_many(&mut rig);
    rig.settle(at_us(1));
    assert_eq!(rig.tx_stats().uplink_full, 1);
    let sent = rig.tx.driver.collect_all().len();
    assert!(sent < MANY);
    rig.inject(&tcp4(A, B).payload(100).build());
    rig.settle(at_us(2));
    assert_eq!(rig.reports.all(), (1, Some(false)));
    assert_eq!(sent + rig.tx.driver.collect_all().len(), MANY);
}

#[test]
fn f40_an_uplink_that_fails_to_read_is_left_alone_for_a_while() {
    for fault in [Refuse, Down] {
        let mut rig = faulty(nothing(), cycle(&[fault]));
        let start = rig.rx_stats().polls;
        rig.inject(&tcp4(A, B).payload(100).build());
        let mut now: Instant = at_us(1_000_000);
        for _ in 0..10 {
            let due = rig.settle(now).expect("it tries again");
            assert!(due > now);
            now = due;
        }
        let polls = rig.rx_stats().polls - start;
        assert!(polls <= 20, "{polls} polls in 10 waits");
        assert!(now - at_us(1_000_000) >= Duration::from_millis(5));
    }
}

#[test]
fn f40_an_interface_that_comes_back_delivers_what_it_has() {
    let mut rig = faulty(nothing(), cycle(&[Down, Down, Pass, Pass, Pass]));
    rig.inject(&tcp4(A, B).flags(PSH | ACK).payload(100).build());
    rig.rest(at_us(1));
    assert_eq!(rig.rx.packets().len(), 1);
}

#[test]
fn faults_can_be_had_with_an_uplink_of_any_kind() {
    let options = UplinkOptions {
        fault: FaultOptions {
            fault_one_in: Some(2),
            fault_seed: Some(7),
            ..FaultOptions::default()
        },
        loopback: LoopbackOptions { loopback: true },
        ..UplinkOptions::default()
    };
    let mut uplink = options.open(1).unwrap().unwrap();
    assert_eq!(uplink.name(), "loopback, faulty");
    let queue = uplink.take_queues().pop().unwrap();
    let mut rig = Rig::with_uplink(&config(), 256, |_| queue);
    rig.rx.post_rx(256, BUFFER);
    rig.apply(at_us(0));
    post(&mut rig, 0..100);
    rig.rest(at_us(1));
    let stats = rig.tx_stats();
    let dropped = stats.refused.total() + stats.dropped_down;
    assert_eq!(stats.frames + dropped, 100);
    assert!(
        dropped > 10 && stats.uplink_full + stats.uplink_no_memory > 10,
        "{stats:?}"
    );
    assert_eq!(rig.rx.packets().len() as u64, stats.frames, "none is lost");
}

/// A pair on a loopback with these faults, whose guest has sent `frames`.
fn reflected(fault: FaultOptions, frames: &[Vec<u8>]) -> Rig {
    let options = UplinkOptions {
        fault,
        loopback: LoopbackOptions { loopback: true },
        ..UplinkOptions::default()
    };
    let queue = options.open(1).unwrap().unwrap().take_queues().pop();
    let mut rig = Rig::with_uplink(&config(), 256, |_| queue.unwrap());
    rig.rx.post_rx(256, BUFFER);
    rig.apply(at_us(0));
    for frame in frames {
        rig.tx.post_tx(frame);
    }
    rig.tx.kick();
    rig.rest(at_us(1));
    rig
}

#[test]
fn frames_can_be_brought_out_of_order() {
    let frames: Vec<_> = (0..4).map(numbered).collect();
    let swapped = FaultOptions {
        fault_swap_one_in: Some(1),
        ..FaultOptions::default()
    };
    let mut rig = reflected(swapped, &frames);
    let got = rig.rx.packets().into_iter().map(|got| got.frame);
    assert_eq!(numbers(&got.collect::<Vec<_>>()), [0, 1, 3, 2]);
}

#[test]
fn frames_can_be_kept_from_merging_by_their_metadata() {
    let frames: Vec<_> = (0..4)
        .map(|n| tcp4(A, B).seq(1 + 100 * n).payload(100).build().bytes)
        .collect();
    for (fault_marks, packets) in [(false, 1), (true, 4)] {
        let marked = FaultOptions {
            fault_marks,
            ..FaultOptions::default()
        };
        let mut rig = reflected(marked, &frames);
        assert_eq!(rig.rx.packets().len(), packets, "{fault_marks}");
    }
}
