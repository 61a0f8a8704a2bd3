//! Who has a frame: rings that go round, frames that are held, and what does not fit.

use rustix::event::PollFlags;
use vhost_user_gro::sys::{Census, GuestSlice};
use vhost_user_gro::uplink::af_xdp::{AfXdp, AfXdpConfig};
use vhost_user_gro::uplink::{Flushed, FramePool, RecvEnd, TxFrame, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

use crate::host_frames::{is_readable, readiness, send};
use crate::netns::{in_namespace, ip};
use crate::rig::{
    Cable, PATIENCE_MS, SMALL, add_pair, attach_wire, config, eventually, follow, in_each_mode,
    number, numbered, unbound,
};

#[test]
fn f61_frames_arrive_in_order_round_and_round_the_rings() {
    in_each_mode(
        "f61_frames_arrive_in_order_round_and_round_the_rings",
        |mode| {
            let mut cable = Cable::new(1500, config(mode));
            let mut sent = 0..;
            for burst in [1, 3, 16, 7, 64, 31, 64, 2, 11, 64, 5] {
                let numbers: Vec<u16> = sent.by_ref().take(burst).collect();
                for &number in &numbers {
                    cable.put(&numbered(number));
                }
                let mut got = Vec::new();
                while got.len() < burst {
                    assert!(is_readable(cable.queue.as_ref(), PATIENCE_MS));
                    let (_, frames) = cable.batch(16);
                    got.extend(frames.iter().map(|rx| number(rx.frame.as_ref())));
                    assert!(frames.iter().all(|rx| rx.frame.is_in_ring()), "copied");
                }
                assert_eq!(got, numbers);
                assert_eq!(cable.batch(16).0, RecvEnd::Empty);
            }
            assert_eq!(cable.queue.stats().rx_ring_full, 0);
        },
    );
}

#[test]
fn f61_frames_from_before_the_first_wake_up_are_read() {
    in_each_mode(
        "f61_frames_from_before_the_first_wake_up_are_read",
        |mode| {
            let mut cable = Cable::new(1500, config(mode));
            (0..10).for_each(|number| cable.put(&numbered(number)));
            assert!(is_readable(cable.queue.as_ref(), PATIENCE_MS));
            let first = cable.batch(4).1;
            assert_eq!(first.len(), 4);
            // With those still held, and what is left of them.
            let rest = cable.receive(6);
            let all = first.iter().chain(&rest);
            let numbers: Vec<_> = all.map(|rx| number(rx.frame.as_ref())).collect();
            assert_eq!(numbers, (0..10).collect::<Vec<_>>());
            let idle = readiness(cable.queue.as_ref(), PollFlags::IN, 0);
            assert_eq!(idle, PollFlags::empty());
        },
    );
}

#[test]
fn f64_a_burst_and_then_silence_arrives_whole() {
    in_each_mode("f64_a_burst_and_then_silence_arrives_whole", |mode| {
        let big = AfXdpConfig {
            ring: 512,
            ..config(mode)
        };
        let mut cable = Cable::new(1500, big);
        for _ in 0..20 {
            let sent: Vec<_> = (0..64).map(numbered).collect();
            for frame in &sent {
                let mut guest = frame[54..].to_vec();
                let frame = TxFrame {
                    vnet: VnetHdr::default(),
                    head: &frame[..54],
                    rest: &[GuestSlice::from(&mut guest[..])],
                };
                cable.queue.send(&frame).expect("there is room");
            }
            assert_eq!(cable.queue.flush().unwrap(), Flushed::All);
            assert!(cable.arrived(64) == sent, "frames differ");
        }
        assert_eq!(cable.queue.stats().tx_lost, 0);
    });
}

#[test]
fn f64_held_frames_stay_as_they_are_and_do_not_keep_the_rings_from_moving() {
    let test = "f64_held_frames_stay_as_they_are_and_do_not_keep_the_rings_from_moving";
    in_each_mode(test, |mode| {
        let mut cable = Cable::new(1500, config(mode));
        let held_max = SMALL / 2 - 1;
        let mut held = Vec::new();
        for number in 0..1000 {
            cable.put(&numbered(number));
            let mut got = cable.receive(1);
            assert_eq!(self::number(got[0].frame.as_ref()), number);
            if number % 7 == 0 && held.len() < held_max as usize {
                held.append(&mut got);
            }
        }
        assert_eq!(cable.queue.stats().rx_ring_full, 0);
        // With half of them lent, the reader stops and the kernel goes on.
        (1000..1004).for_each(|number| cable.put(&numbered(number)));
        assert!(is_readable(cable.queue.as_ref(), PATIENCE_MS));
        let mut last = Vec::new();
        while last.is_empty() {
            last.extend(cable.batch(64).1);
        }
        let (end, more) = cable.batch(64);
        assert_eq!((end, last.len(), more.len()), (RecvEnd::RingLent, 1, 0));
        for (nth, rx) in (0..).zip(&held) {
            assert_eq!(number(rx.frame.as_ref()), nth * 7);
        }
        drop(held);
        let rest = cable.receive(3);
        assert_eq!(number(rest[2].frame.as_ref()), 1003);
        assert_eq!(cable.queue.stats().rx_ring_full, 0);
    });
}

#[test]
fn f64_every_chunk_is_in_one_place_after_a_million_frames() {
    in_each_mode(
        "f64_every_chunk_is_in_one_place_after_a_million_frames",
        |mode| {
            add_pair(1500);
            let mut uplink = AfXdp::open("uplink", 1, config(mode)).unwrap();
            let queue = &mut uplink.queues_mut()[0];
            let mut wire = attach_wire();
            let pool = FramePool::new(4096);
            let all = queue.census();
            assert_eq!(all.kernel, SMALL as usize);
            let mut random = 1u32;
            let mut next = move |below: u32| {
                // Xorshift.
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                random % below
            };
            let frame = numbered(7);
            let out = TxFrame {
                vnet: VnetHdr::default(),
                head: &frame,
                rest: &[],
            };
            let (mut held, mut received, mut sent) = (Vec::new(), 0u64, 0u64);
            // As many in the other mode.
            while received + sent < 500_000 {
                for _ in 0..next(40) {
                    wire.send(&out).expect("the wire is up");
                }
                wire.flush().expect("the wire is up");
                let before = held.len();
                let budget = next(64) as usize;
                queue
                    .recv_batch(&pool, budget, &mut held)
                    .expect("it is there");
                received += (held.len() - before) as u64;
                // Any of them, in any order, and the odd one for long.
                while held.len() > next(40) as usize {
                    let at = next(u32::try_from(held.len()).unwrap()) as usize;
                    held.swap_remove(at);
                }
                for _ in 0..next(40) {
                    sent += u64::from(queue.send(&out).is_ok());
                }
                let _ = queue.flush();
                wire.recv_batch(&pool, 4096, &mut Vec::new())
                    .expect("it is there");
                let Census {
                    kernel,
                    lent,
                    spare,
                    sending,
                } = queue.census();
                assert_eq!(kernel + lent, all.kernel);
                assert_eq!(spare + sending, all.spare);
            }
            held.clear();
            eventually(|| {
                let read = queue.recv_batch(&pool, 64, &mut Vec::new());
                read.expect("it is there");
                queue.flush().expect("it is up");
                queue.census() == all
            });
            let stats = queue.stats();
            assert_eq!((stats.rx_errors, stats.tx_lost), (0, 0));
        },
    );
}

#[test]
fn f39_a_socket_takes_no_more_frames_than_it_has_chunks() {
    in_namespace(
        "f39_a_socket_takes_no_more_frames_than_it_has_chunks",
        || {
            let mut socket = unbound();
            assert!((0..64).all(|_| socket.send(60, |chunk| chunk.fill(1))));
            assert!(!socket.has_room() && !socket.send(60, |_| ()));
            socket.publish();
            assert_eq!(socket.waiting(), 64);
            assert_eq!(socket.census().sending, 64);
        },
    );
}

#[test]
fn f68_what_a_full_ring_drops_is_counted_once() {
    in_each_mode("f68_what_a_full_ring_drops_is_counted_once", |mode| {
        let mut cable = Cable::new(1500, config(mode));
        (0..200).for_each(|number| cable.put(&numbered(number)));
        eventually(|| cable.queue.stats().rx_ring_full >= 136);
        assert_eq!(cable.queue.stats().rx_ring_full, 136);
        let mut read = 0;
        while is_readable(cable.queue.as_ref(), 0) {
            read += cable.batch(16).1.len();
        }
        let stats = cable.queue.stats();
        assert_eq!((read, stats.rx_ring_full, stats.rx_too_long), (64, 136, 0));
    });
}

#[test]
fn dql_3_each_byte_that_was_sent_is_told_once() {
    in_each_mode("dql_3_each_byte_that_was_sent_is_told_once", |mode| {
        let mut cable = Cable::new(1500, config(mode));
        assert_eq!(cable.queue.take_completed(), Some(0));
        for count in [1, 2, 30] {
            for number in 0..count {
                let frame = numbered(number);
                send(cable.queue.as_mut(), VnetHdr::default(), &frame).unwrap();
            }
            cable.arrived(count.into());
            let mut told = 0;
            eventually(|| {
                told += cable.queue.take_completed().expect("it tells later");
                told >= 100 * u32::from(count)
            });
            assert_eq!(told, 100 * u32::from(count));
            assert_eq!(cable.queue.take_completed(), Some(0));
        }
        // Nothing is told while it refuses frames.
        ip("link set dev uplink down");
        follow(cable.queue.as_mut(), false);
        assert_eq!(cable.queue.take_completed(), None);
    });
}
