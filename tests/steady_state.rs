//! A steady flow allocates nothing: neither when frames merge nor when packets leave.
//!
//! Allocations are counted per thread: the test harness has a thread of its own, which allocates
//! whenever it likes.
#![allow(
    unsafe_code,
    reason = "the GlobalAlloc trait is unsafe to implement; this one only counts and forwards"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vhost_user_gro::gro::{FlushReason, GroConfig, GroEngine, GroTypes};
use vhost_user_gro::time::Instant;
use vhost_user_gro::wire::vnet_hdr::F_DATA_VALID;
use vhost_user_gro::wire::{RxMeta, VnetHdr};

struct Counting;

thread_local! {
    // Neither its initialisation nor its end allocates or runs code.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded unchanged to the system allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of this very method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, that is from the system allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A frame in a buffer that costs nothing to make, as one of a pool would be.
struct Buffer {
    bytes: [u8; 1514],
    len: usize,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

const PAYLOAD: usize = 1448;

/// A TCP segment of a flow; a flow of odd number never merges, because it sets PSH.
fn segment(flow: u16, number: u16) -> Buffer {
    let mut bytes = [0x5a; 1514];
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let ip = &mut bytes[12..36];
    let total = u16::try_from(40 + PAYLOAD).expect("below 2^16");
    ip[..6].copy_from_slice(&[8, 0, 0x45, 0, 0, 0]);
    ip[4..6].copy_from_slice(&total.to_be_bytes());
    ip[6..8].copy_from_slice(&number.to_be_bytes());
    ip[8..14].copy_from_slice(&[0x40, 0, 64, 6, 0, 0]);
    ip[14..22].copy_from_slice(&[192, 0, 2, 1, 198, 51, 100, 2]);
    let tcp = &mut bytes[34..54];
    tcp[..2].copy_from_slice(&(40000 + flow).to_be_bytes());
    tcp[2..4].copy_from_slice(&8000_u16.to_be_bytes());
    let seq = u32::from(number) * u32::try_from(PAYLOAD).expect("below 2^32");
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    let flags = if flow % 2 == 1 { 0x18 } else { 0x10 };
    tcp[8..20].copy_from_slice(&[0, 0, 0, 1, 0x50, flags, 255, 255, 0, 0, 0, 0]);
    let mut buffer = Buffer {
        bytes,
        len: 54 + PAYLOAD,
    };
    vhost_user_gro::wire::ipv4::rewrite(buffer.as_mut(), 14, total, number);
    buffer
}

/// One poll with 64 frames of ten flows, in which everything happens: merging, eviction, bypass.
/// Returns how many packets left.
fn poll(engine: &mut GroEngine<Buffer>, first: u16) -> usize {
    let meta = RxMeta {
        vnet: VnetHdr {
            flags: F_DATA_VALID,
            ..VnetHdr::default()
        },
        ..RxMeta::default()
    };
    let mut packets = 0;
    for number in 0..64 {
        let flow = number % 10;
        engine.receive(Instant::ZERO, segment(flow, first + number / 10), &meta);
        if engine.should_hand_over() {
            packets += deliver(engine);
        }
    }
    engine.flush_all(FlushReason::PollEnd);
    packets + deliver(engine)
}

fn deliver(engine: &mut GroEngine<Buffer>) -> usize {
    let mut packets = 0;
    while engine.front().is_some() {
        packets += 1;
        engine.release_front();
    }
    engine.handed_over();
    packets
}

#[test]
fn a_steady_flow_allocates_nothing() {
    let mut engine = GroEngine::new(GroConfig::default());
    engine.set_types(GroTypes {
        csum: true,
        tcp4: true,
        ..GroTypes::default()
    });
    let at_start = ALLOCATIONS.get();
    // The first polls warm the lists up, which also shows that the counter counts.
    for round in 0..4 {
        poll(&mut engine, round * 7);
    }
    let before = ALLOCATIONS.get();
    assert!(before > at_start);
    let mut packets = 0;
    for round in 0..1000 {
        packets += poll(&mut engine, round * 7);
    }
    let allocations = ALLOCATIONS.get() - before;
    assert_eq!(allocations, 0, "in 64000 frames");
    assert!(engine.stats().merged > 20_000, "{:?}", engine.stats());
    assert!(packets > 30_000);
}
