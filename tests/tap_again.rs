//! A tap that is deleted while it is open, and made again. Needs root.
#![cfg(feature = "daemon")]

#[path = "support/host_frames.rs"]
#[allow(dead_code, reason = "shared with the tests of frames")]
mod host_frames;
#[path = "support/netns.rs"]
mod netns;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::sys::ifreq;
use vhost_user_gro::uplink::tap::{Persistence, Tap};
use vhost_user_gro::uplink::{FramePool, RecvEnd, RecvError, SendError, Uplink, UplinkQueue};

use self::host_frames::{plain, readiness, send};
use self::netns::{in_namespace, ip};

fn queues(pairs: usize) -> Vec<Box<dyn UplinkQueue>> {
    let mut tap = Tap::open("tap", pairs, Persistence::Unchanged).expect("root may open taps");
    tap.take_queues()
}

/// Deletes the tap and lets the queues find out, by the way in which a waiter would.
fn delete(queues: &mut [Box<dyn UplinkQueue>]) {
    ip("link delete dev tap");
    for queue in queues {
        let woken = readiness(queue.as_ref(), PollFlags::empty(), 1000);
        assert!(woken.contains(PollFlags::ERR), "{woken:?}");
        let generation = queue.fd_generation();
        queue.look_after(true).expect("it goes on");
        assert_ne!(queue.fd_generation(), generation);
        assert_eq!(queue.carrier(), Some(false));
    }
}

fn has_news(queue: &dyn UplinkQueue) -> bool {
    let events = queue.events().expect("a tap by name is watched");
    let mut fds = [PollFd::new(&events, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll takes one descriptor") == 1
}

#[test]
fn f40_a_queue_goes_on_with_the_next_tap_of_its_name() {
    in_namespace("f40_a_queue_goes_on_with_the_next_tap_of_its_name", || {
        let mut queues = queues(1);
        let (vnet, frame) = plain(100);
        for _ in 0..3 {
            ip("link set dev tap up");
            send(queues[0].as_mut(), vnet, &frame).unwrap();
            delete(&mut queues);
            let queue = queues[0].as_mut();
            // Nothing to wake for, in either direction.
            let wanted = PollFlags::IN | PollFlags::OUT;
            assert_eq!(readiness(queue, wanted, 0), PollFlags::empty());
            let sent = send(queue, vnet, &frame);
            assert!(matches!(sent, Err(SendError::Down)), "{sent:?}");
            let mut out = Vec::new();
            let end = queue.recv_batch(&FramePool::new(1), 1, &mut out);
            assert!(matches!(end, Err(RecvError::Down)), "{end:?}");
            queue.follow_device();
            assert!(!has_news(queue), "nobody made a tap");

            ip("tuntap add dev tap mode tap vnet_hdr");
            ip("link set dev tap up");
            while queue.carrier() == Some(false) {
                assert!(has_news(queue), "the kernel says nothing");
                queue.follow_device();
            }
            assert_eq!(ifreq::tun_vnet_hdr_len(queue.fd()).unwrap(), 12);
            let end = queue.recv_batch(&FramePool::new(1), 1, &mut out);
            assert!(matches!(end, Ok(RecvEnd::Empty)), "{end:?}");
        }
    });
}

#[test]
fn f40_every_queue_goes_on_as_it_was() {
    in_namespace("f40_every_queue_goes_on_as_it_was", || {
        let mut queues = queues(2);
        queues[1].set_active(false).unwrap();
        delete(&mut queues);
        ip("tuntap add dev tap mode tap vnet_hdr multi_queue");
        let is_detached = |queue: &dyn UplinkQueue| {
            ifreq::tun_get_iff(queue.fd()).unwrap().flags & ifreq::IFF_DETACH_QUEUE != 0
        };
        for queue in &mut queues {
            queue.follow_device();
            assert_eq!(queue.carrier(), Some(true));
        }
        assert!(!is_detached(queues[0].as_ref()));
        assert!(is_detached(queues[1].as_ref()));
        queues[1].set_active(true).unwrap();
        assert!(!is_detached(queues[1].as_ref()));
    });
}

#[test]
fn f40_another_interface_of_its_name_is_not_taken() {
    in_namespace("f40_another_interface_of_its_name_is_not_taken", || {
        let mut queues = queues(1);
        delete(&mut queues);
        ip("link add tap type bridge");
        queues[0].follow_device();
        assert_eq!(queues[0].carrier(), Some(false));
    });
}

#[test]
fn f40_a_tap_that_was_renamed_is_still_the_same() {
    in_namespace("f40_a_tap_that_was_renamed_is_still_the_same", || {
        let mut queues = queues(1);
        ip("link set dev tap name other");
        queues[0].follow_device();
        assert_eq!(
            (queues[0].carrier(), queues[0].fd_generation()),
            (Some(true), 0)
        );
    });
}
