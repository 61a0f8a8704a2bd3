//! One of the four rings of an XDP socket, mapped: entries between two indexes, of which one moves
//! with the kernel and the other one with us.
//!
//! Indexes run freely and are taken modulo the ring. Nothing here knows what an entry means; who
//! has the memory that it points to is the business of `Umem`.
//!
//! Source: `Documentation/networking/af_xdp.rst`, "Rings"; `net/xdp/xsk_queue.h`.
#![allow(unsafe_code, reason = "the ring is memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// What a ring's entries are.
pub(super) trait Entry: Copy {}
/// An address, in the fill and the completion ring.
impl Entry for u64 {}
/// Address and length, in the receive and the transmit ring.
impl Entry for XdpDesc {}

/// A mapped ring of `T`.
#[derive(Debug)]
pub(super) struct XdpRing<T> {
    _map: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Our own index, which the kernel may not have seen yet.
    ours: u32,
    /// The kernel's index when it was looked at last.
    theirs: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread, and only `self` reaches it.
unsafe impl<T: Send> Send for XdpRing<T> {}

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl<T: Entry> XdpRing<T> {
    /// Maps the ring at `page_offset`, which the socket was given with `size` entries, a power of
    /// two.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        size: u32,
        at: &XdpRingOffset,
    ) -> io::Result<Self> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let entries = usize::try_from(at.desc).map_err(|_| unsupported())?;
        let len = entries + size as usize * size_of::<T>();
        let map = Mapping::new(socket, page_offset, len)?;
        // Kernels before 5.4 have no flags.
        let flags = at.flags.ok_or_else(unsupported)?;
        let (producer, consumer) = (map.at(at.producer)?, map.at(at.consumer)?);
        Ok(Self {
            producer,
            consumer,
            flags: map.at(flags)?,
            entries: map.at(at.desc)?,
            _map: map,
            size,
            ours: 0,
            theirs: 0,
        })
    }

    /// Writes an entry that the kernel is to read; it does not see it before
    /// [`publish`](Self::publish). `false` if the ring is full.
    #[inline]
    pub(super) fn write(&mut self, entry: T) -> bool {
        if self.ours.wrapping_sub(self.theirs) == self.size {
            self.theirs = self.load(self.consumer);
            if self.ours.wrapping_sub(self.theirs) == self.size {
                return false;
            }
        }
        let to = self.entry(self.ours);
        // SAFETY: the entry lies in the mapping, and is ours until the index is published.
        unsafe { to.write_volatile(entry) };
        self.ours = self.ours.wrapping_add(1);
        true
    }

    /// Shows the kernel what was written, behind everything written before.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.store(self.producer);
    }

    /// Entries that were published and that the kernel has not read.
    #[inline]
    pub(super) fn unread(&mut self) -> u32 {
        self.theirs = self.load(self.consumer);
        self.ours.wrapping_sub(self.theirs)
    }

    /// Reads an entry that the kernel has written; it keeps its place until
    /// [`release`](Self::release).
    #[inline]
    pub(super) fn read(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let from = self.entry(self.ours);
        self.ours = self.ours.wrapping_add(1);
        // SAFETY: the entry lies in the mapping and was written before the kernel's index moved.
        Some(unsafe { from.read_volatile() })
    }

    /// Whether there is nothing to read.
    #[inline]
    pub(super) fn is_empty(&mut self) -> bool {
        if self.ours == self.theirs {
            self.theirs = self.load(self.producer);
        }
        self.ours == self.theirs
    }

    /// Gives back the places of what was read.
    #[inline]
    pub(super) fn release(&mut self) {
        self.store(self.consumer);
    }

    /// Whether the kernel has to be woken before it looks at the ring.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Our index has to be there before the kernel's flag is looked at.
        fence(Ordering::SeqCst);
        // SAFETY: the word lies in the mapping; atomic use only.
        let flags = unsafe { self.flags.as_ref() }.load(Ordering::Relaxed);
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }

    fn load(&self, index: NonNull<AtomicU32>) -> u32 {
        // SAFETY: the word lies in the mapping, which lives as long as `self`; atomic use only.
        unsafe { index.as_ref() }.load(Ordering::Acquire)
    }

    fn store(&self, index: NonNull<AtomicU32>) {
        // SAFETY: as in `load`.
        unsafe { index.as_ref() }.store(self.ours, Ordering::Release);
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mapping has `size` entries, a power of two.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

impl Mapping {
    fn new(socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice takes nothing from anybody.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// A place in it that is aligned for `T`.
    fn at<T>(&self, offset: u64) -> io::Result<NonNull<T>> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_inside = offset < self.len && self.len - offset >= size_of::<T>();
        if !is_inside || !offset.is_multiple_of(align_of::<T>()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the place lies within the mapping.
        Ok(unsafe { self.base.add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping of `new`, which only the owner of `self` reaches.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
