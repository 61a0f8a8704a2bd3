//! The uplink's queue is active exactly while its frames can reach the guest.

use vhost_user_gro::worker::PairSetup;

use crate::rig::{BUFFER, Rig, at_us, config, numbered, numbers, segment};

#[test]
fn a_queue_is_active_while_the_receive_ring_is_started_and_enabled() {
    let mut rig = Rig::unstarted(&config(), 8);
    assert!(!rig.peer.is_active(), "an idle pair reads nothing");
    rig.rx.setup.enabled = false;
    rig.apply(at_us(0));
    assert!(!rig.peer.is_active(), "started, not enabled");
    rig.rx.setup.enabled = true;
    rig.apply(at_us(1));
    assert!(rig.peer.is_active());
    rig.apply(at_us(2));
    assert!(rig.peer.is_active(), "a set-up that changes nothing");
    let transmit_alone = PairSetup {
        rx: None,
        ..rig.setup()
    };
    rig.pair.apply(at_us(3), transmit_alone);
    assert!(!rig.peer.is_active(), "enabled, not started");
    rig.rx.restart();
    rig.apply(at_us(4));
    assert!(rig.peer.is_active());
    rig.stop(at_us(5));
    assert!(!rig.peer.is_active(), "stopped");
}

#[test]
fn a_broken_receive_ring_leaves_its_queue_inactive() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.post_rx(8, BUFFER);
    rig.apply(at_us(0));
    rig.rx.driver.set_avail_idx(40_000);
    rig.inject(&segment(0).build());
    rig.rest(at_us(1));
    assert_eq!(rig.rx.errors(), 1);
    assert!(!rig.peer.is_active());
}

#[test]
fn an_inactive_queue_still_sends() {
    let mut rig = Rig::unstarted(&config(), 8);
    rig.rx.setup.enabled = false;
    rig.apply(at_us(0));
    rig.tx.post_tx(&numbered(1));
    rig.tx.kick();
    rig.settle(at_us(1));
    assert!(!rig.peer.is_active());
    assert_eq!(numbers(&rig.sent()), [1]);
}
