//! Starting, stopping and enabling rings, and their event descriptors.

use std::io::Read;
use std::os::fd::AsFd;

use crate::front_end::{
    FrontEnd, NO_DESCRIPTOR, PROTOCOL_BIT, RING_SIZE, Req, event, guest_addresses, memory, state,
};
use crate::served::{FEATURES, Served};

fn prepared(served: &Served) -> FrontEnd {
    let front = served.connect();
    front.prepare(&memory());
    front
}

#[test]
fn started_ring_is_handed_over_as_it_was_described() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let (kick, call) = front.start_ring(1, 700);

    let setup = served.pairs[0].now();
    assert_eq!(setup.features, FEATURES);
    assert!(setup.memory.is_some());
    assert!(setup.rx.is_none());
    let ring = setup.tx.unwrap();
    assert_eq!(u32::from(ring.size), RING_SIZE);
    assert_eq!(
        [ring.desc_table, ring.avail_ring, ring.used_ring],
        guest_addresses(1)
    );
    assert_eq!(ring.next_avail, 700);
    assert!(!ring.enabled);

    // Both descriptors are those that were sent: what is written to one end is read at the other.
    rustix::io::write(&kick, &1_u64.to_ne_bytes()).unwrap();
    let mut count = [0; 8];
    rustix::io::read(ring.kick.unwrap(), &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    rustix::io::write(ring.call.unwrap(), &7_u64.to_ne_bytes()).unwrap();
    std::fs::File::from(call).read_exact(&mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 7);
}

#[test]
fn position_on_stop_is_where_the_thread_stood() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let pair = &served.pairs[0];
    let mut expected = 65_530_u16;
    let mut last_epoch = 0;
    for round in 0..100_u16 {
        let _rx = front.start_ring(0, expected.into());
        let _tx = front.start_ring(1, expected.into());
        assert_eq!(pair.rx().next_avail, expected);
        assert!(
            pair.rx().epoch > last_epoch,
            "every start has an epoch of its own"
        );
        last_epoch = pair.rx().epoch;

        pair.consume(round * 7 + 1);
        expected = expected.wrapping_add(round * 7 + 1);
        assert_eq!(front.stop_ring(0), u32::from(expected));
        assert!(pair.now().rx.is_none(), "stopped when the answer is there");
        assert!(pair.now().tx.is_some(), "the other ring goes on");
        assert_eq!(front.stop_ring(1), u32::from(expected));
        assert!(pair.now().memory.is_none(), "no ring, no memory");
    }
}

#[test]
fn ring_that_never_started_answers_its_base() {
    let served = Served::listening(1);
    let front = prepared(&served);
    assert_eq!(front.stop_ring(0), 0);
    front.tell(Req::SET_VRING_BASE, &state(0, 1234), &[]);
    assert_eq!(front.stop_ring(0), 1234);
    assert_eq!(front.stop_ring(0), 1234);
}

#[test]
fn restart_without_base_goes_on_where_it_stopped() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 10);
    served.pairs[0].consume(5);
    assert_eq!(front.stop_ring(0), 15);
    front.tell(
        Req::SET_VRING_KICK,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    assert_eq!(served.pairs[0].rx().next_avail, 15);
}

#[test]
fn changes_of_a_served_ring_keep_its_epoch() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 0);
    let epoch = served.pairs[0].rx().epoch;
    front.enable(0, 1);
    front.tell(
        Req::SET_VRING_KICK,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    front.tell(Req::SET_FEATURES, &(PROTOCOL_BIT | 1).to_ne_bytes(), &[]);
    front.set_memory(&memory());
    let ring = served.pairs[0].rx();
    assert_eq!(ring.epoch, epoch);
    assert!(ring.enabled);
    assert_eq!(served.pairs[0].now().features, 1);
}

#[test]
fn call_may_be_missing_late_or_replaced() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let pair = &served.pairs[0];
    front.configure_ring(0, 0);
    front.tell(
        Req::SET_VRING_KICK,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    assert!(pair.rx().call.is_none(), "missing");

    for round in 0..100_u64 {
        let call = event();
        front.tell(Req::SET_VRING_CALL, &0_u64.to_ne_bytes(), &[call.as_fd()]);
        rustix::io::write(pair.rx().call.unwrap(), &(round + 1).to_ne_bytes()).unwrap();
        let mut count = [0; 8];
        rustix::io::read(&call, &mut count).unwrap();
        assert_eq!(
            u64::from_ne_bytes(count),
            round + 1,
            "the newest one is in use"
        );
    }

    front.tell(Req::SET_VRING_CALL, &NO_DESCRIPTOR.to_ne_bytes(), &[]);
    assert!(pair.rx().call.is_none(), "taken away");
    front.tell(
        Req::SET_VRING_CALL,
        &NO_DESCRIPTOR.to_ne_bytes(),
        &[event().as_fd()],
    );
    assert!(pair.rx().call.is_none(), "a stray descriptor is not used");
}

#[test]
fn guest_that_never_kicks_has_its_ring_started() {
    let served = Served::listening(1);
    let front = prepared(&served);
    front.configure_ring(0, 0);
    front.tell(Req::SET_VRING_KICK, &NO_DESCRIPTOR.to_ne_bytes(), &[]);
    assert!(served.pairs[0].rx().kick.is_none());
    assert_eq!(front.stop_ring(0), 0);
    assert!(
        served.pairs[0].now().rx.is_none(),
        "the stop is not taken for another start"
    );
    front.tell(
        Req::SET_VRING_CALL,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    assert!(
        served.pairs[0].now().rx.is_none(),
        "a call does not start a ring"
    );
    front.tell(Req::SET_VRING_KICK, &NO_DESCRIPTOR.to_ne_bytes(), &[]);
    assert!(served.pairs[0].now().rx.is_some(), "it starts again");
}

#[test]
fn events_are_made_non_blocking() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 0);
    let ring = served.pairs[0].rx();
    let mut count = [0; 8];
    let empty = rustix::io::read(ring.kick.unwrap(), &mut count);
    assert_eq!(empty, Err(rustix::io::Errno::AGAIN));
}

/// The steps that make a ring work, besides its configuration.
const STEPS: [&str; 3] = ["kick", "call", "enable"];

fn take_step(front: &FrontEnd, step: &str) {
    match step {
        "kick" => front.tell(
            Req::SET_VRING_KICK,
            &0_u64.to_ne_bytes(),
            &[event().as_fd()],
        ),
        "call" => front.tell(
            Req::SET_VRING_CALL,
            &0_u64.to_ne_bytes(),
            &[event().as_fd()],
        ),
        _ => front.enable(0, 1),
    }
}

#[test]
fn every_order_of_kick_call_and_enable_ends_in_service() {
    for first in STEPS {
        for second in STEPS.into_iter().filter(|step| *step != first) {
            let third = STEPS
                .into_iter()
                .find(|step| ![first, second].contains(step))
                .unwrap();
            let served = Served::listening(1);
            let front = prepared(&served);
            front.configure_ring(0, 0);
            for step in [first, second, third] {
                take_step(&front, step);
            }
            let ring = served.pairs[0].rx();
            assert!(
                ring.enabled && ring.call.is_some(),
                "{first} {second} {third}"
            );
        }
    }
}

#[test]
fn early_enable_counts_from_the_features_on() {
    let served = Served::listening(2);
    let front = served.connect();
    let features = front.negotiate();
    for _ in 0..5 {
        front.enable(0, 1);
        front.enable(1, 1);
    }
    front.enable(1, 0);
    front.tell(Req::SET_FEATURES, &features.to_ne_bytes(), &[]);
    front.set_memory(&memory());
    let _rings: Vec<_> = (0..4).map(|ring| front.start_ring(ring, 0)).collect();

    assert!(served.pairs[0].rx().enabled);
    assert!(!served.pairs[0].tx().enabled, "the last word counts");
    assert!(!served.pairs[1].rx().enabled);
}

#[test]
fn without_protocol_features_rings_are_enabled_from_the_start() {
    let served = Served::listening(1);
    let front = served.connect();
    let memory = memory();
    let features = front.ask_number(Req::GET_FEATURES) & !PROTOCOL_BIT;
    front.say(Req::SET_OWNER, &[], &[]);
    front.say(Req::SET_FEATURES, &features.to_ne_bytes(), &[]);
    front.say(
        Req::SET_MEM_TABLE,
        &crate::front_end::table(&[crate::front_end::region(0)]),
        &[memory.as_fd()],
    );
    front.say(Req::SET_VRING_NUM, &state(0, RING_SIZE), &[]);
    front.say(Req::SET_VRING_ADDR, &crate::front_end::addresses(0), &[]);
    front.say(
        Req::SET_VRING_KICK,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    served.pairs[0].wait_until("the ring", |seen| {
        seen.setups.last().is_some_and(|setup| setup.rx.is_some())
    });
    assert!(served.pairs[0].rx().enabled);
}

#[test]
fn protocol_bit_left_out_by_old_front_ends_is_put_in() {
    let served = Served::listening(1);
    let front = served.connect();
    let features = front.negotiate() & !PROTOCOL_BIT;
    front.tell(Req::SET_FEATURES, &features.to_ne_bytes(), &[]);
    front.set_memory(&memory());
    let _events = front.start_ring(0, 0);
    assert!(!served.pairs[0].rx().enabled, "waits for the message");
    front.enable(0, 1);
    assert!(served.pairs[0].rx().enabled);
}

#[test]
fn features_do_not_touch_what_is_enabled() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 0);
    front.enable(0, 1);
    for features in [PROTOCOL_BIT | 1, PROTOCOL_BIT | FEATURES] {
        front.tell(Req::SET_FEATURES, &features.to_ne_bytes(), &[]);
        assert!(served.pairs[0].rx().enabled);
    }
}

#[test]
fn disabling_one_pair_leaves_the_others() {
    let served = Served::listening(4);
    let front = prepared(&served);
    let _rings: Vec<_> = (0..8).map(|ring| front.start_ring(ring, 0)).collect();
    (0..8).for_each(|ring| front.enable(ring, 1));
    front.enable(4, 0);
    front.enable(5, 0);
    let enabled: Vec<bool> = served
        .pairs
        .iter()
        .map(|pair| pair.rx().enabled && pair.tx().enabled)
        .collect();
    assert_eq!(enabled, [true, true, false, true]);
}

#[test]
fn reset_stops_all_and_a_new_start_works() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 77);
    front.enable(0, 1);
    front.tell(Req::RESET_DEVICE, &[], &[]);
    let setup = served.pairs[0].now();
    assert!(setup.rx.is_none() && setup.features == 0 && setup.memory.is_none());

    front.enable(0, 1);
    front.tell(
        Req::SET_FEATURES,
        &(PROTOCOL_BIT | FEATURES).to_ne_bytes(),
        &[],
    );
    let _events = front.start_ring(0, 3);
    assert!(served.pairs[0].rx().enabled);
    assert_eq!(served.pairs[0].rx().next_avail, 3);
}

#[test]
fn ring_that_cannot_be_served_is_reported_and_can_be_mended() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let (err, kick) = (event(), event());
    front.tell(Req::SET_VRING_ERR, &0_u64.to_ne_bytes(), &[err.as_fd()]);
    front.configure_ring(0, 9);
    front.tell(Req::SET_VRING_NUM, &state(0, 100), &[]);
    front.tell(Req::SET_VRING_KICK, &0_u64.to_ne_bytes(), &[kick.as_fd()]);
    assert!(served.pairs[0].now().rx.is_none(), "100 is no power of two");
    let mut count = [0; 8];
    rustix::io::read(&err, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);

    front.tell(Req::SET_VRING_NUM, &state(0, RING_SIZE), &[]);
    assert_eq!(served.pairs[0].rx().next_avail, 9);
}

#[test]
fn second_front_end_finds_nothing_of_the_first() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 5);
    front.enable(0, 1);
    drop(front);
    served.pairs[0].wait_until_idle();

    let front = prepared(&served);
    let _events = front.start_ring(0, 0);
    assert!(!served.pairs[0].rx().enabled);
    assert_eq!(served.pairs[0].rx().next_avail, 0);
}

#[test]
fn what_is_written_to_is_an_event_descriptor_or_nothing() {
    let served = Served::listening(1);
    let front = prepared(&served);
    let _events = front.start_ring(0, 0);
    let (_reader, pipe) = std::io::pipe().unwrap();
    for request in [Req::SET_VRING_CALL, Req::SET_VRING_ERR] {
        front.tell(request, &0_u64.to_ne_bytes(), &[pipe.as_fd()]);
    }
    let ring = served.pairs[0].rx();
    assert!(ring.call.is_none() && ring.err.is_none());
    // The ring is served all the same, and takes the right kind later.
    for request in [Req::SET_VRING_CALL, Req::SET_VRING_ERR] {
        front.tell(request, &0_u64.to_ne_bytes(), &[event().as_fd()]);
    }
    let ring = served.pairs[0].rx();
    assert!(ring.call.is_some() && ring.err.is_some());
}
