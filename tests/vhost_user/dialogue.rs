//! Requests that the relay answers, and what is offered.

use std::os::fd::AsFd;

use vhost_user_gro::backend::{Endpoint, Offer, QueueNumUnit};

use crate::front_end::{Req, event, memory};
use crate::served::{Served, offer, offered};

#[test]
fn features_are_those_of_the_offer_and_the_protocol_bit() {
    let served = Served::listening(1);
    let front = served.connect();
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
    // MQ, RARP, REPLY_ACK, MTU, RESET_DEVICE, CONFIGURE_MEM_SLOTS, STATUS.
    assert_eq!(front.ask_number(Req::GET_PROTOCOL_FEATURES), 0x1_a01d);
}

#[test]
fn queue_num_is_in_the_unit_of_the_offer() {
    for (queue_num_unit, expected) in [(QueueNumUnit::Pairs, 3), (QueueNumUnit::Vrings, 6)] {
        let offer = Offer {
            queue_num_unit,
            ..offer()
        };
        let served = Served::offering(offer, 3, |path| Endpoint::Listen { path, mode: None });
        let front = served.connect();
        front.negotiate();
        assert_eq!(front.ask_number(Req::GET_QUEUE_NUM), expected);
    }
}

#[test]
fn status_is_kept_and_mtu_is_judged() {
    let served = Served::listening(1);
    let front = served.connect();
    front.negotiate();
    assert_eq!(front.ask_number(Req::GET_STATUS), 0);
    front.tell(Req::SET_STATUS, &0xf_u64.to_ne_bytes(), &[]);
    assert_eq!(front.ask_number(Req::GET_STATUS), 0xf);
    front.tell(Req::NET_SET_MTU, &1400_u64.to_ne_bytes(), &[]);
    assert_eq!(
        front.try_tell(Req::NET_SET_MTU, &67_u64.to_ne_bytes(), &[]),
        Some(1)
    );
    assert_eq!(
        front.ask_number(Req::GET_STATUS),
        0xf,
        "the connection lives on"
    );
}

#[test]
fn rarp_goes_out_of_the_uplink() {
    let served = Served::listening(2);
    let front = served.connect();
    front.negotiate();
    front.tell(Req::SEND_RARP, &[0x52, 0x54, 0, 1, 2, 3, 0, 0], &[]);
    served.pairs[0].wait_until("the frame", |seen| seen.announced.len() == 1);
    served.pairs[0].wait_until("the address in it", |seen| {
        seen.announced[0][6..12] == [0x52, 0x54, 0, 1, 2, 3]
    });
}

#[test]
fn answers_keep_their_order_when_requests_are_not_waited_for() {
    let served = Served::listening(1);
    let front = served.connect();
    front.negotiate();
    for _ in 0..100 {
        front.say(Req::GET_FEATURES, &[], &[]);
        front.say(Req::GET_STATUS, &[], &[]);
        front.say(Req::GET_MAX_MEM_SLOTS, &[], &[]);
        front.say(Req::GET_QUEUE_NUM, &[], &[]);
    }
    for _ in 0..100 {
        for request in [
            Req::GET_FEATURES,
            Req::GET_STATUS,
            Req::GET_MAX_MEM_SLOTS,
            Req::GET_QUEUE_NUM,
        ] {
            front.reply(request).unwrap();
        }
    }
}

#[test]
fn configuration_space_is_read_in_any_piece_and_never_written() {
    let space: Vec<u8> = (0..12).collect();
    let offer = Offer {
        config_space: Some(space.clone()),
        ..offer()
    };
    let served = Served::offering(offer, 1, |path| Endpoint::Listen { path, mode: None });
    let front = served.connect();
    front.negotiate();
    let request = |offset: u32, size: u32| {
        let mut payload = [offset, size, 0].map(u32::to_ne_bytes).concat();
        payload.resize(12 + size as usize, 0);
        payload
    };
    for offset in 0..14_u32 {
        for size in 1..=60_u32 {
            let reply = front.ask(Req::GET_CONFIG, &request(offset, size));
            let expected = space.get(offset as usize..(offset + size) as usize);
            assert_eq!(
                &reply[12..],
                expected.unwrap_or_default(),
                "{offset} {size}"
            );
            let told = u32::from_ne_bytes(reply[4..8].try_into().unwrap());
            assert_eq!(told as usize, reply.len() - 12);
        }
    }
    assert_eq!(
        front.try_tell(Req::SET_CONFIG, &request(0, 6), &[]),
        Some(1)
    );
    assert_eq!(front.ask(Req::GET_CONFIG, &request(0, 6))[12..], space[..6]);
}

#[test]
fn deprecated_reset_of_the_owner_changes_nothing() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    front.configure_ring(0, 0);
    front.tell(
        Req::SET_VRING_KICK,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    front.tell(Req::RESET_OWNER, &[], &[]);
    assert!(served.pairs[0].now().rx.is_some());
}
