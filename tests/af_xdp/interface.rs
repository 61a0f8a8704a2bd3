//! An interface that goes down, away and comes back, and one with several queues.

use rustix::event::PollFlags;
use vhost_user_gro::uplink::af_xdp::{AfXdp, AfXdpConfig, Mode};
use vhost_user_gro::uplink::{FramePool, SendError, TxFrame, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

use crate::host_frames::{flows, is_readable, plain, readiness, send};
use crate::netns::{in_namespace, ip};
use crate::rig::{
    Cable, PATIENCE_MS, add_pair, add_pair_of_queues, attach, attach_wire, config, eventually,
    follow, in_each_mode, number, numbered,
};

#[test]
fn f40_an_interface_that_is_down_says_so_and_comes_back() {
    in_each_mode(
        "f40_an_interface_that_is_down_says_so_and_comes_back",
        |mode| {
            let mut cable = Cable::new(1500, config(mode));
            follow(cable.queue.as_mut(), true);
            let (vnet, frame) = plain(100);
            for end in ["uplink", "wire"] {
                ip(&format!("link set dev {end} down"));
                follow(cable.queue.as_mut(), false);
                let idle = readiness(cable.queue.as_ref(), PollFlags::IN, 0);
                assert_eq!(idle, PollFlags::empty());
                let down = send(cable.queue.as_mut(), vnet, &frame);
                assert!(matches!(down, Err(SendError::Down)), "{down:?}");
                ip(&format!("link set dev {end} up"));
                follow(cable.queue.as_mut(), true);
                cable.wire = attach_wire();
                cable.put(&frame);
                cable.receive(1);
                send(cable.queue.as_mut(), vnet, &frame).unwrap();
                cable.arrived(1);
            }
        },
    );
}

#[test]
fn f40_frames_that_were_taken_when_it_goes_down_are_not_lost() {
    in_each_mode(
        "f40_frames_that_were_taken_when_it_goes_down_are_not_lost",
        |mode| {
            let mut cable = Cable::new(1500, config(mode));
            let frame = numbered(5);
            let frame = TxFrame {
                vnet: VnetHdr::default(),
                head: &frame,
                rest: &[],
            };
            cable.queue.send(&frame).unwrap();
            ip("link set dev uplink down");
            let down = cable.queue.flush();
            assert!(matches!(down, Err(SendError::Down)), "{down:?}");
            ip("link set dev uplink up");
            cable.wire = attach_wire();
            // It leaves without another one behind it.
            follow(cable.queue.as_mut(), true);
            assert_eq!(number(&cable.arrived(1)[0]), 5);
            // Once it is gone they are, and counted.
            ip("link set dev uplink down");
            cable.queue.send(&frame).unwrap();
            cable.queue.flush().unwrap_err();
            ip("link delete dev uplink");
            add_pair(1500);
            follow(cable.queue.as_mut(), true);
            assert_eq!(cable.queue.stats().tx_lost, 1);
        },
    );
}

#[test]
fn f40_an_interface_that_was_deleted_is_attached_to_again_when_it_is_back() {
    let test = "f40_an_interface_that_was_deleted_is_attached_to_again_when_it_is_back";
    in_each_mode(test, |mode| {
        let mut cable = Cable::new(1500, config(mode));
        for round in 0..5 {
            let frame = numbered(round);
            let vnet = VnetHdr::default();
            (0..3).for_each(|_| cable.put(&frame));
            // Two of them are still held when their memory goes, one is not read.
            assert!(is_readable(cable.queue.as_ref(), PATIENCE_MS));
            let held = cable.batch(2).1;
            ip("link delete dev uplink");
            follow(cable.queue.as_mut(), false);
            // Nothing that would wake its owner for ever.
            let idle = readiness(cable.queue.as_ref(), PollFlags::IN, 0);
            assert_eq!(idle, PollFlags::empty());
            let down = send(cable.queue.as_mut(), vnet, &frame);
            assert!(matches!(down, Err(SendError::Down)), "{down:?}");
            let generation = cable.queue.fd_generation();
            add_pair(1500);
            follow(cable.queue.as_mut(), true);
            assert_eq!(cable.queue.fd_generation(), generation + 1);
            let numbers: Vec<_> = held.iter().map(|rx| number(rx.frame.as_ref())).collect();
            assert_eq!(numbers, [round; 2]);
            cable.wire = attach_wire();
            drop(held);
            cable.put(&frame);
            cable.receive(1);
            send(cable.queue.as_mut(), vnet, &frame).unwrap();
            cable.arrived(1);
        }
        assert_eq!(cable.queue.stats().rx_discarded, 5);
    });
}

#[test]
fn f40_memory_of_interfaces_that_went_is_given_back() {
    in_namespace("f40_memory_of_interfaces_that_went_is_given_back", || {
        let big = AfXdpConfig {
            ring: 32768,
            ..config(Mode::Native)
        };
        let mut cable = Cable::new(1500, big);
        let mut present = Vec::new();
        for _ in 0..4 {
            cable.put(&numbered(1));
            let held = cable.receive(1);
            ip("link delete dev uplink");
            follow(cable.queue.as_mut(), false);
            add_pair(1500);
            follow(cable.queue.as_mut(), true);
            cable.wire = attach_wire();
            drop(held);
            cable.queue.follow_device();
            present.push(present_mib());
        }
        // Other tests have memory, too; each of these is 96 MiB, which the kernel has touched.
        assert!(present[3] < present[0] + 200, "{present:?}");
    });
}

/// Memory of this process that is there and not only mapped.
fn present_mib() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("proc is there");
    let present = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    present.map_or(0, |pages: usize| pages / 256)
}

#[test]
fn f40_what_the_interface_drops_is_counted_as_lost() {
    in_namespace("f40_what_the_interface_drops_is_counted_as_lost", || {
        // Nobody has the other side of this tap.
        ip("tuntap add dev uplink mode tap");
        ip("link set dev uplink up");
        let mut queue = attach(config(Mode::Native));
        for number in 0..100 {
            send(queue.as_mut(), VnetHdr::default(), &numbered(number)).unwrap();
        }
        assert_eq!(queue.stats().tx_lost, 100);
    });
}

#[test]
fn each_flow_stays_on_one_of_several_queues() {
    in_each_mode("each_flow_stays_on_one_of_several_queues", |mode| {
        add_pair_of_queues(2);
        let mut uplink = AfXdp::open("uplink", 2, config(mode)).unwrap();
        let mut queues = uplink.take_queues();
        let [first, second] = spread(&mut queues);
        assert_eq!(first.len() + second.len(), 32);
        assert!(
            first.iter().all(|port| !second.contains(port)),
            "a flow is on both"
        );
        // In the stack, a veth does not say by which queue a frame came.
        let is_spread = !first.is_empty() && !second.is_empty();
        assert_eq!(is_spread, mode == Mode::Native);

        // What comes in on a queue that nobody reads is thrown away and counted.
        queues[1].set_active(false).unwrap();
        let unread = second.len();
        assert_eq!(
            spread_over(&mut queues[..1], 32 - unread)[0].len(),
            32 - unread
        );
        queues[1].set_active(true).unwrap();
        assert_eq!(queues[1].stats().rx_discarded, unread as u64);

        // Attached to again, each at its own.
        ip("link delete dev uplink");
        add_pair_of_queues(2);
        for queue in queues.iter_mut().rev() {
            follow(queue.as_mut(), true);
        }
        assert_eq!(spread(&mut queues), [first, second]);
    });
}

/// Sends two frames of each of 16 flows; source ports of what each queue gets of them.
fn spread(queues: &mut [Box<dyn UplinkQueue>]) -> [Vec<Vec<u8>>; 2] {
    let ports = spread_over(queues, 32);
    ports.try_into().expect("there are two queues")
}

fn spread_over(queues: &mut [Box<dyn UplinkQueue>], count: usize) -> Vec<Vec<Vec<u8>>> {
    let mut wire = attach_wire();
    for (vnet, frame) in flows(16).chain(flows(16)) {
        send(wire.as_mut(), vnet, &frame).unwrap();
    }
    let pool = FramePool::new(4);
    let mut ports = vec![Vec::new(); queues.len()];
    eventually(|| {
        for (queue, ports) in queues.iter_mut().zip(&mut ports) {
            let mut out = Vec::new();
            queue.recv_batch(&pool, 64, &mut out).unwrap();
            ports.extend(out.iter().map(|rx| rx.frame.as_ref()[34..36].to_vec()));
        }
        ports.iter().map(Vec::len).sum::<usize>() == count
    });
    ports
}
