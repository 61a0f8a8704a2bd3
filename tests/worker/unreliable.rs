//! The order of every flow over an uplink that refuses at random, with a real data thread and
//! clock: each byte that arrives is the right one, none comes twice or too early.
//!
//! `make tx-soak SECONDS=600` runs it for longer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::device::Features;
use vhost_user_gro::sys::{Placement, clock};
use vhost_user_gro::uplink::fault::{FaultQueue, Pattern, SEND_FAULTS, Verdict};
use vhost_user_gro::uplink::pair::PairQueue;
use vhost_user_gro::uplink::stream::Stream;
use vhost_user_gro::uplink::{Offloads, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_NONE, VNET_HDR_LEN};
use vhost_user_gro::worker::{
    DataThread, PairConfig, PairSetup, Seat, ThreadConfig, TransmitStats,
};

use crate::conservation::Random;
use crate::cut::{Headers, cut, has_right_checksum};
use crate::packet::{A, ACK, B, Packet, tcp4, tcp6};
use crate::rig::{Rig, Ring, config, linux, signals};

/// Flows, of which every other one is IPv6.
const FLOWS: u16 = 8;
/// The port of frames that say that all is sent.
const END: u16 = 999;
/// Payload of a segment.
const MSS: usize = 1448;
/// Most frames and bytes that are given to the ring before it is awaited.
const ROUND_FRAMES: usize = 100;
const ROUND_BYTES: usize = 4 << 20;
/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Faults after which a frame is tried again.
const KEEPING: [Verdict; 2] = [Verdict::Full, Verdict::NoMemory];

fn flow(port: u16) -> Packet {
    if port.is_multiple_of(2) {
        tcp4(A.port(port), B)
    } else {
        tcp6(A.port(port), B)
    }
}

/// How it is done.
struct Trial {
    name: &'static str,
    uplink: fn() -> (Box<dyn UplinkQueue>, Source),
    host: Offloads,
    faults: &'static [Verdict],
    /// Mean distance between faults.
    one_in: u64,
    /// Packets of the guest, unless a time is set.
    packets: u64,
}

/// Where frames come out.
type Source = Box<dyn FnMut() -> Option<(VnetHdr, Vec<u8>)> + Send>;

/// Each frame with its header, as a tap has them.
fn socket_pair() -> (Box<dyn UplinkQueue>, Source) {
    let (queue, peer) = PairQueue::new().unwrap();
    let next = move || peer.next_sent(LIMIT).ok().flatten();
    (Box::new(queue), Box::new(next))
}

/// Frames behind their lengths; what has left is told later.
fn stream() -> (Box<dyn UplinkQueue>, Source) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let queue = Stream::given(ours.into()).unwrap().take_queues().pop();
    let next = move || {
        let mut len = [0; 4];
        theirs.read_exact(&mut len).ok()?;
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        theirs.read_exact(&mut frame).ok()?;
        Some((VnetHdr::default(), frame))
    };
    (queue.unwrap(), Box::new(next))
}

/// What has arrived.
#[derive(Default)]
struct Arrived {
    segments: u64,
    bytes: u64,
    /// Bytes of each flow that never came.
    lost: u64,
    /// The next byte of each flow.
    next: [u32; FLOWS as usize],
}

impl Arrived {
    /// Takes note of a frame; `false` if it is the last one.
    fn take(&mut self, vnet: &VnetHdr, frame: Vec<u8>) -> bool {
        let segments = if vnet.gso_type == GSO_NONE {
            let is_marked = vnet.flags & F_NEEDS_CSUM != 0;
            assert!(is_marked || has_right_checksum(&frame));
            vec![frame]
        } else {
            cut(vnet, &frame).expect("a packet that can be cut")
        };
        segments.iter().all(|segment| self.take_segment(segment))
    }

    fn take_segment(&mut self, frame: &[u8]) -> bool {
        let headers = Headers::of(frame).expect("a whole frame");
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let port = word(headers.l4);
        if port == END {
            return false;
        }
        let seq = u32::from(word(headers.l4 + 4)) << 16 | u32::from(word(headers.l4 + 6));
        let payload = &frame[headers.payload..];
        let next = &mut self.next[usize::from(port)];
        let ahead = seq.wrapping_sub(*next);
        assert!(ahead < 1 << 31, "flow {port}: {seq} after {next}");
        let right = flow(port).seq(seq).payload(payload.len()).build();
        assert!(payload == right.payload(), "flow {port}: damaged at {seq}");
        *next = seq.wrapping_add(u32::try_from(payload.len()).unwrap());
        self.lost += u64::from(ahead);
        self.bytes += payload.len() as u64;
        self.segments += 1;
        true
    }
}

/// Takes frames until the last one. The source stays open as long as somebody has it.
fn receive(mut source: Source) -> JoinHandle<(Arrived, Source)> {
    std::thread::spawn(move || {
        let mut arrived = Arrived::default();
        while let Some((vnet, frame)) = source() {
            if !arrived.take(&vnet, frame) {
                break;
            }
        }
        (arrived, source)
    })
}

/// A guest that sends.
struct Guest {
    ring: Ring,
    random: Random,
    next: [u32; FLOWS as usize],
    packets: u64,
    bytes: u64,
}

impl Guest {
    /// The next packet of some flow: short or long, its checksum left to others or not.
    fn packet(&mut self) -> Vec<u8> {
        let port = u16::try_from(self.random.below(FLOWS.into())).unwrap();
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(100),
            1 | 2 => 1 + self.random.below(MSS),
            _ => 1 + self.random.below(20_000),
        };
        let next = &mut self.next[usize::from(port)];
        let packet = flow(port).seq(*next).flags(ACK).payload(len);
        *next = next.wrapping_add(u32::try_from(len).unwrap());
        self.bytes += len as u64;
        let packet = match self.random.below(2) {
            _ if len > MSS => packet.partial_csum().host_gso_size(Some(1448)),
            0 => packet.partial_csum(),
            _ => packet,
        };
        let built = packet.build();
        [&built.meta.vnet.encode()[..], &built.bytes].concat()
    }

    fn post(&mut self, message: &[u8]) {
        let at = VNET_HDR_LEN + self.random.below(message.len() - VNET_HDR_LEN);
        let lens = [at, message.len() - at].map(|len| u32::try_from(len).unwrap());
        self.ring.driver.post_tx(message, &lens);
        self.packets += 1;
    }

    /// Sends a round and waits until the guest has all its buffers back.
    fn round(&mut self, messages: impl Iterator<Item = Vec<u8>>) {
        let (mut posted, mut bytes) = (0, 0);
        for message in messages {
            bytes += message.len();
            self.post(&message);
            posted += 1;
            self.ring.kick();
            if bytes > ROUND_BYTES {
                break;
            }
        }
        let limit = Timespec::try_from(LIMIT).unwrap();
        while posted > 0 {
            let call = self.ring.setup.call.as_ref().unwrap();
            let mut fds = [PollFd::new(call, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "it is stuck");
            signals(call);
            posted -= self.ring.driver.collect_all().len();
        }
        self.ring.driver.reset_alloc();
    }
}

fn run(trial: &Trial, seed: u64, time: Option<Duration>) -> (TransmitStats, u64, u64) {
    let (queue, source) = (trial.uplink)();
    let pattern = Pattern::Seeded {
        seed,
        one_in: trial.one_in,
        faults: trial.faults.to_vec(),
    };
    let faulty = FaultQueue::around(queue, pattern, Pattern::Cycle(Vec::new()));
    let thread = ThreadConfig {
        index: 0,
        placement: Placement::default(),
        pair: PairConfig {
            uplink_offloads: trial.host,
            ..config()
        },
    };
    let seat = Seat {
        index: 0,
        queue: Box::new(faulty),
        link: Arc::new(|_| {}),
        tracer: None,
    };
    let thread = DataThread::spawn(thread, vec![seat]).unwrap();
    let receiver = receive(source);
    let ring = Rig::unstarted(&config(), 256).tx;
    let features = linux() | Features::HOST_TSO4 | Features::HOST_TSO6;
    thread.control(0).apply(PairSetup {
        features: features.bits(),
        memory: Some(Arc::clone(&ring.driver.memory)),
        rx: None,
        tx: Some(ring.setup.clone()),
    });
    let mut guest = Guest {
        ring,
        random: Random::new(seed + 1),
        next: [0; FLOWS as usize],
        packets: 0,
        bytes: 0,
    };
    let start = clock::now();
    loop {
        let messages: Vec<_> = (0..ROUND_FRAMES).map(|_| guest.packet()).collect();
        for part in messages.chunks(ROUND_FRAMES / 2) {
            guest.round(part.iter().cloned());
        }
        let is_enough = match time {
            Some(time) => clock::now() - start >= time,
            None => guest.packets >= trial.packets,
        };
        if is_enough || receiver.is_finished() {
            break;
        }
    }
    // The last frame may be refused like any other.
    let end = tcp4(A.port(END), B).build().bytes;
    let end = [&[0; VNET_HDR_LEN][..], &end].concat();
    let frames = || thread.stats(0).unwrap().transmit.frames;
    loop {
        let before = frames();
        guest.round(std::iter::once(end.clone()));
        if frames() > before {
            break;
        }
    }
    let (arrived, _source) = receiver.join().expect("every frame is right");
    let stats = thread.stats(0).unwrap().transmit;
    let lost = guest.bytes - arrived.bytes;
    assert!(arrived.lost <= lost);
    let dropped = stats.refused.total() + stats.dropped_down;
    assert_eq!(stats.frames + dropped, guest.packets, "{}", trial.name);
    if dropped == 0 {
        assert_eq!(lost, 0, "{}", trial.name);
        assert_eq!(arrived.next, guest.next);
    }
    (stats, arrived.segments, lost)
}

/// Time of each trial, if `make tx-soak` set one.
fn time() -> Option<Duration> {
    let seconds = std::env::var("TX_SOAK_SECONDS").ok()?;
    let seconds: f64 = seconds.parse().expect("seconds are a number");
    Some(Duration::from_secs_f64(seconds / TRIALS.len() as f64))
}

const NOTHING: Offloads = Offloads {
    csum: false,
    tso4: false,
    tso6: false,
    ecn: false,
    uso: false,
};

const ALL: Offloads = Offloads {
    csum: true,
    tso4: true,
    tso6: true,
    ecn: true,
    uso: true,
};

const TRIALS: [Trial; 4] = [
    Trial {
        name: "kept, whole",
        uplink: socket_pair,
        host: ALL,
        faults: &KEEPING,
        one_in: 5,
        packets: 400,
    },
    Trial {
        name: "kept, cut here",
        uplink: socket_pair,
        host: NOTHING,
        faults: &KEEPING,
        one_in: 30,
        packets: 400,
    },
    Trial {
        name: "refused, whole",
        uplink: socket_pair,
        host: ALL,
        faults: &SEND_FAULTS,
        one_in: 5,
        packets: 400,
    },
    Trial {
        name: "refused, cut here, told later",
        uplink: stream,
        host: NOTHING,
        faults: &SEND_FAULTS,
        one_in: 50,
        packets: 400,
    },
];

#[test]
fn f39_every_flow_keeps_its_order_over_an_uplink_that_refuses_at_random() {
    for (seed, trial) in (1..).zip(&TRIALS) {
        let (stats, segments, lost) = run(trial, seed, time());
        let packets = stats.ring.frames;
        let drops = trial.faults.len() > KEEPING.len();
        assert_eq!(lost > 0, drops, "{}", trial.name);
        assert!(stats.uplink_full > 0 && stats.uplink_no_memory > 0);
        assert!(stats.left_over > 0);
        assert_eq!(stats.segmented > 0, trial.host == NOTHING);
        let summary = format!(
            "{}: {packets} packets sent, {segments} segments arrived in order, {lost} bytes less; \
             full {}, short of memory {}, left over {}, refused {}, down {}\n",
            trial.name,
            stats.uplink_full,
            stats.uplink_no_memory,
            stats.left_over,
            stats.refused.total(),
            stats.dropped_down,
        );
        let _ = std::io::stderr().write_all(summary.as_bytes());
    }
}
