//! How much may be on its way in an uplink that tells later what has left it (rules DQL-1 to
//! DQL-6, NAPI-2).

use std::time::Duration;

use vhost_user_gro::tx::TxConfig;
use vhost_user_gro::worker::PairConfig;

use crate::recording::Recording;
use crate::rig::{Rig, at_us, config};

/// Bytes of each frame.
const LEN: u32 = 1000;

/// A running pair whose uplink tells later, with frames waiting in its ring.
fn waiting(tx: TxConfig, frames: usize) -> (Rig, Recording) {
    let (mut rig, uplink) = Recording::rig(&PairConfig { tx, ..config() });
    uplink.complete_later();
    let message = vec![0; 12 + LEN as usize];
    let parts = rig.tx.driver.tx_parts(&message, &[12, LEN]);
    for _ in 0..frames {
        rig.tx.driver.post(&parts).expect("descriptors are left");
    }
    rig.tx.kick();
    (rig, uplink)
}

fn sent(uplink: &Recording) -> u32 {
    u32::try_from(uplink.sent().len()).unwrap()
}

#[test]
fn dql_4_the_queue_begins_with_one_frame_and_learns_what_keeps_the_uplink_busy() {
    let (mut rig, uplink) = waiting(TxConfig::default(), 100);
    let mut before = 0;
    // All that was on its way has left each time, so it could have been more.
    for (limit, expected) in [(0, 1), (1000, 2), (3000, 4), (7000, 8), (15_000, 16)] {
        rig.settle(at_us(1));
        assert_eq!(rig.tx_stats().byte_limit, Some(limit));
        assert_eq!(sent(&uplink) - before, expected, "limit {limit}");
        uplink.complete(expected * LEN);
        before += expected;
    }
}

#[test]
fn dql_2_a_queue_with_enough_on_its_way_stands_still_and_does_not_spin() {
    let (mut rig, uplink) = waiting(TxConfig::default(), 10);
    let mut now = at_us(1);
    for wait in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
        let due = rig.settle(now).expect("it looks again");
        assert_eq!(due, now + Duration::from_micros(wait));
        now = due;
    }
    assert_eq!(uplink.tries(), 1, "nothing is tried meanwhile");
    assert_eq!(rig.tx_stats().limit_waits, 9);
    assert_eq!(rig.tx.driver.collect_all().len(), 1);
    // A kick changes nothing.
    rig.tx.kick();
    rig.settle(now);
    assert_eq!(uplink.tries(), 1);
    // Once something has left, it is looked for soon again.
    uplink.complete(LEN);
    now = now + Duration::from_millis(20);
    let due = rig.settle(now).expect("it stands still again");
    assert_eq!(due, now + Duration::from_micros(100));
}

#[test]
fn napi_2_whatever_wakes_the_pair_finds_what_has_left() {
    let (mut rig, uplink) = waiting(TxConfig::default(), 10);
    rig.settle(at_us(1));
    uplink.complete(LEN);
    // A receive kick, long before the next look.
    rig.rx.kick();
    rig.settle(at_us(2));
    assert_eq!(sent(&uplink), 3);
}

#[test]
fn dql_3_the_bounds_are_those_of_the_configuration() {
    let tx = TxConfig {
        dql_min: 3000,
        dql_max: 5000,
        tx_bulk_packets: 64,
        ..TxConfig::default()
    };
    let (mut rig, uplink) = waiting(tx, 60);
    rig.settle(at_us(1));
    assert_eq!(uplink.bulk_lens(), [3, 1], "three fill it, one goes beyond");
    for _ in 0..4 {
        let before = sent(&uplink);
        uplink.complete(before * LEN);
        rig.settle(at_us(2));
    }
    assert_eq!(rig.tx_stats().byte_limit, Some(5000));
}

#[test]
fn dql_5_another_device_begins_anew() {
    let (mut rig, uplink) = waiting(TxConfig::default(), 100);
    for _ in 0..5 {
        rig.settle(at_us(1));
        let before = sent(&uplink);
        uplink.complete(before * LEN);
    }
    rig.settle(at_us(2));
    assert!(rig.tx_stats().byte_limit > Some(10_000));
    let before = sent(&uplink);
    uplink.replace();
    rig.settle(at_us(3));
    assert_eq!(rig.tx_stats().byte_limit, Some(0));
    assert_eq!(
        sent(&uplink) - before,
        1,
        "what was on its way is forgotten"
    );
}

#[test]
fn f40_a_device_that_is_gone_keeps_nothing_waiting() {
    let (mut rig, uplink) = waiting(TxConfig::default(), 10);
    rig.settle(at_us(1));
    assert_eq!(sent(&uplink), 1);
    uplink.vanish();
    assert_eq!(rig.rest(at_us(2)), at_us(2));
    assert_eq!(rig.reports.all(), (1, Some(false)));
    assert_eq!(rig.tx_stats().dropped_down, 9);
    assert_eq!(rig.tx.driver.collect_all().len(), 10);
}

#[test]
fn dql_6_an_uplink_that_is_done_at_once_has_the_same_room_each_time() {
    let tx = TxConfig {
        tx_sync_bytes: 2500,
        ..TxConfig::default()
    };
    let (mut rig, uplink) = Recording::rig(&PairConfig { tx, ..config() });
    for _ in 0..10 {
        rig.tx.post_tx(&[0; LEN as usize]);
    }
    rig.tx.kick();
    rig.settle(at_us(1));
    assert_eq!(uplink.bulk_lens(), [3, 3, 3, 1]);
    let stats = rig.tx_stats();
    assert_eq!((stats.byte_limit, stats.limit_waits), (None, 0));
    assert_eq!(stats.bulks_ended.bytes, 3);
}
