//! Positions, starts, kicks and calls of rings, and what becomes of one that breaks.

use vhost_user_gro::worker::{Positions, RingSetup};

use crate::driver_model::Driver;
use crate::packet::{A, ACK, B, Built, PSH, tcp4};
use crate::rig::{BUFFER, Rig, Ring, at_us, config, event, numbered, numbers, signals};

/// Frame `nth` of a stream, delivered at once.
fn push(nth: u32) -> Built {
    tcp4(A, B).seq(nth).flags(PSH | ACK).payload(1).build()
}

fn received(ring: &mut Ring) -> Vec<u32> {
    crate::rig::sequence(&ring.packets())
}

#[test]
fn f46_a_ring_that_runs_away_stops_and_the_other_one_goes_on() {
    for ahead in [257, 40_000, 65_535] {
        for breaks_rx in [true, false] {
            let mut rig = Rig::new(&config());
            rig.inject(&push(1));
            rig.tx.post_tx(&numbered(1));
            rig.tx.kick();
            rig.rest(at_us(1));
            assert_eq!(received(&mut rig.rx), [1]);
            rig.tx.driver.collect_all();

            let broken = if breaks_rx { &rig.rx } else { &rig.tx };
            let position = broken.driver.used_idx();
            let good = broken.driver.avail_idx();
            broken.driver.set_avail_idx(position.wrapping_add(ahead));
            broken.kick();
            rig.inject(&push(2));
            rig.rest(at_us(100));
            let (of_rx, of_tx) = (rig.rx.errors(), rig.tx.errors());
            assert_eq!(
                (of_rx, of_tx),
                (u64::from(breaks_rx), u64::from(!breaks_rx))
            );

            // The other one does not care.
            if breaks_rx {
                rig.tx.post_tx(&numbered(2));
                rig.tx.kick();
                rig.rest(at_us(200));
                assert_eq!(numbers(&rig.sent()), [1, 2]);
            } else {
                assert_eq!(received(&mut rig.rx), [2]);
            }
            // Nor does the broken one cost anything.
            rig.rx.kick();
            rig.tx.kick();
            assert_eq!(rig.settle(at_us(300)), None);
            assert_eq!(rig.rx.errors() + rig.tx.errors(), 0, "it was said once");

            // It stands where it broke, and a new start brings it back.
            let positions = rig.stop(at_us(400));
            let (broken, stands) = if breaks_rx {
                (&rig.rx, positions.rx)
            } else {
                (&rig.tx, positions.tx)
            };
            assert_eq!(stands, Some(position));
            broken.driver.set_avail_idx(good);
            rig.rx.restart();
            rig.tx.restart();
            rig.apply(at_us(500));
            rig.inject(&push(3));
            rig.tx.post_tx(&numbered(3));
            rig.tx.kick();
            rig.rest(at_us(600));
            assert_eq!(received(&mut rig.rx).last(), Some(&3));
            assert_eq!(numbers(&rig.sent()).last(), Some(&3));
        }
    }
}

#[test]
fn f46_a_full_ring_is_no_fault() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.apply(at_us(0));
    rig.rx.post_rx(8, BUFFER);
    for number in 0..8 {
        rig.tx.post_tx(&numbered(number));
    }
    rig.rx.kick();
    rig.tx.kick();
    rig.inject(&push(1));
    rig.rest(at_us(1));
    assert_eq!(rig.sent().len(), 8);
    assert_eq!(received(&mut rig.rx), [1]);
    assert_eq!(rig.rx.errors() + rig.tx.errors(), 0);
}

#[test]
fn f46_what_was_done_before_the_fault_is_shown() {
    let mut rig = Rig::new(&config());
    rig.tx.post_tx(&numbered(0));
    rig.tx.driver.post_head(999);
    rig.tx.kick();
    rig.settle(at_us(1));
    assert_eq!(numbers(&rig.sent()), [0]);
    assert_eq!(rig.tx.driver.used_idx(), 1);
    assert_eq!(rig.tx.errors(), 1);
    assert_eq!(rig.stop(at_us(2)).tx, Some(1));
}

#[test]
fn f49_a_stopped_ring_says_where_it_stands_and_goes_on_from_there() {
    let mut rig = Rig::new(&config());
    let (mut got, mut sent) = (Vec::new(), Vec::new());
    let mut with_guest = Vec::new();
    for round in 0..100_u32 {
        let now = at_us(u64::from(round) * 1000);
        for nth in 0..7 {
            rig.inject(&push(1 + round * 7 + nth));
            rig.tx.post_tx(&numbered(round * 7 + nth));
        }
        rig.tx.kick();
        rig.settle(now);
        let positions = rig.stop(now);
        let used = |ring: &Ring| Some(ring.driver.used_idx());
        assert_eq!(positions.rx, used(&rig.rx));
        assert_eq!(positions.tx, used(&rig.tx));
        let (packets, chains) = rig.rx.collect();
        got.extend(crate::rig::sequence(&packets));
        with_guest.extend(chains);
        rig.tx.driver.collect_all();
        rig.tx.driver.reset_alloc();
        sent.extend(numbers(&rig.sent()));
        rig.rx.give_back(&std::mem::take(&mut with_guest));
        rig.rx.restart();
        rig.tx.restart();
        assert_eq!(rig.apply(now), Positions::default(), "nothing ran before");
    }
    assert!(got.iter().copied().eq(1..=700));
    assert!(sent.iter().copied().eq(0..700));
}

#[test]
fn f49_positions_pass_65536() {
    let mut rig = Rig::unstarted(&config(), 8);
    let [rx, tx] = Driver::two(8, 65_533);
    rig.rx.driver = rx;
    rig.tx.driver = tx;
    rig.rx.setup.next_avail = 65_533;
    rig.tx.setup.next_avail = 65_533;
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    for nth in 0..5 {
        rig.inject(&push(1 + nth));
        rig.tx.post_tx(&numbered(nth));
    }
    rig.tx.kick();
    rig.rest(at_us(1));
    assert_eq!(received(&mut rig.rx), [1, 2, 3, 4, 5]);
    assert_eq!(rig.sent().len(), 5);
    let expected = Some(65_533_u16.wrapping_add(5));
    let positions = rig.stop(at_us(2));
    assert_eq!((positions.rx, positions.tx), (expected, expected));
}

#[test]
fn f49_a_ring_that_goes_on_keeps_its_position_and_one_started_anew_takes_the_base() {
    let mut rig = Rig::new(&config());
    rig.inject(&push(1));
    rig.rest(at_us(1));
    // The base of the set-up is out of date by now, and of no interest in the same epoch.
    assert_eq!(rig.rx.setup.next_avail, 0);
    assert_eq!(rig.apply(at_us(2)).rx, Some(1));
    rig.inject(&push(2));
    rig.rest(at_us(3));
    assert_eq!(received(&mut rig.rx), [1, 2]);
    assert_eq!(rig.rx.driver.used_idx(), 2);
    // With a new epoch it counts.
    rig.rx.setup.epoch += 1;
    rig.rx.setup.next_avail = 5;
    rig.apply(at_us(4));
    assert_eq!(rig.stop(at_us(5)).rx, Some(5));
}

#[test]
fn f49_a_change_beside_the_ring_loses_no_frame_that_waits() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.post_rx(1, BUFFER);
    rig.apply(at_us(0));
    for nth in 1..5 {
        rig.inject(&push(nth));
    }
    rig.settle(at_us(1));
    rig.rx.setup.call = Some(event());
    rig.apply(at_us(2));
    rig.rx.post_rx(7, BUFFER);
    rig.rx.kick();
    rig.rest(at_us(3));
    assert_eq!(received(&mut rig.rx), [1, 2, 3, 4]);
    assert_eq!(rig.rx_stats().dropped_at_stop, 0);
}

/// What a front-end may say or do, in any order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Start,
    Enable,
    Call,
    Kick,
}

#[test]
fn f50_traffic_starts_in_every_order() {
    use Step::{Call, Enable, Kick, Start};
    let orders = [
        [Start, Enable, Call, Kick],
        [Start, Call, Kick, Enable],
        [Start, Kick, Enable, Call],
        [Kick, Start, Enable, Call],
        [Kick, Enable, Call, Start],
        [Enable, Kick, Start, Call],
        [Call, Enable, Start, Kick],
        [Call, Kick, Start, Enable],
    ];
    for order in orders {
        for posted_at in 0..3 {
            let mut rig = Rig::unstarted(&config(), 8);
            let (mut started, mut enabled, mut call) = (false, false, None);
            rig.inject(&push(1));
            for (nth, step) in order.into_iter().enumerate() {
                // Before the last step: whatever that is, no kick may be needed behind it.
                if nth == posted_at {
                    rig.rx.post_rx(4, BUFFER);
                    rig.tx.post_tx(&numbered(1));
                }
                match step {
                    Start => started = true,
                    Enable => enabled = true,
                    Call => call = Some(event()),
                    Kick => {
                        rig.rx.kick();
                        rig.tx.kick();
                    }
                }
                let setup = |ring: &RingSetup| {
                    started.then(|| RingSetup {
                        enabled,
                        call: call.clone(),
                        ..ring.clone()
                    })
                };
                let mut pair = rig.setup();
                pair.rx = setup(&rig.rx.setup);
                // A transmit ring that is not enabled throws its frames away.
                pair.tx = setup(&rig.tx.setup).filter(|ring| ring.enabled);
                rig.pair.apply(at_us(1), pair);
                rig.settle(at_us(1));
            }
            rig.rest(at_us(2));
            assert_eq!(received(&mut rig.rx), [1], "{order:?}, {posted_at}");
            assert_eq!(numbers(&rig.sent()), [1], "{order:?}, {posted_at}");
        }
    }
}

#[test]
fn f50_a_ring_without_a_kick_is_served_from_its_start() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.setup.kick = None;
    rig.tx.setup.kick = None;
    rig.rx.post_rx(4, BUFFER);
    rig.tx.post_tx(&numbered(1));
    rig.apply(at_us(0));
    rig.inject(&push(1));
    rig.rest(at_us(1));
    assert_eq!(received(&mut rig.rx), [1]);
    assert_eq!(numbers(&rig.sent()), [1]);
}

#[test]
fn f51_a_ring_works_without_a_call_and_a_new_one_is_signalled_once() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.post_rx(8, BUFFER);
    rig.rx.setup.call = None;
    rig.apply(at_us(0));
    rig.inject(&push(1));
    rig.rest(at_us(1));
    assert_eq!(received(&mut rig.rx), [1]);
    for round in 2..8 {
        let old = rig.rx.setup.call.replace(event());
        rig.apply(at_us(u64::from(round) * 100));
        assert_eq!(
            rig.rx.calls(),
            1,
            "an interrupt may have gone to the old one"
        );
        rig.apply(at_us(u64::from(round) * 100 + 1));
        assert_eq!(rig.rx.calls(), 0, "nothing changed");
        rig.inject(&push(round));
        rig.rest(at_us(u64::from(round) * 100 + 2));
        assert_eq!(received(&mut rig.rx), [round]);
        assert_eq!(rig.rx.calls(), 1);
        assert_eq!(old.map_or(0, |old| signals(&old)), 0);
    }
}

#[test]
fn f54_a_disabled_transmit_ring_is_drained_and_its_frames_thrown_away() {
    let mut rig = Rig::unstarted(&config(), 256);
    rig.tx.setup.enabled = false;
    rig.apply(at_us(0));
    for number in 0..100 {
        rig.tx.post_tx(&numbered(number));
    }
    rig.tx.kick();
    rig.settle(at_us(1));
    assert_eq!(rig.tx.driver.collect_all().len(), 100);
    assert!(rig.sent().is_empty());
    assert_eq!(rig.tx_stats().dropped_disabled, 100);
    rig.tx.setup.enabled = true;
    rig.apply(at_us(2));
    rig.tx.post_tx(&numbered(100));
    rig.tx.kick();
    rig.settle(at_us(3));
    assert_eq!(numbers(&rig.sent()), [100]);
}

#[test]
fn f54_a_disabled_receive_ring_gets_nothing() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.setup.enabled = false;
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    rig.inject(&push(1));
    rig.rx.kick();
    assert_eq!(rig.settle(at_us(1)), None);
    assert_eq!(rig.rx.driver.used_idx(), 0);
    // It stays in the uplink, and comes with the enabling.
    rig.rx.setup.enabled = true;
    rig.apply(at_us(2));
    rig.rest(at_us(3));
    assert_eq!(received(&mut rig.rx), [1]);
}

#[test]
fn a_ring_that_cannot_be_served_is_reported_and_the_other_one_runs() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.setup.avail_ring = 1;
    rig.apply(at_us(0));
    assert_eq!(rig.rx.errors(), 1);
    rig.tx.post_tx(&numbered(1));
    rig.tx.kick();
    rig.inject(&push(1));
    assert_eq!(rig.settle(at_us(1)), None);
    assert_eq!(numbers(&rig.sent()), [1]);
}
