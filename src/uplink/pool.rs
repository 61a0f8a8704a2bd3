//! Receive buffers that return to their pool when the last owner lets go.
//!
//! A pool belongs to one data thread and needs no lock. Buffers are allocated once, large enough
//! for the biggest frame a host device can hand over; memory that no frame ever touched costs
//! address space only. The free list is a stack, so that the buffers in use stay few and warm.

use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of a pool buffer: a 64 KiB packet with two VLAN tags and its Ethernet header, rounded up.
pub const BUF_LEN: usize = 66 * 1024;

type FreeList = Rc<RefCell<Vec<Box<[u8]>>>>;

/// A fixed number of receive buffers.
#[derive(Debug)]
pub struct FramePool {
    free: FreeList,
    capacity: usize,
}

impl FramePool {
    /// Allocates `capacity` buffers of [`BUF_LEN`] bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let free = (0..capacity)
            .map(|_| vec![0; BUF_LEN].into_boxed_slice())
            .collect();
        Self {
            free: Rc::new(RefCell::new(free)),
            capacity,
        }
    }

    /// Takes a buffer, `None` when all are in use.
    #[must_use]
    pub fn take(&self) -> Option<Frame> {
        let bytes = self.free.borrow_mut().pop()?;
        Some(Frame {
            bytes,
            start: 0,
            end: 0,
            home: Rc::clone(&self.free),
        })
    }

    /// Buffers not in use.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.borrow().len()
    }

    /// Buffers in all.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }
}

/// An owned frame in a pool buffer. Dropping it gives the buffer back.
#[derive(Debug)]
pub struct Frame {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    home: FreeList,
}

impl Frame {
    /// The whole buffer, to be filled by the uplink.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Says which bytes of the buffer are the frame, `start..end` clamped to the buffer.
    pub fn set_range(&mut self, start: usize, end: usize) {
        self.end = end.min(self.bytes.len());
        self.start = start.min(self.end);
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or_default()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // The free list was sized for every buffer, so this push never allocates.
        self.home
            .borrow_mut()
            .push(core::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_comes_back() {
        let pool = FramePool::new(2);
        let mut first = pool.take().unwrap();
        first.spare_mut()[3] = 7;
        first.set_range(3, 4);
        let second = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert_eq!(first.as_ref(), [7]);
        drop(first);
        drop(second);
        assert_eq!(pool.available(), pool.capacity());
    }

    #[test]
    fn a_range_beyond_the_buffer_is_clamped() {
        let pool = FramePool::new(1);
        let mut frame = pool.take().unwrap();
        frame.set_range(BUF_LEN + 1, BUF_LEN + 5);
        assert!(frame.as_ref().is_empty());
    }
}
