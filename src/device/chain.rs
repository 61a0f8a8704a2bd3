//! Descriptor chains: from a head to ranges of guest memory, bounded and checked.
//!
//! Source: virtio 1.2, 2.7.5 "The Virtqueue Descriptor Table".

use super::ring::SplitRing;
use crate::sys::{DESCRIPTOR_LEN, Descriptor, GuestMap, GuestSlice};

/// Most descriptors of one chain, in the table and an indirect table together. The largest ring
/// that a common front-end sets up has as many; Linux stays below the ring size.
pub const CHAIN_MAX: usize = 1024;

/// `VIRTQ_DESC_F_NEXT`.
const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`.
const WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`.
const INDIRECT: u16 = 4;

/// What the device does with the buffers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads what the guest wrote: transmit.
    Readable,
    /// The device writes: receive.
    Writable,
}

/// A non-empty range of guest memory within one region, by guest physical address.
///
/// An address rather than a slice, so that a queue can keep a list of them and use it again for
/// every chain; translating it a second time is a hit on the region just used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    addr: u64,
    len: usize,
}

impl Extent {
    /// Bytes, at least 1.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never true: empty buffers make no extent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes `count` bytes off the front; all but the last at most.
    pub(super) fn advance(&mut self, count: usize) {
        let count = count.min(self.len.saturating_sub(1));
        self.addr += count as u64;
        self.len -= count;
    }

    /// The memory itself.
    #[must_use]
    pub fn slice<'a>(&self, map: &'a GuestMap) -> Option<GuestSlice<'a>> {
        map.translate(self.addr, self.len)
    }
}

/// What a walk found, beside the extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Bytes of all its buffers.
    pub bytes: u64,
    /// Entries of the descriptor table that it takes up.
    pub descriptors: u16,
}

/// What is wrong with a chain. It goes back to the guest with length 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    /// More descriptors than the ring has, or than [`CHAIN_MAX`]; also any loop.
    #[error("the chain has too many descriptors, or loops")]
    TooLong,
    /// A descriptor names a next one beyond its table.
    #[error("next descriptor {0} is beyond the table")]
    NextIndex(u16),
    /// An indirect table although the feature was not acked.
    #[error("indirect descriptors were not negotiated")]
    IndirectNotAcked,
    /// An indirect table within an indirect table.
    #[error("indirect table within an indirect table")]
    NestedIndirect,
    /// A descriptor is both indirect and not the last.
    #[error("a descriptor follows an indirect table")]
    IndirectHasNext,
    /// The size of an indirect table is 0 or no multiple of a descriptor.
    #[error("indirect table of {0} bytes")]
    IndirectLength(u32),
    /// A buffer or an indirect table does not lie in guest memory.
    #[error("a buffer at {0:#x} lies outside guest memory")]
    OutsideMemory(u64),
    /// A readable buffer where the device writes, or the other way round.
    #[error("a buffer has the wrong direction")]
    Direction,
    /// No room for a header and one byte.
    #[error("the chain has only {0} bytes")]
    TooSmall(u64),
}

/// Appends the buffers of the chain that begins at `head` to `extents`.
///
/// Every descriptor is read once. Empty buffers are skipped; a buffer that crosses into an
/// adjacent region becomes two extents.
///
/// # Errors
/// The chain is not valid; `extents` is as before.
pub fn walk(
    ring: &SplitRing,
    head: u16,
    direction: Direction,
    extents: &mut Vec<Extent>,
) -> Result<Chain, ChainFault> {
    let before = extents.len();
    let mut walker = Walker {
        map: ring.map(),
        direction,
        extents,
        left: CHAIN_MAX,
        bytes: 0,
    };
    match walker.table(ring, head) {
        Ok(descriptors) => Ok(Chain {
            bytes: walker.bytes,
            descriptors,
        }),
        Err(fault) => {
            extents.truncate(before);
            Err(fault)
        }
    }
}

struct Walker<'a> {
    map: &'a GuestMap,
    direction: Direction,
    extents: &'a mut Vec<Extent>,
    /// Descriptors that may still be read.
    left: usize,
    bytes: u64,
}

impl Walker<'_> {
    /// Follows a chain through the descriptor table. Says how many entries it takes up.
    fn table(&mut self, ring: &SplitRing, head: u16) -> Result<u16, ChainFault> {
        let mut index = head;
        for taken in 1..=ring.size() {
            let descriptor = ring.descriptor(index).ok_or(ChainFault::NextIndex(index))?;
            self.take_one()?;
            if descriptor.flags & INDIRECT != 0 {
                if !ring.allows_indirect() {
                    return Err(ChainFault::IndirectNotAcked);
                }
                if descriptor.flags & NEXT != 0 {
                    return Err(ChainFault::IndirectHasNext);
                }
                self.indirect(&descriptor)?;
                return Ok(taken);
            }
            self.buffer(&descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(taken);
            }
            index = descriptor.next;
        }
        Err(ChainFault::TooLong)
    }

    /// Follows a chain through the indirect table that `table` points to, from its entry 0.
    fn indirect(&mut self, table: &Descriptor) -> Result<(), ChainFault> {
        let bytes = table.len as usize;
        if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_LEN) {
            return Err(ChainFault::IndirectLength(table.len));
        }
        let entries = self
            .map
            .translate(table.addr, bytes)
            .ok_or(ChainFault::OutsideMemory(table.addr))?;
        let mut index = 0;
        loop {
            self.take_one()?;
            let entry = entries
                .subslice(usize::from(index) * DESCRIPTOR_LEN, DESCRIPTOR_LEN)
                .map_err(|_| ChainFault::NextIndex(index))?;
            let mut raw = [0; DESCRIPTOR_LEN];
            entry.copy_to(&mut raw);
            let descriptor = Descriptor::decode(raw);
            if descriptor.flags & INDIRECT != 0 {
                return Err(ChainFault::NestedIndirect);
            }
            self.buffer(&descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    fn take_one(&mut self) -> Result<(), ChainFault> {
        self.left = self.left.checked_sub(1).ok_or(ChainFault::TooLong)?;
        Ok(())
    }

    fn buffer(&mut self, descriptor: &Descriptor) -> Result<(), ChainFault> {
        let is_writable = descriptor.flags & WRITE != 0;
        if is_writable != (self.direction == Direction::Writable) {
            return Err(ChainFault::Direction);
        }
        let outside = ChainFault::OutsideMemory(descriptor.addr);
        let mut addr = descriptor.addr;
        let mut left = descriptor.len as usize;
        while left > 0 {
            let len = self.map.prefix(addr, left).ok_or(outside)?.len();
            self.extents.push(Extent { addr, len });
            addr = addr.checked_add(len as u64).ok_or(outside)?;
            left -= len;
        }
        self.bytes += u64::from(descriptor.len);
        Ok(())
    }
}
