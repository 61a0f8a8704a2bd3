//! The memory of an XDP socket: equal chunks, each of which is in exactly one place.
//!
//! ```text
//!             give back                  fill ring, kernel, receive ring
//!      +--------------------- Lent <------------------- Kernel
//!      |   (frame dropped)      |   (taken as a frame)     ^
//!      +------------------------+--------------------------+
//!
//!      Spare <----- completion ring ----- Sending <----- written, transmit ring ----- Spare
//! ```
//! The first chunks are for frames that are received, the others for those that are sent. What a
//! ring says of a chunk counts only if the chunk is in the place where it can be said.
//!
//! A chunk that is lent has a status word right in front of its frame, in the room that the kernel
//! leaves there, so that the frame finds it in a cache line that it has touched anyway.
#![allow(
    unsafe_code,
    reason = "chunks are handed to the kernel and to frames by address"
)]

use std::collections::VecDeque;
use std::io;
use std::ptr::{NonNull, null_mut, slice_from_raw_parts_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Frame;
use super::frame::SLOT_FREE;

/// Bytes in front of what the kernel uses of a chunk. With them a frame begins 16 bytes into a
/// cache line, behind its status word, and cards can write to it.
pub const UMEM_HEADROOM: u32 = 16;
/// Bytes that the kernel leaves free in front of a received frame. Source: `XDP_PACKET_HEADROOM`.
pub const KERNEL_HEADROOM: u32 = 256;

/// A status other than [`SLOT_FREE`].
const LENT: u32 = 1;
const STATUS_LEN: usize = size_of::<AtomicU32>();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the fill ring, with the kernel, or in the receive ring.
    Kernel,
    /// Out as a frame, or dropped by its owner and not seen yet.
    Lent,
    /// Ours, for a frame to send.
    Spare,
    /// In the transmit ring, with the kernel, or in the completion ring, with a frame of so many
    /// bytes.
    Sending(u32),
}

/// How many chunks are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The kernel's, to receive.
    pub kernel: usize,
    /// Out as frames.
    pub lent: usize,
    /// Free to send.
    pub spare: usize,
    /// On their way out.
    pub sending: usize,
}

/// The memory and who has which part of it.
#[derive(Debug)]
pub struct Umem {
    base: NonNull<u8>,
    len: usize,
    chunk_len: usize,
    places: Box<[Place]>,
    /// Status words of chunks that are lent, as offsets; never longer than there are chunks.
    lent: VecDeque<usize>,
    /// Chunks to send with, the one that was used last on top.
    spare: Vec<u32>,
}

// SAFETY: the mapping belongs to the process, not to a thread. Chunks are handed over between the
// memory and its frames, which may be on different threads, by atomic stores and loads alone.
unsafe impl Send for Umem {}

impl Umem {
    /// Maps memory for `receiving` and `sending` chunks of `chunk_len` bytes. The former are the
    /// kernel's from the beginning: see [`addresses_to_receive`](Self::addresses_to_receive).
    pub(super) fn new(receiving: u32, sending: u32, chunk_len: u32) -> io::Result<Self> {
        let chunks = receiving as usize + sending as usize;
        let len = chunks * chunk_len as usize;
        // SAFETY: a new mapping at an address of the kernel's choice takes nothing from anybody.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let kernel = std::iter::repeat_n(Place::Kernel, receiving as usize);
        let spare = std::iter::repeat_n(Place::Spare, sending as usize);
        Ok(Self {
            base,
            len,
            chunk_len: chunk_len as usize,
            places: kernel.chain(spare).collect(),
            lent: VecDeque::with_capacity(receiving as usize),
            spare: (receiving..receiving + sending).rev().collect(),
        })
    }

    /// Where the memory is, for the kernel.
    pub(super) fn region(&self) -> (u64, u64) {
        (self.base.as_ptr().addr() as u64, self.len as u64)
    }

    /// The chunks that are the kernel's from the beginning.
    pub(super) fn addresses_to_receive(&self) -> impl Iterator<Item = u64> + use<> {
        let chunks = self.places.iter().take_while(|&&p| p == Place::Kernel);
        let len = self.chunk_len;
        (0..chunks.count()).map(move |chunk| (chunk * len) as u64)
    }

    /// Takes `len` bytes at `address`, which the kernel has received, as a frame; `None` if that
    /// is not in a chunk of the kernel's.
    #[inline]
    pub(super) fn lend(&mut self, address: u64, len: u32) -> Option<Frame> {
        let (chunk, at) = self.find(address)?;
        let end = (chunk + 1) * self.chunk_len;
        let frame_end = at + len as usize;
        // The memory begins behind the status word, and the frame there or a few bytes on.
        let status_at = at.checked_sub(STATUS_LEN)? & !(STATUS_LEN - 1);
        let memory_at = status_at + STATUS_LEN;
        let is_inside = status_at >= chunk * self.chunk_len && frame_end <= end;
        if !is_inside || self.places[chunk] != Place::Kernel {
            return None;
        }
        let room = u32::try_from(end - memory_at).ok()?;
        self.places[chunk] = Place::Lent;
        self.lent.push_back(status_at);
        let status = self.status(status_at);
        // SAFETY: the word lies in a chunk that is ours now; atomic use only.
        unsafe { status.as_ref() }.store(LENT, Ordering::Relaxed);
        // SAFETY: the kernel gave us the chunk and does not touch it before its address is in the
        // fill ring again, which `take_back` allows when the status is free. It was the kernel's,
        // so nobody else has it. `drop` keeps the mapping while a frame is out.
        let mut frame = unsafe { Frame::in_slot(status, room) };
        frame.set_range(at - memory_at, frame_end - memory_at);
        Some(frame)
    }

    /// Looks at the chunk that was lent or looked at longest ago: its address if the frame is
    /// gone, to be put into the fill ring. One whose frame is still there is looked at again when
    /// all others were, so that it stands in nobody's way.
    #[inline]
    pub(super) fn take_back(&mut self) -> Option<u64> {
        let status_at = self.lent.pop_front()?;
        if !self.is_free(status_at) {
            self.lent.push_back(status_at);
            return None;
        }
        let chunk = status_at / self.chunk_len;
        self.places[chunk] = Place::Kernel;
        Some((chunk * self.chunk_len) as u64)
    }

    /// Chunks that are lent.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Whether any frame is still out.
    #[must_use]
    pub fn has_lent(&self) -> bool {
        self.lent.iter().any(|&status_at| !self.is_free(status_at))
    }

    /// Has `write` fill a chunk for a frame of `len` bytes; returns its address for the transmit
    /// ring, `None` if there is no chunk or it is too short.
    #[inline]
    pub(super) fn compose(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Option<u64> {
        if len > self.chunk_len {
            return None;
        }
        let frame_len = u32::try_from(len).ok()?;
        let chunk = self.spare.pop()?;
        let at = chunk as usize * self.chunk_len;
        self.places[chunk as usize] = Place::Sending(frame_len);
        // SAFETY: the chunk lies within the mapping.
        let start = unsafe { self.base.add(at) };
        let bytes = slice_from_raw_parts_mut(start.as_ptr(), len);
        // SAFETY: the chunk was spare, so it is ours alone, it is initialised and at least `len`
        // bytes long; the kernel sees it when its address is in the transmit ring.
        write(unsafe { &mut *bytes });
        Some(at as u64)
    }

    /// Takes back a chunk whose frame was sent, and says how long that was; `None` if it was none.
    #[inline]
    pub(super) fn complete(&mut self, address: u64) -> Option<u32> {
        let (chunk, _) = self.find(address)?;
        let Place::Sending(len) = self.places[chunk] else {
            return None;
        };
        self.places[chunk] = Place::Spare;
        // There was room for each of them from the beginning; their numbers were of this type.
        self.spare.extend(u32::try_from(chunk).ok());
        Some(len)
    }

    /// Chunks that can be sent with.
    pub(super) fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Counts the chunks by where they are.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for place in &self.places {
            *match place {
                Place::Kernel => &mut census.kernel,
                Place::Lent => &mut census.lent,
                Place::Spare => &mut census.spare,
                Place::Sending(_) => &mut census.sending,
            } += 1;
        }
        census
    }

    /// The number of the chunk that an address lies in, and the address as an offset.
    fn find(&self, address: u64) -> Option<(usize, usize)> {
        let at = usize::try_from(address).ok()?;
        (at < self.len).then_some((at / self.chunk_len, at))
    }

    fn is_free(&self, status_at: usize) -> bool {
        // SAFETY: the word lies in a chunk that is lent; atomic use only.
        let status = unsafe { self.status(status_at).as_ref() };
        status.load(Ordering::Acquire) == SLOT_FREE
    }

    /// The word at an offset that was found within the mapping, a multiple of its size.
    fn status(&self, at: usize) -> NonNull<AtomicU32> {
        // SAFETY: see above.
        unsafe { self.base.add(at) }.cast()
    }
}

impl Drop for Umem {
    /// Gives the memory back; not while a frame of it is still somewhere. Whoever wants to lose
    /// nothing asks [`has_lent`](Self::has_lent) first. The kernel holds the pages by itself.
    fn drop(&mut self) {
        if self.has_lent() {
            return;
        }
        // SAFETY: this is the whole mapping of `new`, and no frame in it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two chunks to receive, two to send.
    fn umem() -> Umem {
        Umem::new(2, 2, 2048).unwrap()
    }

    #[test]
    fn f64_a_received_chunk_comes_back_when_its_frame_is_dropped() {
        let mut umem = umem();
        assert!(umem.addresses_to_receive().eq([0, 2048]));
        let first = umem.lend(272, 100).unwrap();
        let mut second = umem.lend(2048 + 275, 1773).unwrap();
        assert_eq!(first.as_ref(), [0; 100]);
        second.as_mut().fill(5);
        assert_eq!(second.spare_mut().len(), 1776);
        assert_eq!((umem.lent(), umem.take_back()), (2, None));
        drop(second);
        // The first one was looked at and stands in nobody's way.
        assert_eq!(umem.take_back(), Some(2048));
        assert_eq!((umem.take_back(), umem.has_lent()), (None, true));
        drop(first);
        assert_eq!((umem.take_back(), umem.take_back()), (Some(0), None));
        let census = umem.census();
        assert_eq!((census.kernel, census.lent), (2, 0));
    }

    #[test]
    fn f64_what_the_kernel_does_not_have_is_not_lent() {
        let mut umem = umem();
        // Without room for the status, beyond its chunk, a chunk to send, beyond all.
        for (address, len) in [
            (0, 60),
            (3, 60),
            (2000, 60),
            (4096 + 272, 60),
            (8192 + 272, 60),
        ] {
            assert!(umem.lend(address, len).is_none(), "{address}");
        }
        assert!(umem.lend(u64::MAX, u32::MAX).is_none());
        let _lent = umem.lend(272, 60).unwrap();
        assert!(umem.lend(272, 60).is_none(), "lent twice");
    }

    #[test]
    fn f64_a_chunk_is_sent_with_once_until_it_is_completed() {
        let mut umem = umem();
        assert_eq!(umem.compose(2049, |_| ()), None);
        let first = umem
            .compose(3, |chunk| chunk.copy_from_slice(b"abc"))
            .unwrap();
        let second = umem.compose(2048, |_| ()).unwrap();
        assert_ne!(first, second);
        assert_eq!(umem.compose(1, |_| ()), None);
        // Not sent, not there.
        for address in [0, 8192, u64::MAX] {
            assert_eq!(umem.complete(address), None);
        }
        assert_eq!(umem.complete(first), Some(3));
        assert_eq!(umem.complete(first), None);
        assert!(umem.has_spare());
        assert_eq!(umem.compose(1, |_| ()), Some(first));
    }

    #[test]
    fn memory_outlives_its_owner_while_a_frame_is_in_it() {
        let mut umem = umem();
        let mut frame = umem.lend(272, 4).unwrap();
        drop(umem);
        frame.as_mut().copy_from_slice(b"here");
        assert_eq!(frame.as_ref(), b"here");
    }
}
