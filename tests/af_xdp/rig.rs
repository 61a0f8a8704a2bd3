//! An interface with the uplink under test on it, and the other end of its cable.
//!
//! The interface is one end of a veth pair, `uplink`; the tests hold the other one, `wire`, by a
//! packet socket.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::sys::{XdpShape, XdpSocket, clock, xdp_socket};
use vhost_user_gro::uplink::af_packet::{AfPacket, AfPacketConfig};
use vhost_user_gro::uplink::af_xdp::{AfXdp, AfXdpConfig, AfXdpError, Mode};
use vhost_user_gro::uplink::{FramePool, RecvEnd, RxFrame, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

use crate::host_frames::{is_readable, plain, send};
use crate::netns::{in_namespace, ip};

/// A ring that is soon full.
pub(crate) const SMALL: u32 = 64;

/// How long something may take that happens in the kernel by itself.
pub(crate) const PATIENCE_MS: u64 = 5000;

pub(crate) fn config(mode: Mode) -> AfXdpConfig {
    AfXdpConfig {
        macs: Vec::new(),
        ring: SMALL,
        mode,
        unfinished: None,
        shows_link: true,
    }
}

/// A program that is to have gone may be there for a moment: a process that another test starts has
/// all descriptors until it runs its own program.
pub(crate) fn attach(config: AfXdpConfig) -> Box<dyn UplinkQueue> {
    let start = clock::now();
    loop {
        match AfXdp::open("uplink", 1, config.clone()) {
            Ok(mut uplink) => return uplink.take_queues().remove(0),
            Err(AfXdpError::OtherProgram { .. })
                if clock::now() - start < Duration::from_millis(PATIENCE_MS) =>
            {
                std::thread::yield_now();
            }
            Err(error) => panic!("root may attach to interfaces: {error}"),
        }
    }
}

pub(crate) fn attach_wire() -> Box<dyn UplinkQueue> {
    let config = AfPacketConfig {
        macs: Vec::new(),
        slots: 4096,
        shows_link: true,
        qdisc_bypass: false,
    };
    let mut wire = AfPacket::open("wire", 1, config).expect("root may attach to interfaces");
    wire.take_queues().remove(0)
}

pub(crate) fn add_pair(mtu: usize) {
    ip(&format!(
        "link add uplink mtu {mtu} type veth peer name wire mtu {mtu}"
    ));
    for end in ["uplink", "wire"] {
        ip(&format!("link set dev {end} up"));
    }
}

pub(crate) fn add_pair_of_queues(queues: usize) {
    ip(&format!(
        "link add uplink numrxqueues {queues} numtxqueues {queues} type veth \
         peer name wire numrxqueues {queues} numtxqueues {queues}"
    ));
    for end in ["uplink", "wire"] {
        ip(&format!("link set dev {end} up"));
    }
}

/// Both ends of a veth pair.
pub(crate) struct Cable {
    pub(crate) queue: Box<dyn UplinkQueue>,
    pub(crate) wire: Box<dyn UplinkQueue>,
    pub(crate) pool: FramePool,
}

impl Cable {
    pub(crate) fn new(mtu: usize, config: AfXdpConfig) -> Self {
        add_pair(mtu);
        Self {
            queue: attach(config),
            wire: attach_wire(),
            pool: FramePool::new(4096),
        }
    }

    pub(crate) fn put(&mut self, frame: &[u8]) {
        send(self.wire.as_mut(), VnetHdr::default(), frame).expect("the wire is up");
    }

    /// One batch of at most `budget` frames.
    pub(crate) fn batch(&mut self, budget: usize) -> (RecvEnd, Vec<RxFrame>) {
        let mut out = Vec::new();
        let end = self.queue.recv_batch(&self.pool, budget, &mut out);
        (end.expect("the interface is there"), out)
    }

    /// The next `count` frames, and no more.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<RxFrame> {
        let mut frames = Vec::new();
        while frames.len() < count {
            assert!(
                is_readable(self.queue.as_ref(), PATIENCE_MS),
                "{} came",
                frames.len()
            );
            frames.extend(self.batch(64).1);
        }
        assert_eq!(frames.len(), count);
        frames
    }

    /// The next `count` frames that arrive at the other end.
    pub(crate) fn arrived(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            assert!(
                is_readable(self.wire.as_ref(), PATIENCE_MS),
                "{} came",
                frames.len()
            );
            let mut out = Vec::new();
            let end = self.wire.recv_batch(&self.pool, 64, &mut out);
            end.expect("the wire is there");
            frames.extend(out.iter().map(|rx| rx.frame.as_ref().to_vec()));
        }
        frames
    }
}

/// A frame with a number in it.
pub(crate) fn numbered(number: u16) -> Vec<u8> {
    let (_, mut frame) = plain(100);
    frame[98..].copy_from_slice(&number.to_be_bytes());
    frame
}

pub(crate) fn number(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[98], frame[99]])
}

/// Runs a test in each mode, in a namespace of its own.
pub(crate) fn in_each_mode(test: &str, body: impl Fn(Mode) + Copy + Send + 'static) {
    for mode in [Mode::Native, Mode::Generic] {
        in_namespace(test, move || body(mode));
    }
}

/// Whether the queue has news of its device.
pub(crate) fn has_news(queue: &dyn UplinkQueue) -> bool {
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
pub(crate) fn follow(queue: &mut dyn UplinkQueue, is_up: bool) {
    for _ in 0..100 {
        queue.follow_device();
        if queue.carrier() == Some(is_up) {
            return;
        }
        assert!(has_news(queue), "no change to {is_up}");
    }
    panic!("never {is_up}");
}

/// Waits until the interface has a program or none, which the kernel may take a moment for.
#[track_caller]
pub(crate) fn wait_for_program(is_there: bool) {
    eventually(|| has_program() == is_there);
}

pub(crate) fn has_program() -> bool {
    let shown = Command::new("ip")
        .args(["link", "show", "dev", "uplink"])
        .output();
    let shown = shown.expect("ip(8) is installed").stdout;
    String::from_utf8_lossy(&shown).contains("prog/xdp")
}

pub(crate) fn unbound() -> XdpSocket {
    let shape = XdpShape {
        receiving: 64,
        sending: 64,
        chunk_len: 2048,
    };
    XdpSocket::new(xdp_socket().unwrap(), shape).unwrap()
}

/// Waits for something that happens in the kernel by itself.
#[track_caller]
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE_MS {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(1));
    }
    panic!("it never was so");
}
