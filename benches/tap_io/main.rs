//! What a frame costs on its way through a tap: one system call each, as the daemon does it, against
//! `io_uring` and what else a tap knows.
//!
//! Needs root; what it makes lies in a network namespace of its own and goes with it. Figures are
//! nanoseconds of CPU time a frame and the ratio to the first line of a block: median (min-max) of
//! the turns. `docs/results/tap-io.md` says what was decided by them.
#![allow(missing_docs, reason = "a bench has no interface")]
#![allow(clippy::print_stdout, reason = "the table is what it is for")]

#[path = "../../tests/support/host_frames.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod host_frames;
mod measure;
#[path = "../../tests/support/netns.rs"]
mod netns;
mod plain;
mod ring;
mod ring_read;
#[path = "../peers/spread.rs"]
#[allow(dead_code, reason = "the other bench uses the rest")]
mod spread;
mod taps;

use std::io;
use std::sync::Arc;

use vhost_user_gro::sys::GuestMap;
use vhost_user_gro::uplink::{FramePool, RxFrame, TxFrame};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use measure::{receive, transmit};
use plain::{Calls, Pieces};
use ring::RingSender;
use ring_read::{Batched, Multishot};
use spread::Spread;
use taps::{DATA_CPU, Lan, OTHER_CPU};

const TURNS: usize = 9;
/// Short measurements of each way in a turn.
const SLICES: usize = 5;
const LENGTHS: [usize; 4] = [60, 1514, 9014, 65535];
/// Frames from the guest that are sent together; 7 is the daemon's bulk.
const BULKS: [usize; 3] = [1, 7, 64];
/// Frames that wait when a reader is woken.
const BATCHES: [usize; 3] = [1, 8, 64];
/// Most frames that one call of a reader takes.
const BUDGET: usize = 64;

/// A way of writing frames to a tap.
trait Send {
    /// Writes `frame`, `count` times.
    fn send_bulk(&mut self, frame: &TxFrame<'_>, count: usize) -> io::Result<()>;
}

/// A way of reading frames from a tap.
trait Receive {
    /// Takes up to [`BUDGET`] frames; `false` when nothing is left.
    fn receive(&mut self, pool: &FramePool, out: &mut Vec<RxFrame>) -> io::Result<bool>;
}

fn main() {
    netns::in_namespace("tap_io", || {
        taps::pin(DATA_CPU);
        println!("CPU {DATA_CPU}; senders of what is received: CPU {OTHER_CPU}; {TURNS} turns");
        transmit_all().expect("taps and rings can be had");
        receive_all().expect("taps and rings can be had");
    });
}

fn transmit_all() -> io::Result<()> {
    let poller = u32::try_from(OTHER_CPU).expect("a small number");
    let mut ways: [(&str, Box<dyn Send>); 5] = [
        ("write", Box::new(Calls(taps::alone("tx0")))),
        ("writev", Box::new(Pieces(taps::alone("tx1")))),
        (
            "io_uring",
            Box::new(RingSender::new(taps::alone("tx2"), None)?),
        ),
        (
            "SQPOLL",
            Box::new(RingSender::new(taps::alone("tx3"), Some(poller))?),
        ),
        ("write, NAPI", Box::new(Calls(taps::alone_with_napi("tx4")))),
    ];
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 17)])
        .expect("two pages of 64 KiB can be had");
    let (_, largest) = host_frames::gso(LENGTHS[3]);
    memory
        .write_slice(&largest, GuestAddress(0))
        .expect("it fits");
    let map = GuestMap::new(Arc::new(memory));
    for len in LENGTHS {
        for bulk in BULKS {
            let case = format!("transmit {len} B, bulks of {bulk}");
            let names = ways.each_ref().map(|(name, _)| *name);
            turns(&case, &names, |index| {
                transmit(ways[index].1.as_mut(), &map, len, bulk)
            })?;
        }
    }
    Ok(())
}

fn receive_all() -> io::Result<()> {
    let pool = FramePool::new(4 * BUDGET);
    let (first, first_lan) = Lan::new(0, &pool);
    let (second, second_lan) = Lan::new(1, &pool);
    let (third, third_lan) = Lan::new(2, &pool);
    let mut ways: [(&str, Box<dyn Receive>, Lan); 3] = [
        ("read", Box::new(Calls(first)), first_lan),
        (
            "multishot",
            Box::new(Multishot::new(second, &pool)?),
            second_lan,
        ),
        ("batched", Box::new(Batched::new(third)?), third_lan),
    ];
    for len in LENGTHS {
        for batch in BATCHES {
            let case = format!("receive {len} B, {batch} waiting");
            let names = ways.each_ref().map(|(name, _, _)| *name);
            turns(&case, &names, |index| {
                let (_, way, lan) = &mut ways[index];
                receive(way.as_mut(), lan, &pool, len, batch)
            })?;
        }
    }
    Ok(())
}

/// Measures all ways slice by slice, so that what disturbs one disturbs the others. The fastest
/// slice of a turn counts: what else runs on the machine only ever adds.
fn turns(
    case: &str,
    names: &[&str],
    mut slice: impl FnMut(usize) -> io::Result<f64>,
) -> io::Result<()> {
    let mut spreads = vec![Spread::default(); names.len()];
    for _ in 0..TURNS {
        let mut fastest = vec![f64::INFINITY; names.len()];
        for _ in 0..SLICES {
            for (way, fastest) in fastest.iter_mut().enumerate() {
                *fastest = fastest.min(slice(way)?);
            }
        }
        for (spread, fastest) in spreads.iter_mut().zip(fastest) {
            spread.push(fastest);
        }
    }
    println!("{case}");
    for (name, spread) in names.iter().zip(&spreads) {
        let ratio = spread.ratio_to(&spreads[0]).show(2);
        println!("    {name:12} {:24} {ratio}", spread.show(0));
    }
    Ok(())
}
