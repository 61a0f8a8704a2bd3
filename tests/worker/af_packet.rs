//! A pair on an interface: frames that lie in its ring, and an interface that comes and goes. Needs
//! root.

use std::time::Duration;

use vhost_user_gro::uplink::af_packet::{AfPacket, AfPacketConfig};
use vhost_user_gro::uplink::{TxFrame, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::worker::PairConfig;

use crate::netns::{in_namespace, ip};
use crate::packet::{A, ACK, B, Built, Host, PSH, tcp4};
use crate::rig::{BUFFER, Rig, at_us, numbered, numbers, segment, sequence, with_timeout};

/// Slots of the ring in these tests.
const SLOTS: usize = 16;

fn attach(name: &str) -> Box<dyn UplinkQueue> {
    let config = AfPacketConfig {
        macs: Vec::new(),
        slots: SLOTS,
        shows_link: true,
        qdisc_bypass: false,
    };
    let mut uplink = AfPacket::open(name, 1, config).expect("root may attach to interfaces");
    uplink.take_queues().remove(0)
}

fn add_pair() {
    ip("link add uplink type veth peer name wire");
    ip("link set dev uplink up");
    ip("link set dev wire up");
}

/// A running pair on one end of a veth pair, and the other end.
fn attached(config: &PairConfig) -> (Rig, Box<dyn UplinkQueue>) {
    add_pair();
    let wire = attach("wire");
    let mut rig = Rig::with_uplink(config, 256, |_| attach("uplink"));
    rig.rx.post_rx(256, BUFFER);
    rig.apply(at_us(0));
    (rig, wire)
}

fn put(wire: &mut Box<dyn UplinkQueue>, frame: &Built) {
    let frame = TxFrame {
        vnet: VnetHdr::default(),
        head: &frame.bytes,
        rest: &[],
    };
    wire.send(&frame).expect("the wire is up");
    wire.flush().expect("the wire is up");
}

#[test]
fn a_packet_is_merged_from_frames_in_the_ring() {
    in_namespace("a_packet_is_merged_from_frames_in_the_ring", || {
        let (mut rig, mut wire) = attached(&with_timeout(Duration::from_micros(20)));
        (0..7).for_each(|nth| put(&mut wire, &segment(nth).build()));
        rig.rest(at_us(1));
        let packets = rig.rx.packets();
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0].segs(), 7);
        assert_eq!(rig.rx_stats().ring_lent, 0);
    });
}

#[test]
fn a_packet_that_is_held_for_long_does_not_keep_the_ring_from_moving() {
    let test = "a_packet_that_is_held_for_long_does_not_keep_the_ring_from_moving";
    in_namespace(test, || {
        // Nothing times out in this test.
        let (mut rig, mut wire) = attached(&with_timeout(Duration::from_secs(1)));
        let other = |nth: u32| tcp4(B, A).seq(1 + nth * 100).payload(100).build();
        put(&mut wire, &segment(0).build());
        let mut now = at_us(1);
        for burst in 0..50 {
            (0..4).for_each(|nth| put(&mut wire, &other(burst * 4 + nth)));
            // The poll that the timer brings.
            now = rig.settle(now).unwrap_or(now);
        }
        rig.rest(now);
        let packets = rig.rx.packets();
        assert_eq!(sequence(&packets).len(), 1 + 200);
        let stats = rig.pair.stats();
        assert_eq!(stats.uplink.rx_ring_full, 0);
        assert_eq!(stats.receive.frames, 1 + 200);
    });
}

#[test]
fn held_packets_are_let_go_when_half_of_the_ring_is_theirs() {
    in_namespace(
        "held_packets_are_let_go_when_half_of_the_ring_is_theirs",
        || {
            let (mut rig, mut wire) = attached(&with_timeout(Duration::from_secs(1)));
            // Twelve flows of which each frame is held, in a ring of which eight slots may be lent.
            for flow in 0..12 {
                put(
                    &mut wire,
                    &tcp4(
                        Host {
                            port: 1000 + flow,
                            ..A
                        },
                        B,
                    )
                    .payload(100)
                    .build(),
                );
            }
            rig.settle(at_us(1));
            let stats = rig.pair.stats();
            assert!(stats.receive.ring_lent > 0, "{:?}", stats.receive);
            assert!(stats.receive.frames >= 4, "{:?}", stats.receive);
            assert!(stats.receive.frames < 12, "all were let go");
            assert_eq!(stats.uplink.rx_ring_full, 0);
            rig.rest(at_us(1));
            assert_eq!(rig.rx_stats().frames, 12);
        },
    );
}

#[test]
fn a_guest_without_buffers_leaves_the_ring_to_fill_and_loses_nothing_else() {
    let test = "a_guest_without_buffers_leaves_the_ring_to_fill_and_loses_nothing_else";
    in_namespace(test, || {
        add_pair();
        let mut wire = attach("wire");
        let config = with_timeout(Duration::ZERO);
        let mut rig = Rig::with_uplink(&config, 256, |_| attach("uplink"));
        rig.apply(at_us(0));
        // PSH keeps them apart.
        let frame = |nth: u32| {
            tcp4(A, B)
                .seq(1 + nth * 100)
                .payload(100)
                .flags(ACK | PSH)
                .build()
        };
        for nth in 0..30 {
            put(&mut wire, &frame(nth));
            rig.settle(at_us(u64::from(nth)));
        }
        let full = rig.pair.stats().uplink.rx_ring_full;
        assert_eq!(
            full,
            30 - SLOTS as u64 - 1,
            "one was copied out of the ring"
        );
        rig.rx.post_rx(256, BUFFER);
        rig.rx.kick();
        rig.rest(at_us(100));
        let numbers = sequence(&rig.rx.packets());
        let expected: Vec<_> = (0..17).map(|nth| 1 + nth * 100).collect();
        assert_eq!(numbers, expected);
    });
}

/// The kernel may take a second to say what became of a link.
fn rest_until_report(rig: &mut Rig, count: usize, what: &str) {
    for _ in 0..5000 {
        rig.rest(at_us(1));
        if rig.reports.all().0 >= count {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: no report");
}

#[test]
fn f40_the_guest_is_told_of_an_interface_that_goes_down_and_comes_back() {
    let test = "f40_the_guest_is_told_of_an_interface_that_goes_down_and_comes_back";
    in_namespace(test, || {
        let (mut rig, mut wire) = attached(&with_timeout(Duration::ZERO));
        assert_eq!(rig.reports.all(), (0, None));
        let mut got = 0;
        let mut count = 0;
        for away in [
            "link set dev uplink down",
            "link set dev wire down",
            "link delete dev uplink",
        ] {
            // A frame may be held when it happens.
            put(&mut wire, &segment(got).build());
            ip(away);
            count += 1;
            rest_until_report(&mut rig, count, away);
            assert_eq!(rig.reports.all(), (count, Some(false)), "{away}");
            rig.tx.post_tx(&numbered(1));
            rig.tx.kick();
            rig.rest(at_us(2));
            assert_eq!(rig.tx_stats().dropped_down, 1 + u64::from(got), "{away}");
            if away.contains("delete") {
                add_pair();
            } else {
                ip(&away.replace("down", "up"));
            }
            // Its socket may have kept an error.
            wire = attach("wire");
            count += 1;
            rest_until_report(&mut rig, count, away);
            assert_eq!(rig.reports.all(), (count, Some(true)), "{away}");
            got += 1;
            put(&mut wire, &segment(100 + got).build());
            rig.rest(at_us(4));
            assert_eq!(rig.rx_stats().frames, 2 * u64::from(got));
        }
        // And the way out works as well.
        for number in 1..4 {
            rig.tx.post_tx(&numbered(number));
            rig.tx.kick();
            rig.rest(at_us(5));
        }
        let pool = vhost_user_gro::uplink::FramePool::new(8);
        let mut out = Vec::new();
        wire.recv_batch(&pool, 8, &mut out).unwrap();
        let frames: Vec<_> = out.iter().map(|rx| rx.frame.as_ref().to_vec()).collect();
        assert_eq!(numbers(&frames), [1, 2, 3]);
    });
}
