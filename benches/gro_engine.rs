//! What the engine costs per frame: ids are `gro/<traffic>/<frames>/<setting>`.
//!
//! One round gives a batch of frames to the engine, takes out what it delivers and gives the
//! buffers back to their pool, as a poll does. Making the frames is not measured. `merge_off` is the same round with merging switched
//! off; `vouched` and `verified` say who checked the transport checksum: the host, or the engine.
//! `layout` is the parser alone over the same frames.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};
use etherparse::PacketBuilder;
use vhost_user_gro::gro::{FlushReason, GroConfig, GroEngine, GroTypes};
use vhost_user_gro::time::Instant;
use vhost_user_gro::wire::layout;
use vhost_user_gro::wire::vnet_hdr::F_DATA_VALID;
use vhost_user_gro::wire::{RxMeta, VnetHdr};

const BATCH: usize = 64;
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
const ALL: GroTypes = GroTypes {
    csum: true,
    tcp4: true,
    tcp6: true,
    ecn: true,
    udp4: true,
    udp6: true,
};

/// A kind of traffic: `frame(n)` is its n-th frame.
struct Traffic {
    name: &'static str,
    size: &'static str,
    frames: usize,
    frame: fn(usize) -> Vec<u8>,
}

const TRAFFIC: [Traffic; 8] = [
    Traffic {
        name: "tcp4_in_order",
        size: "64x1448B",
        frames: BATCH,
        frame: |n| tcp4(0, n, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp6_in_order",
        size: "64x1428B",
        frames: BATCH,
        frame: |n| tcp6(n, 1428),
    },
    Traffic {
        name: "tcp4_8_flows",
        size: "64x1448B",
        frames: BATCH,
        frame: |n| tcp4(n % 8, n / 8, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp4_64_flows",
        size: "512x1448B",
        frames: 8 * BATCH,
        frame: |n| tcp4(n % 64, n / 64, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp4_1000_flows",
        size: "2000x1448B",
        frames: 2000,
        frame: |n| tcp4(n % 1000, n / 1000, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp4_bare_acks",
        size: "64x0B",
        frames: BATCH,
        frame: |n| tcp4(0, n, 0, Kind::Data),
    },
    Traffic {
        name: "tcp4_unmergeable",
        size: "64x1448B",
        frames: BATCH,
        frame: |n| tcp4(0, n, 1448, Kind::Reset),
    },
    Traffic {
        name: "udp4_in_order",
        size: "64x1472B",
        frames: BATCH,
        frame: |n| udp4(n, 1472),
    },
];

#[derive(Clone, Copy)]
enum Kind {
    Data,
    /// With a flag that keeps it out of every packet.
    Reset,
}

fn tcp4(flow: usize, number: usize, len: usize, kind: Kind) -> Vec<u8> {
    let flow = u16::try_from(flow).expect("few flows");
    let ip = etherparse::Ipv4Header {
        identification: u16::try_from(number).expect("few segments"),
        dont_fragment: true,
        time_to_live: 64,
        source: [192, 0, 2, 1],
        destination: [198, 51, 100, 2],
        ..Default::default()
    };
    let header = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .tcp(20000 + flow, 8000, seq(number, len), 65535)
        .ack(1)
        .options_raw(&TIMESTAMPS)
        .expect("12 bytes of options");
    let header = match kind {
        Kind::Data => header,
        Kind::Reset => header.rst(),
    };
    let mut frame = Vec::new();
    header
        .write(&mut frame, &vec![0x5a; len])
        .expect("a frame that fits");
    frame
}

fn tcp6(number: usize, len: usize) -> Vec<u8> {
    let header = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv6([0x20; 16], [0x21; 16], 64)
        .tcp(20000, 8000, seq(number, len), 65535)
        .ack(1)
        .options_raw(&TIMESTAMPS)
        .expect("12 bytes of options");
    let mut frame = Vec::new();
    header
        .write(&mut frame, &vec![0x5a; len])
        .expect("a frame that fits");
    frame
}

fn udp4(_number: usize, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 2], 64)
        .udp(20000, 8000)
        .write(&mut frame, &vec![0x5a; len])
        .expect("a frame that fits");
    frame
}

fn seq(number: usize, len: usize) -> u32 {
    u32::try_from(number * len).expect("a short stream")
}

type Pool = Rc<RefCell<Vec<Box<[u8]>>>>;

/// A frame in a buffer that goes back to its pool, as those of the daemon do.
struct Buffer {
    bytes: Box<[u8]>,
    home: Pool,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home
            .borrow_mut()
            .push(core::mem::take(&mut self.bytes));
    }
}

/// One poll: all frames in, all packets out.
fn poll(engine: &mut GroEngine<Buffer>, frames: Vec<Buffer>, meta: RxMeta) {
    for frame in frames {
        engine.receive(Instant::ZERO, frame, meta);
        if engine.should_hand_over() {
            deliver(engine);
        }
    }
    engine.flush_all(FlushReason::PollEnd);
    deliver(engine);
}

fn deliver(engine: &mut GroEngine<Buffer>) {
    while let Some(packet) = engine.pop() {
        engine.recycle(packet);
    }
    engine.handed_over();
}

fn bench_polls(group: &mut BenchmarkGroup<'_, WallTime>, traffic: &Traffic, setting: &str) {
    let frames: Vec<_> = (0..traffic.frames).map(traffic.frame).collect();
    let flags = if setting == "verified" {
        0
    } else {
        F_DATA_VALID
    };
    let meta = RxMeta {
        vnet: VnetHdr {
            flags,
            ..VnetHdr::default()
        },
        ..RxMeta::default()
    };
    let mut engine = GroEngine::new(GroConfig {
        enabled: setting != "merge_off",
        ..GroConfig::default()
    });
    engine.set_types(ALL);
    let pool = Pool::default();
    let id = format!("{}/{}/{setting}", traffic.name, traffic.size);
    group.bench_function(id, |b| {
        b.iter_batched(
            || buffers(&pool, &frames),
            |frames| poll(&mut engine, frames, meta),
            BatchSize::PerIteration,
        );
    });
}

/// The frames in buffers of the pool, which grows as needed.
fn buffers(pool: &Pool, frames: &[Vec<u8>]) -> Vec<Buffer> {
    let fill = |frame: &Vec<u8>| {
        let bytes = pool.borrow_mut().pop();
        let mut bytes = bytes.unwrap_or_else(|| vec![0; frame.len()].into());
        bytes.copy_from_slice(frame);
        Buffer {
            bytes,
            home: Rc::clone(pool),
        }
    };
    frames.iter().map(fill).collect()
}

fn bench_layout(group: &mut BenchmarkGroup<'_, WallTime>, traffic: &Traffic) {
    let frames: Vec<_> = (0..traffic.frames).map(traffic.frame).collect();
    group.bench_function(format!("{}/{}/layout", traffic.name, traffic.size), |b| {
        b.iter(|| {
            for frame in &frames {
                black_box(layout::parse(black_box(frame)).is_ok());
            }
        });
    });
}

fn gro(c: &mut Criterion) {
    let mut group = c.benchmark_group("gro");
    group
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50);
    for traffic in &TRAFFIC {
        group.throughput(Throughput::Elements(traffic.frames as u64));
        for setting in ["vouched", "verified", "merge_off"] {
            bench_polls(&mut group, traffic, setting);
        }
        bench_layout(&mut group, traffic);
    }
    group.finish();
}

criterion_group!(benches, gro);
criterion_main!(benches);
