//! What has to be let go of before the next interface can be attached to.

use std::process::{Command, id};

use rustix::event::PollFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, gettid, set_capabilities};
use vhost_user_gro::sys::{EpollSet, Interest, WatchedFd};
use vhost_user_gro::uplink::FramePool;
use vhost_user_gro::uplink::af_packet::{AfPacket, AfPacketConfig};
use vhost_user_gro::uplink::af_xdp::Mode;
use vhost_user_gro::uplink::{Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

use crate::host_frames::{readiness, send};
use crate::netns::{in_namespace, ip};
use crate::rig::{
    Cable, SMALL, add_pair, attach_wire, config, eventually, follow, has_news, in_each_mode,
    number, numbered,
};

/// Memory of one queue with a small ring, in bytes.
const MEMORY: u64 = SMALL as u64 * 3 / 2 * 2048;

#[test]
fn f40_locked_memory_for_one_socket_suffices_to_attach_again() {
    let test = "f40_locked_memory_for_one_socket_suffices_to_attach_again";
    in_namespace(test, || {
        // Only a thread without the capability is held to it, so no other test is.
        let current = Some(MEMORY * 3 / 2);
        let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();

        let mut cable = Cable::new(1500, config(Mode::Native));
        // The owner has a duplicate of the socket until it waits again.
        let set = EpollSet::new().unwrap();
        let mut watched = WatchedFd::default();
        let mut watch = |queue: &dyn UplinkQueue| {
            let fd = (queue.fd(), queue.fd_generation());
            watched.watch(&set, 0, fd, Interest::Read).unwrap();
        };
        for round in 0..5 {
            watch(cable.queue.as_ref());
            ip("link delete dev uplink");
            add_pair(1500);
            cable.queue.follow_device();
            assert_eq!(cable.queue.carrier(), Some(false));
            while cable.queue.carrier() == Some(false) {
                watch(cable.queue.as_ref());
                assert!(has_news(cable.queue.as_ref()), "it is not tried again");
                cable.queue.follow_device();
            }
            cable.wire = attach_wire();
            cable.put(&numbered(round));
            assert_eq!(number(cable.receive(1)[0].frame.as_ref()), round);
        }
    });
}

#[test]
fn f40_an_interface_in_another_namespace_has_its_frames_at_once() {
    let test = "f40_an_interface_in_another_namespace_has_its_frames_at_once";
    in_each_mode(test, move |mode| {
        let mut cable = Cable::new(1500, config(mode));
        cable.put(&numbered(1));
        cable.receive(1);
        let Cable {
            mut queue,
            mut wire,
            ..
        } = cable;
        let home = format!("--net=/proc/{}/task/{}/ns/net", id(), gettid());
        in_namespace(test, move || {
            let there = gettid().to_string();
            let moved = Command::new("nsenter")
                .args([&home, "ip", "link", "set", "dev", "uplink", "netns", &there])
                .status();
            assert!(moved.expect("nsenter(1) is installed").success());
            follow(queue.as_mut(), false);
            let idle = readiness(queue.as_ref(), PollFlags::all(), 0);
            assert_eq!(idle, PollFlags::empty());
            ip("link set dev uplink up");
            let plain = AfPacketConfig {
                macs: Vec::new(),
                slots: 64,
                shows_link: true,
                qdisc_bypass: false,
            };
            let mut plain = AfPacket::open("uplink", 1, plain).unwrap().take_queues();
            let pool = FramePool::new(64);
            // The cable takes a moment to have both ends.
            eventually(|| {
                send(wire.as_mut(), VnetHdr::default(), &numbered(2)).unwrap();
                let mut out = Vec::new();
                plain[0].recv_batch(&pool, 64, &mut out).unwrap();
                out.iter().any(|rx| rx.frame.as_ref() == numbered(2))
            });
        });
    });
}
