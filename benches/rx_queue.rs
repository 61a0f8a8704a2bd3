//! What it costs to write packets into the guest's receive buffers.
//!
//! Ids are `rx_queue/<packets>x<bytes>B/<how>`. `copy` is the yardstick: the same bytes copied to
//! the same memory with nothing else done. `unmerged` is the off-switch twin of the 64 KiB case:
//! the same payload as the frames it was merged from.
#![allow(missing_docs, reason = "a bench has no interface")]

#[path = "../src/device/driver_model.rs"]
mod driver_model;

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use driver_model::{DESC, Driver};
use vhost_user_gro::device::{Features, Fill, RingConfig, RxQueue, SplitRing};
use vhost_user_gro::sys::GuestMap;
use vhost_user_gro::wire::VnetHdr;

/// Frame of a full MTU, and the payload of one with TCP timestamps.
const FRAME: usize = 1514;
const PAYLOAD: usize = 1448;
/// Segments of the largest merged packet of such frames.
const SEGMENTS: usize = 45;
/// Packets between two publishes.
const BATCH: usize = 64;
/// Entries of the ring.
const SIZE: u16 = 256;

/// A ring whose buffers come back as soon as they are used.
///
/// As buffers are used in order, entry and descriptor have the same number for ever; giving
/// buffers back is one store.
struct Bench {
    driver: Driver,
    rx: RxQueue,
    given: u16,
}

impl Bench {
    fn new(features: Features, buffer: u32) -> Self {
        let mut driver = Driver::new(SIZE, 0);
        let config = RingConfig {
            size: SIZE,
            desc: DESC,
            avail: driver.avail(),
            used: driver.used(),
            next_avail: 0,
            event_idx: true,
            indirect: true,
        };
        let map = Rc::new(GuestMap::new(Arc::clone(&driver.memory)));
        let ring = SplitRing::new(config, map).expect("the driver's ring is valid");
        for _ in 0..SIZE {
            driver.post_rx(&[buffer]);
        }
        Self {
            given: driver.avail_idx(),
            rx: RxQueue::new(ring, features),
            driver,
        }
    }

    /// Fills `count` packets, shows them together and gets the buffers back.
    fn fill(&mut self, count: usize, len: usize, pieces: &[&[u8]]) {
        let mut used = 0;
        for _ in 0..count {
            let pieces = black_box(pieces).iter().copied();
            match self.rx.fill_from(VnetHdr::default(), len, pieces) {
                Ok(Fill::Filled { buffers }) => used += buffers,
                other => panic!("the ring has room: {other:?}"),
            }
        }
        self.rx.publish();
        black_box(self.rx.needs_notification());
        self.given = self.given.wrapping_add(used);
        self.driver.set_avail_idx(self.given);
    }
}

fn mergeable() -> Features {
    Features::VERSION_1 | Features::MRG_RXBUF
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("rx_queue");
    let frame = vec![0x5a; FRAME];
    let case = |how| BenchmarkId::new(format!("{BATCH}x{FRAME}B"), how);
    group.throughput(Throughput::ElementsAndBytes {
        elements: BATCH as u64,
        bytes: (BATCH * FRAME) as u64,
    });
    let features = [
        ("mergeable", mergeable()),
        ("single_chain", Features::VERSION_1),
    ];
    for (how, features) in features {
        let mut bench = Bench::new(features, 2048);
        group.bench_function(case(how), |b| {
            b.iter(|| bench.fill(BATCH, FRAME, &[&frame]))
        });
    }
    let mut target = vec![0_u8; usize::from(SIZE) * 2048];
    let mut slots = (0..usize::from(SIZE)).cycle();
    group.bench_function(case("copy"), |b| {
        b.iter(|| {
            for _ in 0..BATCH {
                let at = slots.next().expect("an endless row") * 2048;
                target[at..at + FRAME].copy_from_slice(black_box(&frame));
            }
        });
    });
    group.finish();
}

fn large(c: &mut Criterion) {
    let mut group = c.benchmark_group("rx_queue");
    let frame = vec![0x5a; FRAME];
    let mut pieces = vec![&frame[..]];
    pieces.resize(SEGMENTS, &frame[FRAME - PAYLOAD..]);
    let len = FRAME + (SEGMENTS - 1) * PAYLOAD;
    let case = |how| BenchmarkId::new(format!("1x{len}B"), how);
    group.throughput(Throughput::ElementsAndBytes {
        elements: 1,
        bytes: len as u64,
    });
    for (how, buffer) in [("merged_2048", 2048), ("merged_4096", 4096)] {
        let mut bench = Bench::new(mergeable(), buffer);
        group.bench_function(case(how), |b| b.iter(|| bench.fill(1, len, &pieces)));
    }
    let mut bench = Bench::new(mergeable(), 2048);
    group.bench_function(case("unmerged"), |b| {
        b.iter(|| bench.fill(SEGMENTS, FRAME, &[&frame]));
    });
    let mut target = vec![0_u8; 8 * len];
    let mut slots = (0..8).cycle();
    group.bench_function(case("copy"), |b| {
        b.iter(|| {
            let mut at = slots.next().expect("an endless row") * len;
            for piece in black_box(&pieces) {
                target[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
        });
    });
    group.finish();
}

criterion_group!(benches, small, large);
criterion_main!(benches);
