//! What a poll costs from the uplink to the guest's buffers: ids are
//! `poll/<traffic>/<frames>/<setting>`.
//!
//! One round is one turn of a queue pair: the epoll set is asked, a budget of frames is read,
//! merged, written into the buffers of a driver model and published. The uplink is in memory and
//! always has more, so what a system call for each frame costs is not in here, but one copy of its
//! bytes is. `vouched` frames come with `DATA_VALID`; `verified` ones have their checksum looked
//! at. `merge_off` is the same with merging switched off. The guest polls, so that no interrupt is
//! signalled.
#![allow(missing_docs, reason = "a bench has no interface")]

#[path = "../src/device/driver_model.rs"]
mod driver_model;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use driver_model::Driver;
use etherparse::PacketBuilder;
use rustix::event::{EventfdFlags, eventfd};
use vhost_user_gro::device::Features;
use vhost_user_gro::gro::GroConfig;
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::time::Instant;
use vhost_user_gro::tx::TxConfig;
use vhost_user_gro::uplink::{
    FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue, UplinkStats,
};
use vhost_user_gro::wire::vnet_hdr::F_DATA_VALID;
use vhost_user_gro::wire::{RxMeta, VnetHdr};
use vhost_user_gro::worker::{PairConfig, PairSetup, QueuePair, RingSetup};

/// Frames of one poll: the budget by default.
const BATCH: usize = 64;
/// Payload of a frame of a full MTU with TCP timestamps.
const PAYLOAD: usize = 1448;
/// Entries of the ring.
const SIZE: u16 = 256;
/// Room of a guest's buffer.
const BUFFER: u32 = 2048;
/// Time from one turn to the next, about what 64 frames take at 10 Gbit/s.
const STEP: Duration = Duration::from_micros(75);

/// An uplink that always has the next segments of its flows.
struct Endless {
    /// Always readable.
    fd: OwnedFd,
    frames: Vec<Vec<u8>>,
    vnet: VnetHdr,
    next: usize,
}

impl Endless {
    /// `flows` flows, segment by segment in turn.
    fn new(flows: usize, is_vouched: bool) -> Self {
        // One cycle of frames after which every flow begins anew, with room for many packets.
        let frames = (0..16 * BATCH)
            .map(|nth| frame(nth % flows, nth / flows))
            .collect();
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Self {
            fd: eventfd(1, flags).expect("descriptors are left"),
            frames,
            vnet: VnetHdr {
                flags: if is_vouched { F_DATA_VALID } else { 0 },
                ..VnetHdr::default()
            },
            next: 0,
        }
    }
}

impl UplinkQueue for Endless {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        for _ in 0..budget {
            let Some(mut frame) = pool.take() else {
                return Ok(RecvEnd::PoolEmpty);
            };
            let bytes = &self.frames[self.next];
            frame.spare_mut()[18..18 + bytes.len()].copy_from_slice(bytes);
            frame.set_range(18, 18 + bytes.len());
            let meta = RxMeta {
                vnet: self.vnet,
                merge_mark: 0,
            };
            out.push(RxFrame { frame, meta });
            self.next = (self.next + 1) % self.frames.len();
        }
        Ok(RecvEnd::Budget)
    }

    fn send(&mut self, _frame: &TxFrame<'_>) -> Result<(), SendError> {
        Ok(())
    }

    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        UplinkStats::default()
    }
}

fn frame(flow: usize, nth: usize) -> Vec<u8> {
    let port = 1000 + u16::try_from(flow).expect("few flows");
    let seq = u32::try_from(1 + nth * PAYLOAD).expect("a short stream");
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 2], 64)
        .tcp(port, 8000, seq, 65535)
        .ack(1)
        .options_raw(&[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9])
        .expect("options are short")
        .write(&mut bytes, &[0x5a; PAYLOAD])
        .expect("a vector takes everything");
    bytes
}

/// A running pair whose guest gives buffers back as soon as they are used.
///
/// As buffers are used in order, entry and descriptor have the same number for ever; giving
/// buffers back is one store.
struct Bench {
    pair: QueuePair,
    driver: Driver,
    now: Instant,
}

impl Bench {
    fn new(uplink: Endless, is_merging: bool) -> Self {
        let config = PairConfig {
            gro: GroConfig {
                enabled: is_merging,
                ..GroConfig::default()
            },
            napi: NapiConfig::default(),
            pool_frames: 512,
            mtu: None,
            tx: TxConfig::default(),
            uplink_offloads: Offloads::default(),
        };
        let mut driver = Driver::new(SIZE, 0);
        for _ in 0..SIZE {
            driver.post_rx(&[BUFFER]);
        }
        // VIRTQ_AVAIL_F_NO_INTERRUPT.
        driver.set_avail_flags(1);
        let features = Features::VERSION_1
            | Features::MRG_RXBUF
            | Features::GUEST_CSUM
            | Features::GUEST_TSO4
            | Features::GUEST_TSO6;
        let rx = RingSetup {
            epoch: 1,
            size: SIZE,
            desc_table: driver.desc(),
            avail_ring: driver.avail(),
            used_ring: driver.used(),
            next_avail: 0,
            enabled: true,
            kick: None,
            call: None,
            err: None,
        };
        let setup = PairSetup {
            features: features.bits(),
            memory: Some(Arc::clone(&driver.memory)),
            rx: Some(rx),
            tx: None,
        };
        let mut pair = QueuePair::new(&config, Box::new(uplink), Arc::new(|_| {}))
            .expect("descriptors are left");
        let now = Instant::ZERO;
        pair.apply(now, setup);
        Self { pair, driver, now }
    }

    /// One poll, after which the guest has its buffers back.
    fn turn(&mut self) {
        self.now = self.now + STEP;
        self.pair.turn(self.now).expect("the kernel has memory");
        let used = self.driver.used_idx();
        self.driver.set_avail_idx(used.wrapping_add(SIZE));
    }
}

fn polls(c: &mut Criterion) {
    for (traffic, flows) in [("tcp4", 1), ("tcp4_8_flows", 8)] {
        let mut group = c.benchmark_group(format!("poll/{traffic}/{BATCH}x{PAYLOAD}B"));
        group.throughput(Throughput::ElementsAndBytes {
            elements: BATCH as u64,
            bytes: (BATCH * (PAYLOAD + 66)) as u64,
        });
        for (setting, is_merging, is_vouched) in [
            ("merge_on", true, true),
            ("merge_on_verified", true, false),
            ("merge_off", false, true),
        ] {
            let mut bench = Bench::new(Endless::new(flows, is_vouched), is_merging);
            group.bench_function(setting, |b| b.iter(|| bench.turn()));
            check(&bench, is_merging);
        }
        group.finish();
    }
}

/// A bench that measures something else is worse than none.
fn check(bench: &Bench, is_merging: bool) {
    let stats = bench.pair.stats().receive;
    assert_eq!(stats.gro.frames, stats.polls * BATCH as u64, "{stats:?}");
    assert_eq!(stats.gro.merged > 0, is_merging, "{stats:?}");
    assert_eq!(stats.buffer_waits, 0, "{stats:?}");
}

criterion_group!(benches, polls);
criterion_main!(benches);
