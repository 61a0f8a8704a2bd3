//! Receive buffers that return to their pool when the last owner lets go.
//!
//! A pool belongs to one data thread and needs no lock. Buffers are allocated once, large enough
//! for the biggest frame a host device can hand over; memory that no frame ever touched costs
//! address space only. The free list is a stack, so that the buffers in use stay few and warm.

pub use crate::sys::Frame;
use crate::sys::FrameBuffers;

/// Bytes of a pool buffer: a 64 KiB packet with two VLAN tags and its Ethernet header, rounded up.
pub const BUF_LEN: usize = BUF_BYTES as usize;
const BUF_BYTES: u32 = 66 * 1024;

/// A fixed number of receive buffers.
#[derive(Debug)]
pub struct FramePool {
    buffers: FrameBuffers,
    capacity: usize,
}

impl FramePool {
    /// Allocates `capacity` buffers of [`BUF_LEN`] bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            buffers: FrameBuffers::new(capacity, BUF_BYTES),
            capacity,
        }
    }

    /// Takes a buffer, `None` when all are in use.
    #[must_use]
    #[inline]
    pub fn take(&self) -> Option<Frame> {
        self.buffers.take()
    }

    /// Buffers not in use.
    #[must_use]
    pub fn available(&self) -> usize {
        self.buffers.available()
    }

    /// Buffers in all.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
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
