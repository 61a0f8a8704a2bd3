//! Frames through an interface that a packet socket is attached to: its ring, tags, merged frames,
//! an interface that goes down or away. Needs root.
//!
//! The interface under test is one end of a veth pair, `uplink`; the tests hold the other one,
//! `wire`, by a queue of the same kind. What its kernel leaves undone, checksums and segmentation,
//! is seen at `uplink` as from a network card that merged frames.
#![cfg(feature = "daemon")]

#[path = "support/host_frames.rs"]
mod host_frames;
#[path = "support/netns.rs"]
mod netns;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use vhost_user_gro::sys::GuestSlice;
use vhost_user_gro::uplink::af_packet::{AfPacket, AfPacketConfig, AfPacketError, Mac};
use vhost_user_gro::uplink::{
    Flushed, FramePool, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink, UplinkQueue,
};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4};

use self::host_frames::{LARGEST, MSS, flows, gso, is_readable, plain, readiness, send};
use self::netns::{in_namespace, ip};

/// Where the frames of the tests go to.
const GUEST: Mac = [0x02, 0, 0, 0, 0, 2];
/// A ring that is soon full.
const SMALL: usize = 16;

fn config(slots: usize) -> AfPacketConfig {
    AfPacketConfig {
        macs: Vec::new(),
        slots,
        shows_link: true,
        qdisc_bypass: false,
    }
}

fn attach(name: &str, pairs: usize, config: AfPacketConfig) -> Vec<Box<dyn UplinkQueue>> {
    let mut uplink = AfPacket::open(name, pairs, config).expect("root may attach to interfaces");
    uplink.take_queues()
}

fn add_pair(mtu: usize) {
    ip(&format!(
        "link add uplink mtu {mtu} type veth peer name wire mtu {mtu}"
    ));
    for end in ["uplink", "wire"] {
        ip(&format!("link set dev {end} up"));
    }
}

/// Both ends of a veth pair.
struct Cable {
    queue: Box<dyn UplinkQueue>,
    wire: Box<dyn UplinkQueue>,
    pool: FramePool,
}

impl Cable {
    fn new(mtu: usize, config: AfPacketConfig) -> Self {
        add_pair(mtu);
        Self {
            queue: attach("uplink", 1, config).remove(0),
            wire: attach("wire", 1, self::config(SMALL)).remove(0),
            pool: FramePool::new(64),
        }
    }

    fn put(&mut self, vnet: VnetHdr, frame: &[u8]) {
        send(self.wire.as_mut(), vnet, frame).expect("the wire is up");
    }

    /// One batch of at most `budget` frames.
    fn batch(&mut self, budget: usize) -> (RecvEnd, Vec<RxFrame>) {
        let mut out = Vec::new();
        let end = self.queue.recv_batch(&self.pool, budget, &mut out);
        (end.expect("the interface is there"), out)
    }

    /// What there is, which the kernel puts there before a send returns.
    fn receive(&mut self) -> Vec<RxFrame> {
        let (end, frames) = self.batch(64);
        assert_eq!(end, RecvEnd::Empty);
        frames
    }
}

/// A frame with a number in it.
fn numbered(number: u16) -> (VnetHdr, Vec<u8>) {
    let (_, mut frame) = plain(100);
    frame[98..].copy_from_slice(&number.to_be_bytes());
    (VnetHdr::default(), frame)
}

fn number(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[98], frame[99]])
}

#[test]
fn f61_frames_arrive_in_order_round_and_round_the_ring() {
    in_namespace(
        "f61_frames_arrive_in_order_round_and_round_the_ring",
        || {
            let mut cable = Cable::new(1500, config(SMALL));
            let mut sent = 0..;
            for burst in [1, 3, 16, 7, 16, 16, 2, 11, 16, 5] {
                let numbers: Vec<u16> = sent.by_ref().take(burst).collect();
                for &number in &numbers {
                    let (vnet, frame) = numbered(number);
                    cable.put(vnet, &frame);
                }
                assert!(is_readable(cable.queue.as_ref(), 0));
                let mut got = Vec::new();
                loop {
                    let (end, frames) = cable.batch(64);
                    got.extend(frames.iter().map(|rx| number(rx.frame.as_ref())));
                    if end == RecvEnd::Empty {
                        break;
                    }
                    assert_eq!(end, RecvEnd::RingLent);
                }
                assert_eq!(got, numbers);
                assert!(!is_readable(cable.queue.as_ref(), 0));
            }
            assert_eq!(cable.queue.stats().rx_ring_full, 0);
        },
    );
}

#[test]
fn f61_frames_from_before_the_first_wake_up_are_read() {
    in_namespace("f61_frames_from_before_the_first_wake_up_are_read", || {
        let mut cable = Cable::new(1500, config(64));
        for at in 0..10 {
            let (vnet, frame) = numbered(at);
            cable.put(vnet, &frame);
        }
        let (end, first) = cable.batch(4);
        assert_eq!((end, first.len()), (RecvEnd::Budget, 4));
        assert!(is_readable(cable.queue.as_ref(), 0));
        assert_eq!(cable.receive().len(), 6);
    });
}

#[test]
fn f61_frames_that_are_held_do_not_keep_the_queue_readable() {
    in_namespace(
        "f61_frames_that_are_held_do_not_keep_the_queue_readable",
        || {
            let mut cable = Cable::new(1500, config(64));
            let mut held = Vec::new();
            for at in 0..20 {
                let (vnet, frame) = numbered(at);
                cable.put(vnet, &frame);
                if at % 4 == 3 {
                    // Also where the budget ends with the last one.
                    held.extend(cable.batch(4).1);
                    assert!(!is_readable(cable.queue.as_ref(), 0));
                }
            }
            let numbers: Vec<_> = held.iter().map(|rx| number(rx.frame.as_ref())).collect();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
            assert!(
                held.iter().any(|rx| rx.frame.is_in_ring()),
                "all were copied"
            );
        },
    );
}

#[test]
fn a_held_frame_stays_as_it_is_and_leaves_half_of_the_ring_moving() {
    let test = "a_held_frame_stays_as_it_is_and_leaves_half_of_the_ring_moving";
    in_namespace(test, || {
        let mut cable = Cable::new(1500, config(SMALL));
        let put = |cable: &mut Cable, number| {
            let (vnet, frame) = numbered(number);
            cable.put(vnet, &frame);
        };
        (0..2).for_each(|number| put(&mut cable, number));
        let mut frames = cable.receive();
        assert!(frames[0].frame.is_in_ring());
        frames.truncate(1);
        // The reader stops at half of the ring, the kernel has the other half.
        let mut read = 2;
        (2..16).for_each(|number| put(&mut cable, number));
        loop {
            let (end, more) = cable.batch(1);
            read += more.len();
            if end == RecvEnd::RingLent {
                break;
            }
        }
        assert_eq!(read, SMALL / 2);
        assert_eq!(number(frames[0].frame.as_ref()), 0);
        assert_eq!(cable.queue.stats().rx_ring_full, 0);
        // One more has no slot; it is counted, and nothing of what is held changes.
        (16..19).for_each(|number| put(&mut cable, number));
        assert_eq!(cable.queue.stats().rx_ring_full, 3);
        assert_eq!(number(frames[0].frame.as_ref()), 0);
        drop(frames);
        let mut numbers = Vec::new();
        loop {
            let (end, more) = cable.batch(64);
            numbers.extend(more.iter().map(|rx| number(rx.frame.as_ref())));
            if end == RecvEnd::Empty {
                break;
            }
        }
        assert_eq!(numbers, (8..16).collect::<Vec<_>>());
    });
}

#[test]
fn f68_what_a_full_ring_drops_is_counted_once() {
    in_namespace("f68_what_a_full_ring_drops_is_counted_once", || {
        let mut cable = Cable::new(1500, config(SMALL));
        for at in 0..100 {
            let (vnet, frame) = numbered(at);
            cable.put(vnet, &frame);
        }
        let (_, frames) = cable.batch(SMALL);
        let read = frames.len();
        drop(frames);
        let rest = cable.receive().len();
        assert_eq!(read + rest, SMALL);
        for _ in 0..2 {
            assert_eq!(cable.queue.stats().rx_ring_full, 100 - 16);
        }
    });
}

#[test]
fn f62_tags_of_every_kind_arrive_as_they_were_sent() {
    in_namespace("f62_tags_of_every_kind_arrive_as_they_were_sent", || {
        let mut cable = Cable::new(1500, config(64));
        let tag = |protocol: u16, control: u16| {
            let [a, b] = protocol.to_be_bytes();
            let [c, d] = control.to_be_bytes();
            vec![a, b, c, d]
        };
        let tags = [
            vec![],
            tag(0x8100, 0),
            tag(0x8100, 1),
            tag(0x8100, 4095),
            tag(0x8100, 5 << 13 | 100),
            tag(0x88a8, 7),
            [tag(0x8100, 3), tag(0x8100, 4)].concat(),
            [tag(0x88a8, 3), tag(0x8100, 0)].concat(),
        ];
        let (_, untagged) = plain(200);
        let frame = |tags: &[u8]| [&untagged[..12], tags, &untagged[12..]].concat();
        for tags in &tags {
            cable.put(VnetHdr::default(), &frame(tags));
        }
        let frames = cable.receive();
        assert_eq!(frames.len(), tags.len());
        for (tags, rx) in tags.iter().zip(&frames) {
            assert!(rx.frame.as_ref() == frame(tags), "{tags:02x?}");
        }
        // The last one was copied, all others are in the ring.
        let in_ring = frames.iter().filter(|rx| rx.frame.is_in_ring()).count();
        assert_eq!(in_ring, tags.len() - 1);
    });
}

#[test]
fn f62_the_header_of_a_tagged_frame_is_that_of_the_whole_frame() {
    in_namespace(
        "f62_the_header_of_a_tagged_frame_is_that_of_the_whole_frame",
        || {
            let mut cable = Cable::new(1500, config(64));
            for (vnet, frame) in [plain(1514), gso(20_000)] {
                let frame = [&frame[..12], &[0x81, 0, 0, 9], &frame[12..]].concat();
                let tagged = VnetHdr {
                    csum_start: vnet.csum_start + 4,
                    hdr_len: vnet.hdr_len + 4,
                    ..vnet
                };
                cable.put(tagged, &frame);
                let frames = cable.receive();
                assert!(frames[0].frame.as_ref() == frame, "{} bytes", frame.len());
                let got = frames[0].meta.vnet;
                assert_eq!(got.flags, F_NEEDS_CSUM);
                assert_eq!((got.csum_start, got.csum_offset), (38, 16));
                assert_eq!((got.gso_type, got.gso_size), (vnet.gso_type, vnet.gso_size));
            }
        },
    );
}

#[test]
fn f63_frames_merged_by_the_host_keep_their_header_and_place() {
    in_namespace(
        "f63_frames_merged_by_the_host_keep_their_header_and_place",
        || {
            let mut cable = Cable::new(1500, config(64));
            // What fits a slot, what does not, and what is no merged frame, in turn.
            let sent = [
                gso(LARGEST),
                plain(100),
                gso(1600),
                gso(2100),
                plain(1514),
                gso(LARGEST),
                gso(40_000),
            ];
            for (vnet, frame) in &sent {
                cable.put(*vnet, frame);
            }
            let frames = cable.receive();
            assert_eq!(frames.len(), sent.len());
            for ((vnet, frame), rx) in sent.iter().zip(&frames) {
                assert!(rx.frame.as_ref() == frame, "{} bytes differ", frame.len());
                let got = rx.meta.vnet;
                assert_eq!((got.gso_type, got.gso_size), (vnet.gso_type, vnet.gso_size));
                assert_eq!(got.flags, F_NEEDS_CSUM);
                assert_eq!((got.csum_start, got.csum_offset), (34, 16));
            }
            assert_eq!(cable.queue.stats().rx_truncated, 0);
            assert!(!is_readable(cable.queue.as_ref(), 0));
        },
    );
}

#[test]
fn f60_frames_of_every_size_arrive_whole() {
    in_namespace("f60_frames_of_every_size_arrive_whole", || {
        let mut cable = Cable::new(9000, config(64));
        let sent = [gso(LARGEST), plain(9014), plain(1514), plain(60)];
        for (vnet, frame) in &sent {
            cable.put(*vnet, frame);
        }
        let frames = cable.receive();
        assert!(
            frames[1].frame.is_in_ring(),
            "a frame of the MTU has a slot"
        );
        // As they do if the MTU grew behind our back.
        ip("link set dev uplink mtu 30000");
        ip("link set dev wire mtu 30000");
        let (vnet, large) = plain(30_014);
        cable.put(vnet, &large);
        let late = cable.receive();
        let got: Vec<_> = frames.iter().chain(&late).collect();
        let sent: Vec<_> = sent
            .iter()
            .map(|(_, frame)| frame)
            .chain([&large])
            .collect();
        assert_eq!(got.len(), sent.len());
        for (frame, rx) in sent.iter().zip(got) {
            assert!(rx.frame.as_ref() == *frame, "{} bytes differ", frame.len());
        }
        assert_eq!(cable.queue.stats().rx_truncated, 0);
    });
}

#[test]
fn what_the_host_or_this_queue_sends_is_not_received() {
    in_namespace("what_the_host_or_this_queue_sends_is_not_received", || {
        let mut cable = Cable::new(1500, config(64));
        let mut other = attach("uplink", 1, config(SMALL)).remove(0);
        let (vnet, frame) = plain(100);
        send(other.as_mut(), vnet, &frame).unwrap();
        send(cable.queue.as_mut(), vnet, &frame).unwrap();
        let mut out = Vec::new();
        let pool = FramePool::new(4);
        cable.wire.recv_batch(&pool, 4, &mut out).unwrap();
        assert_eq!(out.len(), 2);
        assert_eq!(cable.receive().len(), 0);
    });
}

#[test]
fn only_the_guests_addresses_and_groups_are_received_if_they_are_known() {
    let test = "only_the_guests_addresses_and_groups_are_received_if_they_are_known";
    in_namespace(test, || {
        let second = [0x02, 0, 0, 0, 0, 9];
        let macs = vec![GUEST, second];
        let mut cable = Cable::new(1500, AfPacketConfig { macs, ..config(64) });
        let to = |mac: Mac| {
            let (vnet, mut frame) = plain(100);
            frame[..6].copy_from_slice(&mac);
            (vnet, frame)
        };
        let wanted = [
            GUEST,
            [0xff; 6],
            second,
            [1, 0, 0x5e, 0, 0, 1],
            [0x33, 0x33, 0, 0, 0, 1],
        ];
        let foreign = [
            [0x02, 0, 0, 0, 0, 3],
            [0x02, 0, 0, 0, 9, 2],
            [0x12, 0, 0, 0, 0, 2],
        ];
        for mac in foreign.into_iter().chain(wanted).chain(foreign) {
            let (vnet, frame) = to(mac);
            cable.put(vnet, &frame);
        }
        let frames = cable.receive();
        let got: Vec<_> = frames.iter().map(|rx| &rx.frame.as_ref()[..6]).collect();
        assert_eq!(got, wanted);
    });
}

#[test]
fn f40_sending_past_the_mtu_or_down_is_told_apart() {
    in_namespace("f40_sending_past_the_mtu_or_down_is_told_apart", || {
        let mut cable = Cable::new(1500, config(SMALL));
        let (vnet, long) = plain(3000);
        let refused = send(cable.queue.as_mut(), vnet, &long);
        assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
        let (vnet, frame) = plain(100);
        send(cable.queue.as_mut(), vnet, &frame).unwrap();
        ip("link set dev uplink down");
        let down = send(cable.queue.as_mut(), vnet, &frame);
        assert!(matches!(down, Err(SendError::Down)), "{down:?}");
        ip("link set dev uplink up");
        // The socket keeps an error of the time in between for the next call.
        let _ = send(cable.queue.as_mut(), vnet, &frame);
        send(cable.queue.as_mut(), vnet, &frame).unwrap();
    });
}

/// What the other end of the cable gets of frames that the guest sends in one batch.
fn batch(cable: &mut Cable, frames: &[(VnetHdr, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut wire = attach("wire", 1, config(512)).remove(0);
    for (vnet, frame) in frames {
        let mut guest = frame[54..].to_vec();
        let frame = TxFrame {
            vnet: *vnet,
            head: &frame[..54],
            rest: &[GuestSlice::from(&mut guest[..])],
        };
        cable.queue.send(&frame).expect("the interface is up");
    }
    let flushed = cable.queue.flush().expect("the interface is up");
    assert_eq!(flushed, Flushed::All);
    let mut out = Vec::new();
    let pool = FramePool::new(64);
    wire.recv_batch(&pool, 256, &mut out)
        .expect("the wire is up");
    out.iter().map(|rx| rx.frame.as_ref().to_vec()).collect()
}

#[test]
fn f42_short_and_long_frames_of_a_batch_leave_in_order() {
    in_namespace(
        "f42_short_and_long_frames_of_a_batch_leave_in_order",
        || {
            let mut cable = Cable::new(1500, config(SMALL));
            let mut frames: Vec<_> = (0..150).map(numbered).collect();
            for (at, len) in [(3, 20_000), (40, 2100), (149, LARGEST)] {
                let (vnet, mut long) = gso(len);
                long[98..100].copy_from_slice(&u16::try_from(at).unwrap().to_be_bytes());
                frames[at] = (vnet, long);
            }
            let sent: Vec<_> = frames.iter().map(|(_, frame)| frame.clone()).collect();
            let got = batch(&mut cable, &frames);
            let numbers: Vec<_> = got.iter().map(|frame| number(frame)).collect();
            assert_eq!(numbers, (0..150).collect::<Vec<_>>());
            assert!(got == sent, "bytes differ");
            assert_eq!(cable.queue.stats().tx_lost, 0);
        },
    );
}

#[test]
fn f40_a_refused_frame_of_a_batch_does_not_stop_the_next() {
    in_namespace(
        "f40_a_refused_frame_of_a_batch_does_not_stop_the_next",
        || {
            let mut cable = Cable::new(1000, config(SMALL));
            let mut frames: Vec<_> = (0..10).map(numbered).collect();
            let (_, too_long) = plain(1514);
            for at in [0, 4, 5, 9] {
                frames[at] = (VnetHdr::default(), too_long.clone());
            }
            let got = batch(&mut cable, &frames);
            let numbers: Vec<_> = got.iter().map(|frame| number(frame)).collect();
            assert_eq!(numbers, [1, 2, 3, 6, 7, 8]);
            assert_eq!(cable.queue.stats().tx_lost, 4);
        },
    );
}

#[test]
fn f39_frames_that_the_host_has_no_room_for_are_kept_in_order() {
    in_namespace(
        "f39_frames_that_the_host_has_no_room_for_are_kept_in_order",
        || {
            let mut cable = Cable::new(1500, config(SMALL));
            // A device that takes a frame in 12 ms; the queue in front of it holds them all.
            ip("link set dev uplink txqueuelen 1000");
            let shaped = std::process::Command::new("tc")
                .args("qdisc add dev uplink root tbf rate 1mbit burst 2000 limit 100mb".split(' '))
                .status();
            if !shaped.is_ok_and(|status| status.success()) {
                eprintln!("SKIPPED f39_frames_that_the_host_has_no_room_for: no tc with tbf");
                return;
            }
            set_socket_send_buffer_size_force(cable.queue.fd(), 20_000).unwrap();
            let mut wire = attach("wire", 1, config(512)).remove(0);
            let pool = FramePool::new(64);
            let mut got = Vec::new();
            let mut waits = 0;
            for sent in 0..60u16 {
                let (_, mut frame) = plain(1514);
                frame[98..100].copy_from_slice(&sent.to_be_bytes());
                let vnet = VnetHdr::default();
                let frame = TxFrame {
                    vnet,
                    head: &frame,
                    rest: &[],
                };
                cable.queue.send(&frame).expect("a batch has room");
                while cable.queue.flush().unwrap() == Flushed::Partly {
                    waits += 1;
                    let ready = readiness(cable.queue.as_ref(), PollFlags::OUT, 5000);
                    assert!(ready.contains(PollFlags::OUT), "never writable");
                }
            }
            while got.len() < 60 && is_readable(wire.as_ref(), 5000) {
                let mut out = Vec::new();
                wire.recv_batch(&pool, 64, &mut out).unwrap();
                got.extend(out.iter().map(|rx| number(rx.frame.as_ref())));
            }
            assert_eq!(got, (0..60).collect::<Vec<_>>());
            assert!(waits > 0, "it was never full");
            assert_eq!(cable.queue.stats().tx_lost, 0);
        },
    );
}

/// Whether the queue has news of its device.
fn has_news(queue: &dyn UplinkQueue) -> bool {
    let fd = queue.events().expect("an interface can be watched");
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&timeout)).expect("poll takes one descriptor") > 0
}

/// Follows the device until it is what it is to be.
#[track_caller]
fn follow(queue: &mut dyn UplinkQueue, is_up: bool) {
    for _ in 0..100 {
        queue.follow_device();
        if queue.carrier() == Some(is_up) {
            return;
        }
        assert!(has_news(queue), "no change to {is_up}");
    }
    panic!("never {is_up}");
}

#[test]
fn f40_an_interface_that_is_down_says_so_and_comes_back() {
    in_namespace(
        "f40_an_interface_that_is_down_says_so_and_comes_back",
        || {
            let mut cable = Cable::new(1500, config(64));
            follow(cable.queue.as_mut(), true);
            let quiet = AfPacketConfig {
                shows_link: false,
                ..config(SMALL)
            };
            let mut quiet = attach("uplink", 1, quiet).remove(0);
            let (vnet, frame) = plain(100);
            for end in ["uplink", "wire"] {
                ip(&format!("link set dev {end} down"));
                if end == "uplink" {
                    // An error on the descriptor, once.
                    let woken = readiness(cable.queue.as_ref(), PollFlags::empty(), 1000);
                    assert!(woken.contains(PollFlags::ERR), "{woken:?}");
                    let mut read = || cable.queue.recv_batch(&cable.pool, 8, &mut Vec::new());
                    assert!(matches!(read(), Ok(RecvEnd::Empty)));
                    let error = read();
                    assert!(matches!(error, Err(RecvError::Down)), "{error:?}");
                    let quiet = readiness(cable.queue.as_ref(), PollFlags::empty(), 0);
                    assert_eq!(quiet, PollFlags::empty());
                }
                follow(cable.queue.as_mut(), false);
                quiet.follow_device();
                assert_eq!(quiet.carrier(), None);
                let down = send(quiet.as_mut(), vnet, &frame);
                assert!(matches!(down, Err(SendError::Down)), "{down:?}");
                ip(&format!("link set dev {end} up"));
                follow(cable.queue.as_mut(), true);
                let _ = send(cable.wire.as_mut(), vnet, &frame);
                cable.receive();
                cable.put(vnet, &frame);
                assert_eq!(cable.receive().len(), 1);
            }
        },
    );
}

#[test]
fn f40_an_interface_that_was_deleted_is_attached_to_again_when_it_is_back() {
    let test = "f40_an_interface_that_was_deleted_is_attached_to_again_when_it_is_back";
    in_namespace(test, || {
        let mut cable = Cable::new(1500, config(64));
        for round in 0..5 {
            let (vnet, frame) = numbered(round);
            for _ in 0..3 {
                cable.put(vnet, &frame);
            }
            // Two of them are still held when their ring goes.
            let held = cable.batch(2).1;
            ip("link delete dev uplink");
            follow(cable.queue.as_mut(), false);
            let down = (0..2).map(|_| send(cable.queue.as_mut(), vnet, &frame));
            assert!(
                down.into_iter()
                    .all(|sent| matches!(sent, Err(SendError::Down)))
            );
            add_pair(1500);
            follow(cable.queue.as_mut(), true);
            assert_eq!(number(held[0].frame.as_ref()), round);
            cable.wire = attach("wire", 1, config(SMALL)).remove(0);
            drop(held);
            cable.put(vnet, &frame);
            let got = cable.receive();
            assert_eq!(got.len(), 1);
            send(cable.queue.as_mut(), vnet, &frame).unwrap();
        }
        // What waited in the ring of an interface that went.
        assert_eq!(cable.queue.stats().rx_discarded, 5);
        // All of it, if the ring was full.
        for at in 0..70 {
            let (vnet, frame) = numbered(at);
            cable.put(vnet, &frame);
        }
        ip("link delete dev uplink");
        add_pair(1500);
        follow(cable.queue.as_mut(), true);
        let stats = cable.queue.stats();
        assert_eq!((stats.rx_discarded, stats.rx_ring_full), (5 + 64, 6));
    });
}

#[test]
fn f40_rings_of_interfaces_that_went_leave_nothing_mapped() {
    in_namespace(
        "f40_rings_of_interfaces_that_went_leave_nothing_mapped",
        || {
            let mut cable = Cable::new(1500, config(64));
            let mut gone = Vec::new();
            for _ in 0..4 {
                let (vnet, frame) = plain(100);
                cable.put(vnet, &frame);
                cable.put(vnet, &frame);
                let held = cable.receive();
                assert!(held[0].frame.is_in_ring());
                gone.push(fstat(cable.queue.fd()).expect("it is open").st_ino);
                assert_eq!(mapped(&gone).len(), 1);
                ip("link delete dev uplink");
                follow(cable.queue.as_mut(), false);
                add_pair(1500);
                follow(cable.queue.as_mut(), true);
                // A ring lives as long as a frame in it.
                assert_eq!(mapped(&gone).len(), 1);
                drop(held);
                cable.wire = attach("wire", 1, config(SMALL)).remove(0);
                cable.queue.follow_device();
                assert!(mapped(&gone).is_empty());
            }
        },
    );
}

/// Which of these sockets have a mapping in this process.
fn mapped(inodes: &[u64]) -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is there");
    let is_mapped = |inode: &u64| maps.contains(&format!("socket:[{inode}]"));
    inodes.iter().copied().filter(is_mapped).collect()
}

#[test]
fn each_flow_stays_on_one_of_several_queues() {
    in_namespace("each_flow_stays_on_one_of_several_queues", || {
        add_pair(1500);
        let mut queues = attach("uplink", 2, config(1024));
        let mut wire = attach("wire", 1, config(SMALL)).remove(0);
        let pool = FramePool::new(512);
        for _ in 0..2 {
            for (vnet, frame) in flows(64) {
                send(wire.as_mut(), vnet, &frame).unwrap();
            }
        }
        let mut flows_of = |queue: &mut Box<dyn UplinkQueue>| {
            let mut out = Vec::new();
            queue.recv_batch(&pool, 256, &mut out).unwrap();
            let port = |rx: &RxFrame| [rx.frame.as_ref()[34], rx.frame.as_ref()[35]];
            let mut ports: Vec<_> = out.iter().map(port).collect();
            let frames = ports.len();
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(frames, 2 * ports.len(), "a flow is on both");
            ports.len()
        };
        let spread: Vec<_> = queues.iter_mut().map(&mut flows_of).collect();
        assert_eq!(spread.iter().sum::<usize>(), 64);
        assert!(spread.iter().all(|&flows| flows > 8), "{spread:?}");

        // All of them at the only one that is read, and spread again.
        queues[1].set_active(false).unwrap();
        for (vnet, frame) in flows(64).chain(flows(64)) {
            send(wire.as_mut(), vnet, &frame).unwrap();
        }
        let spread: Vec<_> = queues.iter_mut().map(&mut flows_of).collect();
        assert_eq!(spread, [64, 0]);
        let (vnet, frame) = plain(100);
        send(queues[1].as_mut(), vnet, &frame).unwrap();
        queues[1].set_active(true).unwrap();
        for (vnet, frame) in flows(64).chain(flows(64)) {
            send(wire.as_mut(), vnet, &frame).unwrap();
        }
        let spread: Vec<_> = queues.iter_mut().map(&mut flows_of).collect();
        assert_eq!(spread.iter().sum::<usize>(), 64);
        assert!(spread.iter().all(|&flows| flows > 8), "{spread:?}");
    });
}

#[test]
fn f40_several_queues_come_back_together() {
    in_namespace("f40_several_queues_come_back_together", || {
        add_pair(1500);
        let mut queues = attach("uplink", 3, config(256));
        queues[2].set_active(false).unwrap();
        ip("link delete dev uplink");
        add_pair(1500);
        for queue in queues.iter_mut().rev() {
            follow(queue.as_mut(), true);
        }
        let mut wire = attach("wire", 1, config(SMALL)).remove(0);
        for (vnet, frame) in flows(64) {
            send(wire.as_mut(), vnet, &frame).unwrap();
        }
        let pool = FramePool::new(128);
        let mut count = |queue: &mut Box<dyn UplinkQueue>| {
            let mut out = Vec::new();
            queue.recv_batch(&pool, 128, &mut out).unwrap();
            out.len()
        };
        let spread: Vec<_> = queues.iter_mut().map(&mut count).collect();
        assert_eq!(spread.iter().sum::<usize>(), 64);
        assert!(
            spread[0] > 8 && spread[1] > 8 && spread[2] == 0,
            "{spread:?}"
        );
    });
}

#[test]
fn what_cannot_be_attached_to_is_named() {
    in_namespace("what_cannot_be_attached_to_is_named", || {
        let error = |name| AfPacket::open(name, 1, config(SMALL)).err();
        assert!(matches!(
            error("missing"),
            Some(AfPacketError::NoInterface { .. })
        ));
        assert!(matches!(
            error("lo"),
            Some(AfPacketError::NotEthernet { .. })
        ));
        assert!(matches!(error("a/b"), Some(AfPacketError::Name { .. })));
    });
}

#[test]
fn a_burst_of_merged_frames_out_of_the_guest_is_cut_for_a_wire_that_wants_frames() {
    let test = "a_burst_of_merged_frames_out_of_the_guest_is_cut_for_a_wire_that_wants_frames";
    in_namespace(test, || {
        let mut cable = Cable::new(1500, config(64));
        let (vnet, frame) = gso(LARGEST);
        send(cable.queue.as_mut(), vnet, &frame).unwrap();
        let mut out = Vec::new();
        cable.wire.recv_batch(&cable.pool, 8, &mut out).unwrap();
        assert!(out[0].frame.as_ref() == frame, "the frame differs");
        assert_eq!(out[0].meta.vnet.gso_type, GSO_TCPV4);
        assert_eq!(out[0].meta.vnet.gso_size, MSS);
    });
}
