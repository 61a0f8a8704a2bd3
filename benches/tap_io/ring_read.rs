//! Reads through `io_uring`.
#![allow(
    unsafe_code,
    reason = "requests hold addresses; whoever makes them keeps the memory until they are done"
)]

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{cqueue, opcode};
use vhost_user_gro::uplink::{Frame, FramePool, RxFrame, UplinkQueue};
use vhost_user_gro::wire::vnet_hdr::VNET_HDR_LEN;
use vhost_user_gro::wire::{RxMeta, VnetHdr};

use crate::ring::{NO_OFFSET, TAP, TapRing, one_thread, small};
use crate::{BUDGET, Receive};

/// As the daemon has it: the IP header lies on a boundary of 16 bytes.
const HDR_AT: usize = 6;
/// The only group of provided buffers.
const GROUP: u16 = 0;
const PAGE: usize = 4096;
/// Reads of a submission: a few at first, as often nothing more waits.
const FIRST: usize = 2;
const FURTHER: usize = 8;

/// One read that goes on for ever, into buffers that the kernel takes from a ring.
///
/// Its readiness is that of the tap: a ring that runs its work late does not wake who polls it.
pub(crate) struct Multishot {
    tap: TapRing,
    /// A page, never given back.
    buffers: NonNull<BufRingEntry>,
    tail: u16,
    /// The frame of each buffer that the kernel has.
    lent: [Option<Frame>; BUDGET],
    free: Vec<u16>,
    is_reading: bool,
}

impl Multishot {
    pub(crate) fn new(tap: Box<dyn UplinkQueue>, pool: &FramePool) -> io::Result<Self> {
        let tap = TapRing::new(&one_thread(), tap)?;
        let layout = Layout::from_size_align(PAGE, PAGE).expect("a page is aligned to a page");
        // SAFETY: the layout is not empty.
        let page = unsafe { alloc_zeroed(layout) };
        let page = NonNull::new(page).unwrap_or_else(|| handle_alloc_error(layout));
        let entries = u16::try_from(BUDGET).expect("it is a small number");
        let submitter = tap.ring.submitter();
        let at = page.as_ptr().expose_provenance() as u64;
        // SAFETY: the page has room for so many entries and is never given back.
        unsafe { submitter.register_buf_ring_with_flags(at, entries, GROUP, 0) }?;
        let mut reader = Self {
            tap,
            buffers: page.cast(),
            tail: 0,
            lent: [const { None }; BUDGET],
            free: (0..entries).collect(),
            is_reading: false,
        };
        reader.go_on(pool)?;
        Ok(reader)
    }

    /// Provides buffers, begins to read if the kernel has ended it, and lets it read.
    fn go_on(&mut self, pool: &FramePool) -> io::Result<()> {
        while let Some(id) = self.free.pop() {
            let mut frame = pool.take().expect("the pool has more than are lent");
            let room = &mut frame.spare_mut()[HDR_AT..];
            // SAFETY: the index is below the number of entries.
            let mut entry = unsafe { self.buffers.add(usize::from(self.tail) % BUDGET) };
            // SAFETY: the kernel has used up what was in the entry, or its buffer would be lent.
            let entry = unsafe { entry.as_mut() };
            entry.set_addr(room.as_mut_ptr().expose_provenance() as u64);
            entry.set_len(small(room.len()));
            entry.set_bid(id);
            self.lent[usize::from(id)] = Some(frame);
            self.tail = self.tail.wrapping_add(1);
        }
        // SAFETY: the tail lies in the first entry.
        let tail = unsafe { BufRingEntry::tail(self.buffers.as_ptr()) };
        // SAFETY: we alone write it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
        if !self.is_reading {
            self.is_reading = true;
            let read = opcode::ReadMulti::new(TAP, 0, GROUP).offset(NO_OFFSET);
            // SAFETY: buffers are kept in `lent` until they come back.
            unsafe { self.tap.push(&read.build()) };
        }
        self.tap.enter(0)
    }

    /// Takes what was read, at most as many frames as there are buffers.
    fn take(&mut self, out: &mut Vec<RxFrame>) {
        for done in self.tap.ring.completion() {
            self.is_reading &= cqueue::more(done.flags());
            // A read that finds no buffer ends and has read nothing.
            let Some(id) = cqueue::buffer_select(done.flags()) else {
                continue;
            };
            let frame = self.lent[usize::from(id)].take();
            out.extend(message(
                frame.expect("the kernel had this one"),
                done.result(),
            ));
            self.free.push(id);
        }
    }
}

impl Receive for Multishot {
    fn receive(&mut self, pool: &FramePool, out: &mut Vec<RxFrame>) -> io::Result<bool> {
        self.go_on(pool)?;
        self.take(out);
        Ok(!out.is_empty())
    }
}

/// Several reads in a submission that find something or end at once.
pub(crate) struct Batched {
    tap: TapRing,
    asked: Vec<Frame>,
}

impl Batched {
    pub(crate) fn new(tap: Box<dyn UplinkQueue>) -> io::Result<Self> {
        Ok(Self {
            tap: TapRing::new(&one_thread(), tap)?,
            asked: Vec::with_capacity(FURTHER),
        })
    }

    /// Whether all of `count` reads found a frame.
    fn read(&mut self, pool: &FramePool, count: usize, out: &mut Vec<RxFrame>) -> io::Result<bool> {
        for _ in 0..count {
            let mut frame = pool.take().expect("the pool has more than are asked for");
            let room = &mut frame.spare_mut()[HDR_AT..];
            let read = opcode::Read::new(TAP, room.as_mut_ptr(), small(room.len()))
                .offset(NO_OFFSET)
                .rw_flags(libc::RWF_NOWAIT);
            self.asked.push(frame);
            // SAFETY: the frame is kept in `asked` until all of the reads are done.
            unsafe { self.tap.push(&read.build()) };
        }
        self.tap.enter(count)?;
        let before = out.len();
        let done = self.tap.ring.completion();
        let frames = self.asked.drain(..).zip(done);
        out.extend(frames.filter_map(|(frame, done)| message(frame, done.result())));
        Ok(out.len() - before == count)
    }
}

impl Receive for Batched {
    fn receive(&mut self, pool: &FramePool, out: &mut Vec<RxFrame>) -> io::Result<bool> {
        let mut count = FIRST;
        while out.len() < BUDGET {
            if !self.read(pool, count.min(BUDGET - out.len()), out)? {
                return Ok(false);
            }
            count = FURTHER;
        }
        Ok(true)
    }
}

/// The frame behind its header; `None` if the read failed, which it does when nothing is there.
fn message(mut frame: Frame, result: i32) -> Option<RxFrame> {
    let len = usize::try_from(result).ok()?;
    let hdr = frame.spare_mut().get(HDR_AT..)?.first_chunk()?;
    let vnet = VnetHdr::decode(hdr);
    frame.set_range(HDR_AT + VNET_HDR_LEN, HDR_AT + len);
    let meta = RxMeta {
        vnet,
        merge_mark: 0,
    };
    Some(RxFrame { frame, meta })
}
