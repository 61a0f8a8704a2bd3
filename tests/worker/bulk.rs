//! Bulks from the guest's ring to the uplink (rules TX-1 to TX-4, TX-11).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vhost_user_gro::device::Features;
use vhost_user_gro::tx::TxConfig;
use vhost_user_gro::uplink::Offloads;
use vhost_user_gro::wire::vnet_hdr::VNET_HDR_LEN;
use vhost_user_gro::worker::PairConfig;
use vm_memory::{Bytes, GuestAddress};

use crate::packet::{A, B, Packet, tcp4};
use crate::recording::{Call, Recording, Refusal};
use crate::rig::{Rig, at_us, config, linux, numbered, numbers};

/// The tunables by default but for those of sending.
fn with(tx: TxConfig) -> PairConfig {
    PairConfig { tx, ..config() }
}

fn bulks_of(packets: u32) -> PairConfig {
    with(TxConfig {
        tx_bulk_packets: packets,
        ..TxConfig::default()
    })
}

/// Posts frames with these numbers and kicks.
fn post(rig: &mut Rig, numbers: std::ops::Range<u32>) {
    for number in numbers {
        rig.tx.post_tx(&numbered(number));
    }
    rig.tx.kick();
}

/// Frames of a vector of the rules.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Plain(usize),
    /// To be segmented.
    Gso(usize),
}

fn post_vector(rig: &mut Rig, frames: &[Frame]) {
    for frame in frames {
        let message = match *frame {
            Frame::Plain(len) => vec![0; VNET_HDR_LEN + len],
            Frame::Gso(len) => gso(tcp4(A, B), len - 54),
        };
        let len = u32::try_from(message.len()).unwrap();
        rig.tx.driver.post_tx(&message, &[12, len - 12]);
    }
    rig.tx.kick();
}

/// A packet to be segmented behind its header.
fn gso(packet: Packet, payload: usize) -> Vec<u8> {
    let packet = packet.payload(payload).partial_csum();
    let built = packet.host_gso_size(Some(1448)).build();
    [&built.meta.vnet.encode()[..], &built.bytes].concat()
}

#[test]
fn tx_1_the_first_bulk_is_that_of_the_rules() {
    use Frame::{Gso, Plain};
    for (available, frames, expected) in [
        (10_000, vec![Plain(1514); 10], 7),
        (5000, vec![Plain(1514); 10], 4),
        (1514, vec![Plain(1514); 10], 1),
        (0, vec![Plain(60); 3], 1),
        (100_000, vec![Gso(65226), Plain(1514)], 1),
        (100_000, vec![Plain(1514), Gso(65226), Plain(1514)], 2),
        (100_000, vec![Plain(60); 20], 7),
    ] {
        // An uplink that is done at once, and one that learns how much it needs.
        for is_later in [false, true] {
            let config = with(TxConfig {
                tx_sync_bytes: available,
                dql_min: available,
                dql_max: available,
                ..TxConfig::default()
            });
            let (mut rig, uplink) = Recording::rig(&config);
            rig.features = rig.features | Features::HOST_TSO4;
            rig.apply(at_us(0));
            if is_later {
                uplink.complete_later();
            }
            post_vector(&mut rig, &frames);
            rig.settle(at_us(1));
            assert_eq!(uplink.bulk_lens()[0], expected, "{available}, {frames:?}");
            if !is_later {
                assert_eq!(uplink.sent().len(), frames.len());
                assert_eq!(rig.tx.driver.collect_all().len(), frames.len());
            }
        }
    }
}

#[test]
fn tx_1_each_bulk_is_one_submission_one_publication_and_one_notification() {
    for packets in [1, 2, 7, 8, 64] {
        let (mut rig, uplink) = Recording::rig(&bulks_of(packets));
        // What the guest has got back at the time of each call.
        let (used, seen) = (used_idx(&rig), Arc::new(Mutex::new(Vec::new())));
        let calls = Arc::clone(&seen);
        uplink.set_probe(move |call| calls.lock().unwrap().push((call, used())));
        post(&mut rig, 0..20);
        rig.settle(at_us(1));
        let lens: Vec<_> = (0..20).step_by(packets as usize).collect();
        let lens = lens.iter().map(|first| (20 - first).min(packets as usize));
        let lens: Vec<_> = lens.collect();
        assert_eq!(uplink.bulk_lens(), lens);
        let mut expected = Vec::new();
        let mut before = 0;
        for len in &lens {
            expected.extend(vec![(Call::Send, before); *len]);
            expected.push((Call::Flush, before));
            before += u16::try_from(*len).unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!(rig.tx.calls(), lens.len() as u64);
        assert_eq!(rig.tx_stats().bulks, lens.len() as u64);
        assert_eq!(numbers(&uplink.frames()), (0..20).collect::<Vec<_>>());
    }
}

/// Reads what the driver is shown of its transmit ring.
fn used_idx(rig: &Rig) -> impl Fn() -> u16 + Send + 'static {
    let memory = Arc::clone(&rig.tx.driver.memory);
    let at = GuestAddress(rig.tx.driver.used() + 2);
    move || memory.read_obj(at).expect("the ring is in memory")
}

#[test]
fn tx_1_a_guest_that_asks_for_one_interrupt_in_many_frames_gets_no_more() {
    let (mut rig, _uplink) = Recording::rig(&config());
    rig.features = linux() | Features::EVENT_IDX;
    rig.apply(at_us(0));
    post(&mut rig, 0..1);
    rig.settle(at_us(1));
    rig.tx.calls();
    rig.tx.driver.set_used_event(40);
    post(&mut rig, 1..40);
    rig.settle(at_us(2));
    assert_eq!(rig.tx.calls(), 0, "entry 40 was not used yet");
    post(&mut rig, 40..61);
    rig.settle(at_us(3));
    assert_eq!(rig.tx.calls(), 1, "one of three bulks used it");
    assert_eq!(rig.tx.driver.collect_all().len(), 61);
}

#[test]
fn tx_3_a_turn_has_its_quota_and_the_rest_follows() {
    for (quota, packets, expected) in [(64, 7, 10), (5, 7, 1), (1, 7, 1), (256, 64, 4)] {
        let (mut rig, uplink) = Recording::rig(&with(TxConfig {
            tx_quota: quota,
            tx_bulk_packets: packets,
            ..TxConfig::default()
        }));
        let before = rig.tx_stats().drains;
        post(&mut rig, 0..256);
        let due = rig.pair.turn(at_us(1)).unwrap();
        assert_eq!(rig.tx_stats().drains - before, 1);
        let sent = uplink.sent().len();
        assert_eq!(sent, quota as usize);
        assert_eq!(uplink.flushes(), expected);
        assert_eq!(due, Some(at_us(1)), "it goes on at once");
        rig.settle(at_us(1));
        assert_eq!(numbers(&uplink.frames()), (0..256).collect::<Vec<_>>());
        assert!(rig.tx_stats().bulks_ended.packets > 0 || quota < 7);
    }
}

#[test]
fn tx_4_what_is_left_over_goes_first_and_nothing_new_with_it() {
    let (mut rig, uplink) = Recording::rig(&config());
    uplink.set_room(3, Refusal::Full);
    post(&mut rig, 0..10);
    rig.settle(at_us(1));
    assert_eq!(uplink.bulk_lens(), [3]);
    assert_eq!(rig.tx.driver.collect_all().len(), 3, "the others are kept");
    assert_eq!(rig.tx_stats().left_over, 4);
    // More frames, and the guest changes those that were checked.
    post(&mut rig, 10..20);
    rig.settle(at_us(2));
    assert_eq!(uplink.tries(), 4, "a kick does not make it try");
    uplink.open();
    rig.settle(at_us(3));
    assert_eq!(uplink.bulk_lens(), [3, 4, 7, 6]);
    assert_eq!(numbers(&uplink.frames()), (0..20).collect::<Vec<_>>());
    assert_eq!(rig.tx.driver.collect_all().len(), 17);
    assert_eq!(rig.settle(at_us(4)), None);
}

#[test]
fn tx_4_frames_in_hand_come_again_after_a_stop() {
    let (mut rig, uplink) = Recording::rig(&config());
    uplink.set_room(2, Refusal::Full);
    post(&mut rig, 0..5);
    rig.settle(at_us(1));
    assert_eq!(rig.stop(at_us(2)).tx, Some(2));
    rig.tx.driver.collect_all();
    rig.tx.restart();
    uplink.open();
    rig.apply(at_us(3));
    rig.settle(at_us(3));
    assert_eq!(numbers(&uplink.frames()), [0, 1, 2, 3, 4]);
    assert_eq!(rig.tx.driver.collect_all().len(), 3);
}

#[test]
fn tx_4_a_bad_frame_between_goes_back_in_its_place() {
    let (mut rig, uplink) = Recording::rig(&config());
    uplink.set_room(1, Refusal::Full);
    rig.tx.post_tx(&numbered(0));
    rig.tx.post_tx(&[0; 5]);
    rig.tx.post_tx(&numbered(1));
    rig.tx.kick();
    rig.settle(at_us(1));
    // With what it stands before: the frame that was sent.
    let first = rig.tx.driver.collect_all();
    assert_eq!(first.len(), 2);
    uplink.open();
    rig.settle(at_us(2));
    assert_eq!(numbers(&uplink.frames()), [0, 1]);
    assert_eq!(rig.tx.driver.collect_all().len(), 1);
    assert_eq!(rig.tx_stats().ring.drops.total(), 1);
}

/// Every frame once and in order through an uplink that takes `room` frames in 10 ms, five times,
/// and then all.
fn f39(room: usize, refusal: Refusal) {
    const PERIOD_US: u64 = 10_000;
    let (mut rig, uplink) = Recording::rig(&config());
    let mut tries = 0;
    for period in 0..5 {
        let start = 1 + period * PERIOD_US;
        uplink.set_room(room, refusal);
        let first = u32::try_from(period).unwrap() * 10;
        post(&mut rig, first..first + 10);
        let mut now = at_us(start);
        while now < at_us(start + PERIOD_US) {
            match rig.settle(now) {
                Some(due) => now = due,
                None => break,
            }
        }
        let tried = uplink.tries() - tries;
        // Those that were taken, one that was not, and where nothing tells when there is room, one
        // a millisecond.
        let most = match refusal {
            Refusal::Full => room + 2,
            Refusal::NoMemory => room + 12,
        };
        assert!(
            tried <= most,
            "{tried} tries for room of {room}: {refusal:?}"
        );
        tries += tried;
        assert_eq!(
            uplink.sent().len(),
            room * usize::try_from(period + 1).unwrap(),
            "it takes what there is room for"
        );
    }
    uplink.open();
    let end = rig.rest(at_us(6 * PERIOD_US));
    assert!(end <= at_us(6 * PERIOD_US) + Duration::from_millis(2));
    assert_eq!(numbers(&uplink.frames()), (0..50).collect::<Vec<_>>());
    assert_eq!(rig.tx.driver.collect_all().len(), 50);
    let stats = rig.tx_stats();
    let (full, no_memory) = (stats.uplink_full > 0, stats.uplink_no_memory > 0);
    assert_eq!(full, refusal == Refusal::Full);
    assert_eq!(no_memory, refusal == Refusal::NoMemory);
    assert_eq!(stats.frames, 50);
}

#[test]
fn f39_an_uplink_with_little_room_gets_every_frame_once_and_in_order() {
    for room in 0..=5 {
        for refusal in [Refusal::Full, Refusal::NoMemory] {
            f39(room, refusal);
        }
    }
}

#[test]
fn tx_11_a_frame_posted_while_kicks_are_off_is_seen() {
    for event_idx in [false, true] {
        let (mut rig, uplink) = Recording::rig(&config());
        if event_idx {
            rig.features = linux() | Features::EVENT_IDX;
            rig.apply(at_us(0));
        }
        post(&mut rig, 0..10);
        // The last one is shown when the ring was found empty, and no kick tells of it.
        rig.tx.driver.set_avail_idx(9);
        let memory = Arc::clone(&rig.tx.driver.memory);
        let at = GuestAddress(rig.tx.driver.avail() + 2);
        let mut flushes = 0;
        uplink.set_probe(move |call| {
            flushes += usize::from(call == Call::Flush);
            if flushes == 2 {
                memory.write_obj(10_u16, at).expect("the ring is in memory");
            }
        });
        rig.settle(at_us(1));
        assert_eq!(numbers(&uplink.frames()), (0..10).collect::<Vec<_>>());
        assert_eq!(uplink.bulk_lens(), [7, 2, 1]);
    }
}

#[test]
fn tx_11_kicks_are_off_while_frames_are_taken() {
    let (mut rig, uplink) = Recording::rig(&config());
    let memory = Arc::clone(&rig.tx.driver.memory);
    let at = GuestAddress(rig.tx.driver.used());
    let flags = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&flags);
    uplink.set_probe(move |_| {
        let flags: u16 = memory.read_obj(at).expect("the ring is in memory");
        seen.lock().unwrap().push(flags);
    });
    post(&mut rig, 0..10);
    rig.settle(at_us(1));
    assert!(flags.lock().unwrap().iter().all(|flags| *flags == 1));
    assert_eq!(rig.tx.driver.used_flags(), 0);
}

#[test]
fn tx_3_a_turn_makes_so_many_segments_and_the_rest_follows() {
    let (mut rig, uplink) = Recording::rig(&PairConfig {
        uplink_offloads: Offloads::default(),
        ..config()
    });
    rig.features = linux() | Features::HOST_TSO4;
    rig.apply(at_us(0));
    let packet = tcp4(A, B).payload(3000).partial_csum();
    let built = packet.host_gso_size(Some(1)).build();
    let message = [&built.meta.vnet.encode()[..], &built.bytes].concat();
    let len = u32::try_from(message.len()).unwrap();
    rig.tx.driver.post_tx(&message, &[12, len - 12]);
    post(&mut rig, 0..1);
    let due = rig.pair.turn(at_us(1)).unwrap();
    assert_eq!((uplink.frames().len(), due), (1024, Some(at_us(1))));
    rig.settle(at_us(1));
    let frames = uplink.frames();
    let payload = frames.iter().take(3000).map(|frame| frame[54]);
    assert!(payload.eq(built.bytes[54..].iter().copied()));
    assert_eq!(numbers(&frames[3000..]), [0]);
    let stats = rig.tx_stats();
    assert_eq!(
        (stats.frames, stats.segmented, stats.segments),
        (2, 1, 3000)
    );
}
