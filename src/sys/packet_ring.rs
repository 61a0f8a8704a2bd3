//! The mapped receive ring of a packet socket: slots that kernel and process take turns with.
//!
//! Source: `Documentation/networking/packet_mmap.rst`, `TPACKET_V2`. Each slot begins with its
//! status word. While that says [`SLOT_FREE`] the slot is the kernel's, which fills it and then
//! sets another status; from then on it is ours until we set it back. A slot that is taken out as
//! a [`Frame`] carries a mark of our own in its status, so that the ring itself knows what is lent.
#![allow(unsafe_code, reason = "the ring is memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Frame;
use super::frame::SLOT_FREE;
use super::packet::set_rx_ring;

/// Bytes of the status word in front of what a slot's frame can see.
pub const SLOT_STATUS_LEN: usize = size_of::<u32>();
/// Slots in one block of the kernel's memory, so that slots of any number of pages fill blocks.
pub const SLOTS_PER_BLOCK: usize = 16;

/// Our mark of a slot that is taken out. The kernel knows no such bit, and cares only whether the
/// status is [`SLOT_FREE`].
const LENT: u32 = 1 << 27;

/// What a slot is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The kernel's, or being filled by it.
    Free,
    /// Filled; the `TP_STATUS_*` bits say what with.
    Filled(u32),
    /// Taken out as a frame that is still there.
    Lent,
}

/// A receive ring. Indexes are taken modulo its length.
#[derive(Debug)]
pub struct PacketRing {
    base: NonNull<u8>,
    slot_len: usize,
    slots: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. Slots are handed over between the
// ring and its frames, which may be on different threads, by atomic stores and loads alone.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Gives the socket a ring of `slots` slots of `slot_len` bytes, and maps it.
    ///
    /// # Errors
    /// `InvalidInput` unless `slots` is a power of two of whole blocks and `slot_len` suits pages;
    /// else the kernel's error, `ENOMEM` where it has not so much memory.
    pub fn new(socket: BorrowedFd<'_>, slots: usize, slot_len: usize) -> io::Result<Self> {
        let is_whole = slots.is_power_of_two() && slots >= SLOTS_PER_BLOCK;
        let room = slot_len.checked_sub(SLOT_STATUS_LEN);
        if !is_whole || room.is_none_or(|room| u32::try_from(room).is_err()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set_rx_ring(socket, slots, slot_len)?;
        // SAFETY: a new mapping at an address of the kernel's choice takes nothing from anybody.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                slots * slot_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            slot_len,
            slots,
        })
    }

    /// Slots of the ring, a power of two.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// What slot `index` is. What the kernel wrote before it said so is visible behind this.
    #[must_use]
    #[inline]
    pub fn state(&self, index: usize) -> SlotState {
        // SAFETY: the word lies in the mapping, which lives as long as `self`; atomic use only.
        let status = unsafe { self.status(index).as_ref() };
        match status.load(Ordering::Acquire) {
            SLOT_FREE => SlotState::Free,
            status if status & LENT != 0 => SlotState::Lent,
            status => SlotState::Filled(status),
        }
    }

    /// Takes out slot `index`; `None` unless it is filled. The frame's memory is the slot behind
    /// its status word, and its range is empty.
    #[inline]
    pub fn take(&mut self, index: usize) -> Option<Frame> {
        let SlotState::Filled(status) = self.state(index) else {
            return None;
        };
        let word = self.status(index);
        // SAFETY: as in `state`.
        unsafe { word.as_ref() }.store(status | LENT, Ordering::Relaxed);
        // `new` checked that this fits.
        let room = u32::try_from(self.slot_len - SLOT_STATUS_LEN).unwrap_or(0);
        // SAFETY: the kernel gave us the slot and does not touch it again while its status is
        // something else; it was not lent, and from now on it is marked so that nobody lends it
        // again before the frame is gone. `drop` keeps the mapping while the mark is there.
        Some(unsafe { Frame::in_slot(word, room) })
    }

    /// Whether any slot is lent.
    #[must_use]
    pub fn has_lent(&self) -> bool {
        (0..self.slots).any(|index| self.state(index) == SlotState::Lent)
    }

    /// Where the status of a slot is: at its beginning, which is a multiple of 16 bytes in a page.
    #[inline]
    fn status(&self, index: usize) -> NonNull<AtomicU32> {
        let at = (index & (self.slots - 1)) * self.slot_len;
        // SAFETY: the slot lies within the mapping.
        unsafe { self.base.add(at) }.cast()
    }
}

impl Drop for PacketRing {
    /// Lets the kernel have its memory back; not while a frame of it is still somewhere. Whoever
    /// wants to lose nothing asks [`has_lent`](Self::has_lent) first.
    fn drop(&mut self) {
        if self.has_lent() {
            return;
        }
        // SAFETY: this is the whole mapping of `new`, and no frame in it is left: a slot is lent
        // only through `self`, and the frame's last access came before its status changed.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.slots * self.slot_len) };
    }
}
