//! No frame disappears and no buffer leaks, whatever comes and however short the guest is.

use std::time::Duration;

use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::worker::PairConfig;

use crate::packet::{A, ACK, B, Built, Checksum, PSH, tcp4, tcp6, udp4};
use crate::rig::{MSS, Rig, at_us, config, linux, sequence};

/// Batches of the long runs; a build without optimisation takes a tenth.
const BATCHES: u32 = if cfg!(debug_assertions) {
    10_000
} else {
    100_000
};

/// A small generator with a fixed seed (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}

/// Frames of all sorts: streams, unmergeable ones, too long ones, damaged ones.
fn assortment() -> Vec<Built> {
    let mut frames: Vec<_> = (0..8)
        .map(|nth| tcp4(A, B).seq(1 + nth * 100).payload(100).build())
        .collect();
    frames.extend((0..20).map(|nth| tcp4(A.port(nth), B).payload(64).build()));
    frames.extend((0..4).map(|nth| tcp6(A, B).seq(1 + nth * 300).payload(300).build()));
    frames.extend([
        tcp4(A, B).payload(0).build(),
        tcp4(A, B).flags(PSH | ACK).payload(10).build(),
        tcp4(A, B).csum(Checksum::Wrong).payload(10).build(),
        tcp4(A, B).mf(true).df(false).payload(64).build(),
        tcp4(A, B).partial_csum().payload(500).build(),
        udp4(A, B).payload(100).build(),
        udp4(A, B).payload(0).build(),
        // Longer than all buffers of the small ring.
        tcp4(A, B).payload(3000).build(),
    ]);
    frames
}

#[test]
fn f14_in_is_delivered_and_dropped_and_held_after_every_batch() {
    let frames = assortment();
    let mut random = Random::new(14);
    let mut rig = Rig::unstarted(
        &PairConfig {
            pool_frames: 12,
            napi: NapiConfig {
                budget: 16,
                ..NapiConfig::default()
            },
            ..config()
        },
        8,
    );
    rig.rx.post_rx(8, 256);
    rig.apply(at_us(0));
    let mut injected = 0;
    let mut with_guest = Vec::new();
    for batch in 0..BATCHES {
        for _ in 0..random.below(6) {
            let frame = &frames[random.below(frames.len())];
            injected += u64::from(rig.peer.inject(&frame.meta.vnet, &frame.bytes).is_ok());
        }
        let now = at_us(u64::from(batch) * 15);
        rig.settle(now);
        let unread = unread(&rig, injected);
        rig.check_conservation(injected - unread);
        with_guest.extend(rig.rx.collect().1);
        let count = random.below(with_guest.len() + 1);
        let returned: Vec<_> = with_guest.drain(..count).collect();
        if !returned.is_empty() {
            rig.rx.give_back(&returned);
            rig.rx.kick();
        }
    }
    // A guest that takes everything: all buffers come back to the pool.
    let mut now = at_us(u64::from(BATCHES) * 15);
    for _ in 0..1000 {
        now = rig.rest(now) + Duration::from_millis(20);
        with_guest.extend(rig.rx.collect().1);
        rig.rx.give_back(&std::mem::take(&mut with_guest));
        rig.rx.kick();
    }
    let stats = rig.rx_stats();
    assert_eq!(stats.pool_in_use, 0);
    assert_eq!(unread(&rig, injected), 0);
    rig.check_conservation(injected);
    for count in [
        stats.buffer_waits,
        stats.dropped_too_big,
        stats.gro.merged,
        stats.pool_empty,
    ] {
        assert!(count > 0, "the mix does not reach everything: {stats:?}");
    }
}

/// Frames that still wait in the uplink.
fn unread(rig: &Rig, injected: u64) -> u64 {
    let stats = rig.rx_stats();
    injected - stats.gro.frames - stats.above_mtu
}

#[test]
fn f14_a_full_bucket_and_a_short_ring_at_once() {
    // Many flows, ten frames that cannot merge, and room for five.
    let mut rig = Rig::unstarted(&config(), 8);
    rig.features = linux();
    rig.rx.post_rx(5, 1536);
    rig.apply(at_us(0));
    let mut frames: Vec<_> = (0..90)
        .map(|nth| tcp4(A.port(nth), B).payload(MSS).build())
        .collect();
    frames.extend((0..10).map(|_| tcp4(B, A).payload(0).build()));
    rig.inject_all(&frames);
    let mut now = at_us(1);
    let mut count = 0;
    while count < 100 {
        now = rig.rest(now);
        let (packets, chains) = rig.rx.collect();
        assert!(!packets.is_empty(), "stuck after {count}");
        count += packets.len();
        rig.rx.give_back(&chains);
        rig.rx.kick();
    }
    rig.rest(now);
    rig.check_conservation(100);
    assert_eq!(rig.rx_stats().pool_in_use, 0);
}

#[test]
fn streams_come_through_a_short_ring_complete_and_in_order() {
    let mut random = Random::new(7);
    let mut rig = Rig::unstarted(&config(), 16);
    rig.rx.post_rx(16, 256);
    rig.apply(at_us(0));
    let total = 4000;
    let (mut sent, mut now, mut with_guest, mut got) = (0, at_us(0), Vec::new(), Vec::new());
    while got.len() < total as usize {
        for _ in 0..random.below(30) {
            if sent == total {
                break;
            }
            let frame = tcp4(A, B).seq(1 + sent * 100).payload(100).build();
            if rig.peer.inject(&frame.meta.vnet, &frame.bytes).is_err() {
                break;
            }
            sent += 1;
        }
        now = rig.settle(now).unwrap_or(now + Duration::from_micros(3));
        let (packets, chains) = rig.rx.collect();
        got.extend(sequence(&packets));
        with_guest.extend(chains);
        let count = random.below(with_guest.len() + 1);
        let returned: Vec<_> = with_guest.drain(..count).collect();
        rig.rx.give_back(&returned);
        rig.rx.kick();
    }
    assert!(got.iter().copied().eq((0..total).map(|nth| 1 + nth * 100)));
}
