//! Frames through a real tap: offloads, sizes, an interface that goes down or away. Needs root.
//!
//! The tap under test and a second one, the wire, are ports of a bridge, so the kernel forwards
//! what is written on one to the other, and cuts what the other has not asked for.
#![cfg(feature = "daemon")]

#[path = "support/host_frames.rs"]
mod host_frames;
#[path = "support/netns.rs"]
mod netns;

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::event::PollFlags;
use vhost_user_gro::sys::ifreq;
use vhost_user_gro::uplink::tap::{Persistence, Tap};
use vhost_user_gro::uplink::{
    FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, Uplink, UplinkQueue,
};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_UDP_L4};

use self::host_frames::{
    HEADERS, LARGEST, MSS, flows, gso, is_readable, partial, plain, readiness, send, sum16,
};
use self::netns::{in_namespace, ip};

const ALL: Offloads = Offloads {
    csum: true,
    tso4: true,
    tso6: true,
    ecn: true,
    uso: true,
};

fn queue(name: &str) -> Box<dyn UplinkQueue> {
    let mut tap = Tap::open(name, 1, Persistence::Unchanged).expect("root may open taps");
    tap.take_queues().remove(0)
}

/// Two ends of one wire: what is sent on `wire` comes out of `tap` and the other way round.
struct Bridged {
    tap: Box<dyn UplinkQueue>,
    wire: Box<dyn UplinkQueue>,
    pool: FramePool,
}

impl Bridged {
    fn new(mtu: u32) -> Self {
        Self::with(queue("tap"), mtu)
    }

    fn with(tap: Box<dyn UplinkQueue>, mtu: u32) -> Self {
        let wire = queue("wire");
        // A bridge that listens to multicast reports itself, and mixes its frames with the tests.
        ip("link add name bridge type bridge mcast_snooping 0");
        ip("link set dev bridge up");
        for port in ["tap", "wire"] {
            ip(&format!("link set dev {port} mtu {mtu} master bridge"));
            ip(&format!("link set dev {port} up"));
        }
        let mut bridged = Self {
            tap,
            wire,
            pool: FramePool::new(128),
        };
        bridged.wait_for_forwarding();
        bridged
    }

    /// Sends probes until one comes through: the bridge learns of a port's carrier in its own time.
    fn wait_for_forwarding(&mut self) {
        let (vnet, probe) = plain(100);
        for _ in 0..100 {
            send(self.wire.as_mut(), vnet, &probe).expect("the wire is up");
            if !self.receive(1).is_empty() {
                // Whatever else is under way belongs to the set-up.
                self.drain();
                return;
            }
        }
        panic!("the bridge forwards nothing");
    }

    /// Waits up to 50 ms for each of `count` frames.
    fn receive(&mut self, count: usize) -> Vec<RxFrame> {
        let mut out = Vec::new();
        while out.len() < count && is_readable(self.tap.as_ref(), 50) {
            self.tap
                .recv_batch(&self.pool, count - out.len(), &mut out)
                .expect("the tap is there");
        }
        out
    }

    fn drain(&mut self) {
        while !self.receive(1).is_empty() {}
    }
}

const DATAGRAM: usize = 1000;
const UDP_HEADERS: usize = 14 + 20 + 8;

/// Datagrams that a host merged to one, with the checksum left to whoever takes them apart.
fn train(datagrams: usize) -> (VnetHdr, Vec<u8>) {
    let (_, mut frame) = plain(HEADERS + datagrams * DATAGRAM);
    // The twelve bytes that a TCP header has more.
    frame.drain(34..46);
    let ip_len = u16::try_from(frame.len() - 14).expect("it is short");
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    frame[23] = 17;
    frame[24..26].fill(0);
    let sum = !sum16(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let udp_len = (ip_len - 20).to_be_bytes();
    let pseudo = [10, 0, 0, 1, 10, 0, 0, 2, 0, 17, udp_len[0], udp_len[1]];
    let sum = sum16(&pseudo).to_be_bytes();
    let udp = [0x12, 0x34, 0, 53, udp_len[0], udp_len[1], sum[0], sum[1]];
    frame[34..42].copy_from_slice(&udp);
    let vnet = VnetHdr {
        gso_type: GSO_UDP_L4,
        gso_size: u16::try_from(DATAGRAM).expect("it is short"),
        hdr_len: 42,
        csum_offset: 6,
        ..partial()
    };
    (vnet, frame)
}

/// Everything that waits, without waiting for more.
fn waiting(queue: &mut dyn UplinkQueue) -> usize {
    let mut out = Vec::new();
    let pool = FramePool::new(256);
    let end = queue
        .recv_batch(&pool, 256, &mut out)
        .expect("the tap is there");
    assert_eq!(end, RecvEnd::Empty);
    out.len()
}

/// A tap of two queues, the first of them bridged, and the second.
fn two_queues() -> (Bridged, Box<dyn UplinkQueue>) {
    let mut tap = Tap::open("tap", 2, Persistence::Unchanged).expect("root may open taps");
    let mut queues = tap.take_queues();
    let mut second = queues.remove(1);
    // The flow of the probes would go to either of them.
    second.set_active(false).expect("it has another queue");
    (Bridged::with(queues.remove(0), 1500), second)
}

fn payload(frames: &[RxFrame]) -> Vec<u8> {
    let payload = |rx: &RxFrame| rx.frame.as_ref()[HEADERS..].to_vec();
    frames.iter().flat_map(payload).collect()
}

fn segments(len: usize) -> usize {
    (len - HEADERS).div_ceil(usize::from(MSS))
}

#[track_caller]
fn assert_cut(frames: &[RxFrame], sent: &[u8]) {
    assert!(frames.iter().all(|rx| rx.frame.as_ref().len() <= 1514));
    assert!(frames.iter().all(|rx| rx.meta.vnet.gso_type == GSO_NONE));
    assert!(
        frames
            .iter()
            .all(|rx| rx.meta.vnet.flags & F_NEEDS_CSUM == 0)
    );
    assert!(payload(frames) == sent[HEADERS..], "payload differs");
}

#[test]
fn f36_offloads_of_an_earlier_owner_are_cleared() {
    in_namespace("f36_offloads_of_an_earlier_owner_are_cleared", || {
        let mut options = OpenOptions::new();
        let earlier = options.read(true).write(true).open("/dev/net/tun").unwrap();
        let flags = ifreq::IFF_TAP | ifreq::IFF_NO_PI | ifreq::IFF_VNET_HDR;
        ifreq::tun_set_iff(earlier.as_fd(), "tap", flags).unwrap();
        ifreq::tun_set_offload(earlier.as_fd(), 0x0f).unwrap();
        ifreq::tun_set_persist(earlier.as_fd(), true).unwrap();
        drop(earlier);

        let mut bridged = Bridged::new(1500);
        let (vnet, frame) = gso(20_000);
        send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        let frames = bridged.receive(segments(20_000));
        assert_cut(&frames, &frame);
    });
}

#[test]
fn f36_offloads_follow_the_guest_and_end_as_nothing() {
    in_namespace("f36_offloads_follow_the_guest_and_end_as_nothing", || {
        let mut bridged = Bridged::new(1500);
        let (vnet, frame) = gso(20_000);
        for _ in 0..2 {
            bridged.tap.set_offloads(ALL).unwrap();
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
            let frames = bridged.receive(1);
            assert!(frames[0].frame.as_ref() == frame, "the frame differs");

            bridged.tap.set_offloads(Offloads::default()).unwrap();
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
            let frames = bridged.receive(segments(20_000));
            assert_cut(&frames, &frame);
        }
    });
}

#[test]
fn f36_a_dropped_queue_leaves_no_offload_behind() {
    in_namespace("f36_a_dropped_queue_leaves_no_offload_behind", || {
        // The queue that stays sees what the dropped one leaves of the device's state.
        let mut tap = Tap::open("tap", 2, Persistence::Unchanged).unwrap();
        let mut queues = tap.take_queues();
        let (staying, mut dropped) = (queues.remove(0), queues.remove(0));
        dropped.set_offloads(ALL).unwrap();
        drop(dropped);
        let mut bridged = Bridged::with(staying, 1500);
        let (vnet, frame) = gso(20_000);
        send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        let frames = bridged.receive(segments(20_000));
        assert_cut(&frames, &frame);
    });
}

#[test]
fn f63_a_frame_merged_by_the_host_keeps_its_header() {
    in_namespace("f63_a_frame_merged_by_the_host_keeps_its_header", || {
        let mut bridged = Bridged::new(1500);
        bridged.tap.set_offloads(ALL).unwrap();
        let (vnet, frame) = gso(LARGEST);
        send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        let frames = bridged.receive(1);
        assert!(frames[0].frame.as_ref() == frame, "the frame differs");
        let got = frames[0].meta.vnet;
        assert_eq!(got.gso_type, GSO_TCPV4);
        assert_eq!(got.gso_size, MSS);
        assert_eq!(got.flags & F_NEEDS_CSUM, F_NEEDS_CSUM);
        assert_eq!((got.csum_start, got.csum_offset), (34, 16));
    });
}

#[test]
fn f36_datagrams_that_the_host_merged_are_cut_unless_the_guest_takes_them() {
    let test = "f36_datagrams_that_the_host_merged_are_cut_unless_the_guest_takes_them";
    in_namespace(test, move || {
        let mut tap = Tap::open("tap", 1, Persistence::Unchanged).expect("root may open taps");
        if !tap.caps().tx.uso {
            let text = format!("SKIPPED {test}: needs Linux 6.2 or later\n");
            std::io::stderr().write_all(text.as_bytes()).ok();
            return;
        }
        let mut bridged = Bridged::with(tap.take_queues().remove(0), 1500);
        let (vnet, frame) = train(10);
        let without = Offloads { uso: false, ..ALL };
        for offloads in [Offloads::default(), without, ALL, without] {
            bridged.tap.set_offloads(offloads).unwrap();
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
            if offloads.uso {
                let frames = bridged.receive(1);
                assert!(frames[0].frame.as_ref() == frame, "the frame differs");
                let got = frames[0].meta.vnet;
                assert_eq!((got.gso_type, got.gso_size), (GSO_UDP_L4, vnet.gso_size));
                continue;
            }
            let frames = bridged.receive(10);
            let bytes = |rx: &RxFrame| rx.frame.as_ref()[UDP_HEADERS..].to_vec();
            assert!(frames.iter().all(|rx| rx.meta.vnet.gso_type == GSO_NONE));
            assert!(frames.iter().all(|rx| bytes(rx).len() == DATAGRAM));
            let payload: Vec<u8> = frames.iter().flat_map(bytes).collect();
            assert!(payload == frame[UDP_HEADERS..], "the payload differs");
        }
    });
}

#[test]
fn f60_large_and_small_frames_arrive_whole() {
    in_namespace("f60_large_and_small_frames_arrive_whole", || {
        let mut bridged = Bridged::new(9000);
        bridged.tap.set_offloads(ALL).unwrap();
        let sent = [
            gso(LARGEST),
            plain(9014),
            plain(1514),
            gso(40_000),
            plain(60),
        ];
        for (vnet, frame) in &sent {
            send(bridged.wire.as_mut(), *vnet, frame).unwrap();
        }
        let frames = bridged.receive(sent.len());
        for ((_, frame), rx) in sent.iter().zip(&frames) {
            assert!(rx.frame.as_ref() == frame, "{} bytes differ", frame.len());
        }
        assert_eq!(frames.len(), sent.len());
        assert_eq!(bridged.tap.stats().rx_truncated, 0);
    });
}

#[test]
fn f61_frames_from_before_the_first_wake_up_are_read() {
    in_namespace("f61_frames_from_before_the_first_wake_up_are_read", || {
        let mut bridged = Bridged::new(1500);
        let (vnet, frame) = plain(200);
        for _ in 0..10 {
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        }
        let mut out = Vec::new();
        let pool = FramePool::new(16);
        let mut recv = |budget| bridged.tap.recv_batch(&pool, budget, &mut out).unwrap();
        assert_eq!(recv(4), RecvEnd::Budget);
        assert_eq!(recv(16), RecvEnd::Empty);
        assert_eq!(out.len(), 10);
    });
}

#[test]
fn f61_what_a_batch_left_keeps_the_queue_readable() {
    in_namespace("f61_what_a_batch_left_keeps_the_queue_readable", || {
        let mut bridged = Bridged::new(1500);
        let (vnet, frame) = plain(200);
        for _ in 0..3 {
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        }
        let small = FramePool::new(2);
        let mut out = Vec::new();
        let end = bridged.tap.recv_batch(&small, 64, &mut out).unwrap();
        assert_eq!((end, out.len()), (RecvEnd::PoolEmpty, 2));
        assert!(is_readable(bridged.tap.as_ref(), 0));
        out.clear();
        let end = bridged.tap.recv_batch(&small, 64, &mut out).unwrap();
        assert_eq!((end, out.len()), (RecvEnd::Empty, 1));
        assert!(!is_readable(bridged.tap.as_ref(), 0));
    });
}

#[test]
fn f40_an_interface_that_is_down_comes_back() {
    in_namespace("f40_an_interface_that_is_down_comes_back", || {
        let mut tap = queue("tap");
        let pool = FramePool::new(4);
        let (vnet, frame) = plain(100);
        for _ in 0..2 {
            let down = send(tap.as_mut(), vnet, &frame);
            assert!(matches!(down, Err(SendError::Down)), "{down:?}");
            let mut out = Vec::new();
            let end = tap.recv_batch(&pool, 4, &mut out);
            assert!(matches!(end, Ok(RecvEnd::Empty)), "{end:?}");
            ip("link set dev tap up");
            send(tap.as_mut(), vnet, &frame).unwrap();
            ip("link set dev tap down");
        }
    });
}

#[test]
fn f40_a_refused_frame_does_not_stop_the_next() {
    in_namespace("f40_a_refused_frame_does_not_stop_the_next", || {
        let mut bridged = Bridged::new(1500);
        let (good, frame) = plain(100);
        let bad = VnetHdr {
            csum_start: 5000,
            ..good
        };
        let refused = send(bridged.wire.as_mut(), bad, &frame);
        assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
        send(bridged.wire.as_mut(), good, &frame).unwrap();
        assert_eq!(bridged.receive(1).len(), 1);
    });
}

#[test]
fn f40_a_deleted_tap_wakes_its_owner_and_is_gone() {
    in_namespace("f40_a_deleted_tap_wakes_its_owner_and_is_gone", || {
        // By descriptor, which nobody can give a second time.
        let fd = queue("tap").fd().try_clone_to_owned().unwrap();
        let mut tap = Tap::from_fds(vec![fd], 1).unwrap().take_queues().remove(0);
        ip("link set dev tap up");
        assert_eq!(
            readiness(tap.as_ref(), PollFlags::empty(), 0),
            PollFlags::empty()
        );
        ip("link delete dev tap");
        // Also with no event asked for, as a masked queue is watched.
        let woken = readiness(tap.as_ref(), PollFlags::empty(), 1000);
        assert!(woken.contains(PollFlags::ERR), "{woken:?}");
        let mut out = Vec::new();
        let end = tap.recv_batch(&FramePool::new(1), 1, &mut out);
        assert!(matches!(end, Err(RecvError::Gone(_))), "{end:?}");
        let (vnet, frame) = plain(100);
        let sent = send(tap.as_mut(), vnet, &frame);
        assert!(matches!(sent, Err(SendError::Gone(_))), "{sent:?}");
        assert!(tap.set_offloads(ALL).is_err());
    });
}

#[test]
fn every_flow_arrives_at_the_only_active_queue() {
    in_namespace("every_flow_arrives_at_the_only_active_queue", || {
        let (mut bridged, mut second) = two_queues();
        for (vnet, frame) in flows(64) {
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        }
        assert_eq!(bridged.receive(64).len(), 64);
        assert_eq!(waiting(second.as_mut()), 0);

        second.set_active(true).unwrap();
        for (vnet, frame) in flows(64) {
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        }
        let shares = [waiting(bridged.tap.as_mut()), waiting(second.as_mut())];
        assert_eq!(shares.iter().sum::<usize>(), 64);
        assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
    });
}

#[test]
fn the_first_queue_stays_and_keeps_the_device_running() {
    in_namespace("the_first_queue_stays_and_keeps_the_device_running", || {
        let (mut bridged, _second) = two_queues();
        bridged.tap.set_active(false).unwrap();
        for (vnet, frame) in flows(8) {
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
        }
        bridged.tap.set_active(true).unwrap();
        assert_eq!(bridged.receive(8).len(), 8);
        assert_eq!(bridged.tap.stats().rx_discarded, 0);
    });
}

#[test]
fn a_queue_that_comes_and_goes_accounts_for_every_frame() {
    in_namespace(
        "a_queue_that_comes_and_goes_accounts_for_every_frame",
        || {
            let (mut bridged, mut second) = two_queues();
            let (mut sent, mut got) = (0, 0);
            for round in 0..100 {
                second.set_active(round % 2 == 0).unwrap();
                for (vnet, frame) in flows(16) {
                    send(bridged.wire.as_mut(), vnet, &frame).unwrap();
                    sent += 1;
                }
                got += waiting(bridged.tap.as_mut());
                // Now and then frames still wait there when the queue goes.
                if round % 4 == 0 {
                    got += waiting(second.as_mut());
                }
            }
            let discarded = usize::try_from(second.stats().rx_discarded).unwrap();
            assert_eq!(got + discarded, sent);
            assert!(discarded > 0, "nothing waited when the queue went");
        },
    );
}

#[test]
fn an_inactive_queue_is_quiet_and_sends_and_leaves_offloads_alone() {
    in_namespace(
        "an_inactive_queue_is_quiet_and_sends_and_leaves_offloads_alone",
        || {
            let (mut bridged, mut second) = two_queues();
            let quiet = readiness(second.as_ref(), PollFlags::IN, 0);
            assert_eq!(quiet, PollFlags::empty());
            let (vnet, frame) = plain(100);
            send(second.as_mut(), vnet, &frame).unwrap();
            assert_eq!(waiting(bridged.wire.as_mut()), 1);

            bridged.tap.set_offloads(ALL).unwrap();
            second.set_offloads(Offloads::default()).unwrap();
            let (vnet, frame) = gso(20_000);
            send(bridged.wire.as_mut(), vnet, &frame).unwrap();
            assert_eq!(bridged.receive(1)[0].frame.as_ref().len(), frame.len());
        },
    );
}

#[test]
fn f40_an_inactive_queue_learns_of_a_deleted_tap() {
    in_namespace("f40_an_inactive_queue_learns_of_a_deleted_tap", || {
        let (_bridged, mut second) = two_queues();
        ip("link delete dev tap");
        let woken = readiness(second.as_ref(), PollFlags::empty(), 1000);
        assert!(woken.contains(PollFlags::ERR), "{woken:?}");
        second.set_active(true).expect("it waits for the next tap");
        assert_eq!(second.carrier(), Some(false));
        let (vnet, frame) = plain(100);
        let sent = send(second.as_mut(), vnet, &frame);
        assert!(matches!(sent, Err(SendError::Down)), "{sent:?}");
    });
}
