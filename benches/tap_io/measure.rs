//! CPU time of what is measured.

use std::io;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{ClockId, clock_gettime};
use vhost_user_gro::sys::GuestMap;
use vhost_user_gro::uplink::{FramePool, TxFrame};

use crate::taps::{Lan, frame_of};
use crate::{BUDGET, Receive, Send};

/// Bytes that the device copies to memory of its own when it takes a frame from the ring.
const HEAD_LEN: usize = 256;
/// Bytes of a buffer of the guest.
const PIECE_LEN: usize = 16384;
/// Bytes that each short measurement moves at most, and frames.
const SLICE_LEN: usize = 32 << 20;
const SLICE_FRAMES: usize = 1344;
/// Looks at the clock, to know what one costs.
const LOOKS: u32 = 1000;

/// Nanoseconds a frame of `len` bytes that lies in guest memory behind its head.
///
/// Whoever works for this process is counted: its threads in the kernel are threads of it.
pub(crate) fn transmit(
    way: &mut dyn Send,
    map: &GuestMap,
    len: usize,
    bulk: usize,
) -> io::Result<f64> {
    let (vnet, bytes) = frame_of(len);
    let (head, behind) = bytes.split_at(len.min(HEAD_LEN));
    let mut rest = Vec::new();
    let mut at = 0;
    for piece in behind.chunks(PIECE_LEN) {
        rest.push(map.translate(at, piece.len()).expect("it is in there"));
        at += PIECE_LEN as u64;
    }
    let frame = TxFrame {
        vnet,
        head,
        rest: &rest,
    };
    let bulks = frames(len) / bulk;
    for _ in 0..bulks / 10 {
        way.send_bulk(&frame, bulk)?;
    }
    let began = nanos(ClockId::ProcessCPUTime);
    for _ in 0..bulks {
        way.send_bulk(&frame, bulk)?;
    }
    Ok((nanos(ClockId::ProcessCPUTime) - began) / (bulks * bulk) as f64)
}

/// Nanoseconds a frame when `batch` of them wait, with the look at the readiness and the call that
/// finds nothing more. What the sender's side does is not in it.
pub(crate) fn receive(
    way: &mut dyn Receive,
    lan: &Lan,
    pool: &FramePool,
    len: usize,
    batch: usize,
) -> io::Result<f64> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&set, &lan.tap, EventData::new_u64(0), EventFlags::IN)?;
    let mut events = [Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    }];
    let rounds = frames(len) / batch;
    let mut out = Vec::with_capacity(BUDGET);
    let mut got = 0;
    let mut spent = 0.0;
    for _ in 0..rounds {
        lan.send(len, batch);
        let began = nanos(ClockId::ThreadCPUTime);
        epoll::wait(&set, &mut events, Some(&Timespec::default()))?;
        loop {
            let may_be_more = way.receive(pool, &mut out)?;
            got += out.drain(..).count();
            if !may_be_more {
                break;
            }
        }
        spent += nanos(ClockId::ThreadCPUTime) - began;
    }
    assert_eq!(got, rounds * batch, "frames were lost");
    Ok((spent - rounds as f64 * look()) / got as f64)
}

fn frames(len: usize) -> usize {
    SLICE_FRAMES.min(SLICE_LEN / len)
}

/// What it costs to look at the clock twice, as far as the clock sees it.
fn look() -> f64 {
    let looks = (0..LOOKS).map(|_| {
        let began = nanos(ClockId::ThreadCPUTime);
        nanos(ClockId::ThreadCPUTime) - began
    });
    looks.sum::<f64>() / f64::from(LOOKS)
}

fn nanos(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
