//! Messages that must not do harm, and connections that end at any point.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::front_end::{
    FrontEnd, PROTOCOL_BIT, Req, event, memory, one_region, region, state, table,
};
use crate::recorder::is_nothing;
use crate::served::{Served, offered};

/// A connection that is served shows that the former one took nothing with it.
fn assert_serves(served: &Served) {
    let front = served.connect();
    front.prepare(&memory());
    let _events = front.start_ring(0, 0);
    assert!(served.pairs[0].now().rx.is_some());
}

#[test]
fn ring_indices_out_of_range_end_the_connection_only() {
    let served = Served::listening(2);
    for index in [4_u32, 5, 6, 255, 256, 65535, 65536, 65537, u32::MAX] {
        for request in [
            Req::SET_VRING_NUM,
            Req::SET_VRING_BASE,
            Req::GET_VRING_BASE,
            Req::SET_VRING_ENABLE,
        ] {
            let front = served.connect();
            front.negotiate();
            front.say(request, &state(index, 1), &[]);
            front.expect_closed();
        }
        for request in [Req::SET_VRING_KICK, Req::SET_VRING_CALL, Req::SET_VRING_ERR] {
            let front = served.connect();
            front.negotiate();
            // 256 is the flag for "no descriptor" and an index of 0.
            let value = if index == 256 {
                0x200
            } else {
                u64::from(index)
            };
            front.say(request, &value.to_ne_bytes(), &[event().as_fd()]);
            front.expect_closed();
        }
        let front = served.connect();
        front.negotiate();
        let mut payload = crate::front_end::addresses(0);
        payload[..4].copy_from_slice(&index.to_ne_bytes());
        front.say(Req::SET_VRING_ADDR, &payload, &[]);
        front.expect_closed();
    }
    assert_serves(&served);
}

#[test]
fn odd_headers_end_the_connection() {
    let served = Served::listening(1);
    for (request, flags) in [
        (0, 1),
        (45, 1),
        (u32::MAX, 1),
        (1, 0),
        (1, 2),
        (1, 5),
        (1, 0x11),
    ] {
        let front = served.connect();
        front.send(request, flags, &[], &[]).unwrap();
        front.expect_closed();
    }
    assert_serves(&served);
}

#[test]
fn message_longer_than_any_is_not_waited_for() {
    let served = Served::listening(1);
    let front = served.connect();
    let header = [5, 1, u32::MAX].map(u32::to_ne_bytes).concat();
    (&front.socket).write_all(&header).unwrap();
    front.expect_closed();
}

#[test]
fn features_not_offered_end_the_connection() {
    let served = Served::listening(1);
    let front = served.connect();
    front.negotiate();
    let log_all = PROTOCOL_BIT | 1 << 26;
    assert_eq!(
        front.try_tell(Req::SET_FEATURES, &log_all.to_ne_bytes(), &[]),
        Some(1)
    );
    front.expect_closed();

    let front = served.connect();
    front.say(Req::SET_PROTOCOL_FEATURES, &2_u64.to_ne_bytes(), &[]);
    front.expect_closed();

    let front = served.connect();
    front.say(Req::SET_LOG_BASE, &[0; 16], &[memory().as_fd()]);
    front.expect_closed();
    assert_serves(&served);
}

#[test]
fn addresses_outside_of_memory_end_the_connection() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    let payload: Vec<u8> = [0, !0xf, 0, 0, 0]
        .iter()
        .flat_map(|word: &u64| word.to_ne_bytes())
        .collect();
    assert_eq!(front.try_tell(Req::SET_VRING_ADDR, &payload, &[]), Some(1));
    front.expect_closed();
    assert_serves(&served);
}

#[test]
fn owner_cannot_be_set_twice() {
    let served = Served::listening(1);
    let front = served.connect();
    front.negotiate();
    assert_eq!(front.try_tell(Req::SET_OWNER, &[], &[]), Some(1));
    front.expect_closed();
    assert_serves(&served);
}

/// The messages of an ordinary session, each with a payload and a number of descriptors.
fn script() -> Vec<(Req, Vec<u8>, usize)> {
    let number = |value: u64| value.to_ne_bytes().to_vec();
    let mut script = vec![
        (Req::GET_FEATURES, vec![], 0),
        (Req::GET_PROTOCOL_FEATURES, vec![], 0),
        (Req::SET_PROTOCOL_FEATURES, number(0x1_a01d), 0),
        (Req::GET_QUEUE_NUM, vec![], 0),
        (Req::GET_MAX_MEM_SLOTS, vec![], 0),
        (Req::SET_OWNER, vec![], 0),
        (Req::SET_VRING_ENABLE, state(0, 1), 0),
        (Req::SET_FEATURES, number(PROTOCOL_BIT), 0),
        (Req::SET_MEM_TABLE, table(&[region(0)]), 1),
        (
            Req::ADD_MEM_REG,
            one_region(region(crate::front_end::MEMORY)),
            1,
        ),
    ];
    for ring in 0..4 {
        script.extend([
            (Req::SET_VRING_NUM, state(ring, 256), 0),
            (Req::SET_VRING_BASE, state(ring, 0), 0),
            (Req::SET_VRING_ADDR, crate::front_end::addresses(ring), 0),
            (Req::SET_VRING_KICK, number(ring.into()), 1),
            (Req::SET_VRING_CALL, number(ring.into()), 1),
            (Req::SET_VRING_ENABLE, state(ring, 1), 0),
        ]);
    }
    script.extend([
        (Req::GET_VRING_BASE, state(0, 0), 0),
        (Req::RESET_DEVICE, vec![], 0),
    ]);
    script
}

/// Says the first `count` messages of the script without waiting for anything.
fn play(front: &FrontEnd, count: usize) {
    let fd = memory();
    for (request, payload, descriptors) in script().into_iter().take(count) {
        let fds: Vec<BorrowedFd<'_>> = (0..descriptors).map(|_| fd.as_fd()).collect();
        if front.send(request.into(), 1, &payload, &fds).is_err() {
            return;
        }
    }
}

#[test]
fn connection_may_end_at_every_point() {
    let served = Served::listening(2);
    for count in 0..=script().len() {
        for tail in [0, 1, 12, 15] {
            let front = served.connect();
            play(&front, count);
            // A piece of a message: nothing, part of a header, a header, part of a payload.
            let (request, payload, _) = &script()[8];
            let header = [
                u32::from(*request),
                1,
                u32::try_from(payload.len()).unwrap(),
            ];
            let mut bytes = header.map(u32::to_ne_bytes).concat();
            bytes.extend_from_slice(payload);
            let _ = (&front.socket).write_all(&bytes[..tail]);
            drop(front);
        }
    }
    assert_serves(&served);
}

#[test]
fn what_came_before_the_hang_up_is_handled_first() {
    let served = Served::listening(2);
    let front = served.connect();
    play(&front, script().len() - 2);
    drop(front);
    served.pairs[1].wait_until("service, then its end", |seen| {
        let was_served = seen.setups.iter().any(|setup| setup.tx.is_some());
        was_served && seen.setups.last().is_some_and(is_nothing)
    });
}

#[test]
fn nothing_of_the_memory_is_left_behind() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    let _events = front.start_ring(0, 0);
    let memory = Arc::downgrade(&served.pairs[0].now().memory.unwrap());
    drop(front);
    served.pairs[0].wait_until_idle();
    assert!(
        memory.upgrade().is_some(),
        "the recorder still holds the former set-up"
    );
    served.pairs[0].forget_former();
    // The next one is served when the former has been taken apart.
    assert_eq!(served.connect().ask_number(Req::GET_FEATURES), offered());
    assert!(memory.upgrade().is_none());
}

#[test]
fn front_end_that_never_reads_is_cut_off() {
    let served = Served::listening(1);
    let front = served.connect();
    // Far more replies than any socket buffer holds; the write fails when we are cut off.
    let end = (0..1_000_000).find(|_| front.send(Req::GET_FEATURES.into(), 1, &[], &[]).is_err());
    assert!(end.is_some());
    drop(front);
    assert_serves(&served);
}
