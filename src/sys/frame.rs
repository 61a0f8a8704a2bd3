//! Owned frames: bytes in a buffer of ours or in a slot of a mapped ring, behind one handle.
//!
//! A frame is read and written through one pointer and one length, wherever it lies. Where it has
//! to go afterwards is looked at when it is dropped, and not before.
#![allow(
    unsafe_code,
    reason = "a frame in a ring has no owner that the language knows of"
)]

use std::cell::RefCell;
use std::fmt;
use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A slot that the kernel may fill. Source: `TP_STATUS_KERNEL`.
pub(super) const SLOT_FREE: u32 = libc::TP_STATUS_KERNEL;

/// An owned frame. Dropping it gives its memory back to where it came from.
///
/// The memory may be larger than the frame: see [`spare_mut`](Self::spare_mut).
pub struct Frame {
    /// The first byte of the frame.
    at: NonNull<u8>,
    /// Bytes of the frame.
    len: u32,
    /// Bytes of the memory it lies in.
    room: u32,
    home: Home,
}

/// Where the memory begins, and to whom it goes back.
enum Home {
    Buffers(Rc<FreeList>, NonNull<u8>),
    /// The status word of a slot. The memory begins behind it.
    Ring(NonNull<AtomicU32>),
}

impl Frame {
    /// A frame in the slot whose status word is at `status`, followed by `room` bytes. It has no
    /// bytes until a range is set.
    ///
    /// # Safety
    /// The slot is ours and nobody else touches it until its status says [`SLOT_FREE`], which
    /// happens when the frame is dropped; the mapping lives until then.
    pub(super) unsafe fn in_slot(status: NonNull<AtomicU32>, room: u32) -> Self {
        Self {
            // SAFETY: at least the status word lies in the slot, and the memory is behind it.
            at: unsafe { status.add(1) }.cast(),
            len: 0,
            room,
            home: Home::Ring(status),
        }
    }

    /// All of the memory that the frame lies in, to be filled.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        // SAFETY: `room` bytes from `start` on are ours alone and initialised; the borrow of
        // `self` sees to it that there is no other reference to them.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.room as usize) }
    }

    /// Says which bytes of the memory are the frame, `start..end` clamped to the memory.
    pub fn set_range(&mut self, start: usize, end: usize) {
        let room = self.room as usize;
        let end = end.min(room);
        let start = start.min(end);
        // SAFETY: `start` is within the memory.
        self.at = unsafe { self.start().add(start) };
        // Both are at most `room`, which fits.
        self.len = u32::try_from(end - start).unwrap_or(0);
    }

    /// Whether its memory belongs to a ring.
    #[must_use]
    pub const fn is_in_ring(&self) -> bool {
        matches!(self.home, Home::Ring(_))
    }

    fn start(&self) -> NonNull<u8> {
        match &self.home {
            Home::Buffers(_, start) => *start,
            // SAFETY: the memory is behind the status word, as `in_slot` was promised.
            Home::Ring(status) => unsafe { status.add(1) }.cast(),
        }
    }
}

impl AsRef<[u8]> for Frame {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `set_range` keeps `at` and `len` within the memory, which is ours alone.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len as usize) }
    }
}

impl AsMut<[u8]> for Frame {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len as usize) }
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        match &self.home {
            // The list was sized for every buffer, so this push never allocates.
            Home::Buffers(list, start) => list.free.borrow_mut().push(*start),
            Home::Ring(status) => {
                // SAFETY: the mapping lives until the slot is free again, as `in_slot` was
                // promised; the word is used atomically only.
                let status = unsafe { status.as_ref() };
                // What we wrote into the slot is over before the kernel may write.
                status.store(SLOT_FREE, Ordering::Release);
            }
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("len", &self.len)
            .field("is_in_ring", &self.is_in_ring())
            .finish()
    }
}

/// A fixed number of equal buffers, which come back when their frames are dropped.
#[derive(Debug)]
pub struct FrameBuffers {
    list: Rc<FreeList>,
}

/// A stack, so that the buffers in use stay few and warm.
#[derive(Debug)]
struct FreeList {
    free: RefCell<Vec<NonNull<u8>>>,
    len: u32,
}

impl FrameBuffers {
    /// Allocates `count` buffers of `len` bytes. Memory that no frame ever touched costs address
    /// space only.
    #[must_use]
    pub fn new(count: usize, len: u32) -> Self {
        let buffer = |_| {
            let bytes = vec![0; len as usize].into_boxed_slice();
            NonNull::from(Box::leak(bytes)).cast()
        };
        let free = RefCell::new((0..count).map(buffer).collect());
        Self {
            list: Rc::new(FreeList { free, len }),
        }
    }

    /// Takes a buffer, as a frame without bytes; `None` when all are in use.
    #[must_use]
    #[inline]
    pub fn take(&self) -> Option<Frame> {
        let start = self.list.free.borrow_mut().pop()?;
        Some(Frame {
            at: start,
            len: 0,
            room: self.list.len,
            home: Home::Buffers(Rc::clone(&self.list), start),
        })
    }

    /// Buffers not in use.
    #[must_use]
    pub fn available(&self) -> usize {
        self.list.free.borrow().len()
    }
}

impl Drop for FreeList {
    fn drop(&mut self) {
        // The last owner lets go, so every buffer is in the list.
        for start in self.free.get_mut().drain(..) {
            let bytes = slice_from_raw_parts_mut(start.as_ptr(), self.len as usize);
            // SAFETY: `new` leaked a box of this length at this address, and no frame has it.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_four_words() {
        assert_eq!(size_of::<Frame>(), 4 * size_of::<usize>());
    }

    #[test]
    fn a_frame_outlives_the_buffers_it_came_from() {
        let buffers = FrameBuffers::new(1, 64);
        let mut frame = buffers.take().unwrap();
        drop(buffers);
        frame.spare_mut()[3] = 7;
        frame.set_range(3, 4);
        assert_eq!(frame.as_ref(), [7]);
    }

    #[test]
    fn a_frame_in_a_slot_ends_within_it_and_frees_it() {
        #[repr(C)]
        struct Slot(AtomicU32, [u8; 60]);
        let mut slot = Slot(AtomicU32::new(1), [5; 60]);
        let status = NonNull::from(&mut slot).cast();
        // SAFETY: the slot is this test's own and outlives the frame.
        let mut frame = unsafe { Frame::in_slot(status, 60) };
        assert_eq!(frame.spare_mut().len(), 60);
        frame.set_range(50, 70);
        assert_eq!(frame.as_ref(), [5; 10]);
        frame.as_mut()[0] = 6;
        drop(frame);
        assert_eq!(slot.0.into_inner(), SLOT_FREE);
        assert_eq!(slot.1[50], 6);
    }
}
