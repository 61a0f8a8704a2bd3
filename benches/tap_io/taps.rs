//! Taps in the namespace of this thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{CpuSet, sched_setaffinity};
use vhost_user_gro::sys::ifreq::{IFF_NO_PI, IFF_TAP, IFF_VNET_HDR, tun_set_iff};
use vhost_user_gro::uplink::tap::{Persistence, Tap};
use vhost_user_gro::uplink::{FramePool, Offloads, RecvEnd, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

use crate::host_frames::{self, gso, plain};
use crate::netns::ip;

pub(crate) const DATA_CPU: usize = 0;
pub(crate) const OTHER_CPU: usize = 1;
/// The longest frame of an MTU of 1500.
const FRAME_MAX: usize = 1514;
/// Source: `linux/if_tun.h`.
const IFF_NAPI: u16 = 0x0010;

/// A tap with another one as the sender to it, on a bridge.
pub(crate) struct Lan {
    /// The descriptor that becomes readable.
    pub(crate) tap: OwnedFd,
    ask: Sender<(usize, usize)>,
    done: Receiver<()>,
}

pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("there are two CPUs");
}

/// A frame of this length, with segmentation left to the host if it is long.
pub(crate) fn frame_of(len: usize) -> (VnetHdr, Vec<u8>) {
    if len > FRAME_MAX {
        gso(len)
    } else {
        plain(len)
    }
}

/// A tap whose frames the host throws away, as they are for nobody.
pub(crate) fn alone(name: &str) -> Box<dyn UplinkQueue> {
    let queue = open(name);
    ip(&format!("link set dev {name} up"));
    queue
}

/// The same, but the host passes what is written through its own GRO.
pub(crate) fn alone_with_napi(name: &str) -> Box<dyn UplinkQueue> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).expect("root may open taps");
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_NAPI;
    tun_set_iff(fd.as_fd(), name, flags).expect("the kernel knows IFF_NAPI");
    let mut tap = Tap::from_fds(vec![fd], 1).expect("it is a tap");
    ip(&format!("link set dev {name} up"));
    tap.take_queues().remove(0)
}

fn open(name: &str) -> Box<dyn UplinkQueue> {
    let mut tap = Tap::open(name, 1, Persistence::Unchanged).expect("root may open taps");
    tap.take_queues().remove(0)
}

impl Lan {
    /// Makes the LAN of this number and gives the queue that is to be read.
    pub(crate) fn new(number: usize, pool: &FramePool) -> (Box<dyn UplinkQueue>, Self) {
        let names = ["bridge", "rx", "wire"].map(|what| format!("{what}{number}"));
        let [bridge, tap, wire] = &names;
        let mut queue = open(tap);
        let everything = Offloads {
            csum: true,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        };
        queue.set_offloads(everything).expect("the tap is there");
        let sender = open(wire);
        ip(&format!(
            "link add name {bridge} type bridge mcast_snooping 0"
        ));
        ip(&format!("link set dev {bridge} up"));
        for port in [tap, wire] {
            ip(&format!("link set dev {port} master {bridge}"));
            ip(&format!("link set dev {port} up"));
        }
        let (ask, asked) = channel();
        let (tell, done) = channel();
        std::thread::spawn(move || serve(sender, &asked, &tell));
        let lan = Self {
            tap: queue.fd().try_clone_to_owned().expect("not many are open"),
            ask,
            done,
        };
        lan.wait_for_forwarding(queue.as_mut(), pool);
        (queue, lan)
    }

    /// Has `count` frames of `len` bytes sent; when this returns they wait in the tap.
    pub(crate) fn send(&self, len: usize, count: usize) {
        self.ask.send((len, count)).expect("the sender waits");
        self.done.recv().expect("the sender answers");
    }

    /// The bridge learns of a port's carrier in its own time.
    fn wait_for_forwarding(&self, queue: &mut dyn UplinkQueue, pool: &FramePool) {
        let mut out = Vec::new();
        for _ in 0..100_000 {
            self.send(60, 1);
            let end = queue.recv_batch(pool, 1, &mut out);
            if end.expect("the tap is there") == RecvEnd::Budget {
                return;
            }
        }
        panic!("the bridge forwards nothing");
    }
}

/// Sends what is asked for until nobody can ask any more.
fn serve(mut queue: Box<dyn UplinkQueue>, asked: &Receiver<(usize, usize)>, tell: &Sender<()>) {
    pin(OTHER_CPU);
    for (len, count) in asked {
        let (vnet, frame) = frame_of(len);
        for _ in 0..count {
            host_frames::send(queue.as_mut(), vnet, &frame).expect("the tap takes it");
        }
        if tell.send(()).is_err() {
            return;
        }
    }
}
