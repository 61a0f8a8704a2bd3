//! Descriptor chains: from a head to ranges of guest memory, bounded and checked.
//!
//! Source: virtio 1.2, 2.7.5 "The Virtqueue Descriptor Table".

use super::ring::SplitRing;
use crate::sys::{DESCRIPTOR_LEN, Descriptor, GuestMap, GuestSlice};

/// Most buffers of one chain, those of an indirect table included. The largest ring that a common
/// front-end sets up has as many descriptors.
pub const CHAIN_MAX: usize = 1024;

/// `VIRTQ_DESC_F_NEXT`.
const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`.
pub(super) const WRITE: u16 = 2;
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
    /// More descriptors than the ring has, or more buffers than [`CHAIN_MAX`]; also any loop.
    #[error("the chain is too long, or loops")]
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
    /// Buffers and parts of buffers that may still come.
    left: usize,
    bytes: u64,
}

impl Walker<'_> {
    /// Follows a chain through the descriptor table. Says how many entries it takes up.
    fn table(&mut self, ring: &SplitRing, head: u16) -> Result<u16, ChainFault> {
        let mut index = head;
        for taken in 1..=ring.size() {
            let Some(descriptor) = ring.descriptor(index) else {
                return Err(ChainFault::NextIndex(index));
            };
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

    fn buffer(&mut self, descriptor: &Descriptor) -> Result<(), ChainFault> {
        self.count_one()?;
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
            if left > 0 {
                // A buffer over hundreds of regions must not cost more than as many buffers.
                self.count_one()?;
            }
        }
        self.bytes += u64::from(descriptor.len);
        Ok(())
    }

    fn count_one(&mut self) -> Result<(), ChainFault> {
        self.left = self.left.checked_sub(1).ok_or(ChainFault::TooLong)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver_model::{
        self as model, Desc, Driver, INDIRECT as I, NEXT as N, Part, WRITE as W,
    };
    use super::super::{Features, rig};
    use super::*;

    const RX: Direction = Direction::Writable;

    fn desc(addr: u64, len: u32, flags: u16, next: u16) -> Desc {
        Desc {
            addr,
            len,
            flags,
            next,
        }
    }

    /// Walks the receive chain at `head`; what was in the list before must stay.
    fn walk_rx(driver: &Driver, head: u16) -> Result<(Chain, Vec<Extent>), ChainFault> {
        let ring = rig::ring(driver, rig::all_features());
        let sentinel = Extent { addr: 9, len: 9 };
        let mut extents = vec![sentinel];
        let result = walk(&ring, head, RX, &mut extents);
        assert_eq!(extents.remove(0), sentinel);
        if result.is_err() {
            assert_eq!(extents, [], "a bad chain leaves nothing behind");
        }
        result.map(|chain| (chain, extents))
    }

    /// The verdict on a chain of these descriptors, which begins at the first.
    fn verdict(size: u16, descs: &[Desc]) -> Option<ChainFault> {
        let driver = Driver::new(size, 0);
        for (index, &desc) in descs.iter().enumerate() {
            driver.write_desc(u16::try_from(index).unwrap(), desc);
        }
        walk_rx(&driver, 0).err()
    }

    /// `count` descriptors of one byte each, chained.
    fn row(count: u16) -> Vec<Desc> {
        (1..=count)
            .map(|next| desc(0x100, 1, if next == count { W } else { W | N }, next))
            .collect()
    }

    #[test]
    fn buffers_come_in_chain_order_and_empty_ones_are_skipped() {
        let driver = Driver::new(8, 0);
        driver.write_desc(3, desc(0x100, 5, W | N, 1));
        driver.write_desc(1, desc(0x200, 0, W | N, 7));
        driver.write_desc(7, desc(0x300, 2, W, 0xffff));
        let (chain, extents) = walk_rx(&driver, 3).unwrap();
        let expected = [(0x100, 5), (0x300, 2)].map(|(addr, len)| Extent { addr, len });
        assert_eq!(extents, expected);
        assert_eq!((chain.bytes, chain.descriptors), (7, 3));
    }

    #[test]
    fn an_indirect_table_may_follow_direct_buffers() {
        let mut driver = Driver::new(8, 0);
        let table = driver.alloc(32);
        driver.write(table, &model::encode(desc(0x300, 3, W | N, 1)));
        driver.write(table + 16, &model::encode(desc(0x400, 4, W, 0)));
        driver.write_desc(0, desc(0x100, 1, W | N, 1));
        // The device ignores the write flag of the table itself.
        driver.write_desc(1, desc(table, 32, W | I, 0));
        let (chain, extents) = walk_rx(&driver, 0).unwrap();
        assert_eq!(
            extents.iter().map(Extent::len).collect::<Vec<_>>(),
            [1, 3, 4]
        );
        assert_eq!((chain.bytes, chain.descriptors), (8, 2));
    }

    #[test]
    fn f44_loops_end() {
        let too_long = Some(ChainFault::TooLong);
        assert_eq!(verdict(8, &[desc(0x100, 1, W | N, 0)]), too_long);
        let pair = [desc(0x100, 0, W | N, 1), desc(0x100, 0, W | N, 0)];
        assert_eq!(verdict(8, &pair), too_long);
        assert_eq!(verdict(32768, &pair), too_long);
    }

    #[test]
    fn f44_a_chain_may_be_as_long_as_the_ring() {
        assert_eq!(verdict(8, &row(8)), None);
        let mut long = row(8);
        long[7].flags |= N;
        assert_eq!(verdict(8, &long), Some(ChainFault::TooLong));
    }

    #[test]
    fn f44_no_descriptor_beyond_the_table_is_read() {
        let chain = [desc(0x100, 1, W | N, 8)];
        assert_eq!(verdict(8, &chain), Some(ChainFault::NextIndex(8)));
    }

    #[test]
    fn f44_no_chain_may_be_longer_than_the_documented_bound() {
        assert_eq!(verdict(2048, &row(1024)), None);
        assert_eq!(verdict(2048, &row(1025)), Some(ChainFault::TooLong));
        for (entries, expected) in [(1024, None), (1025, Some(ChainFault::TooLong))] {
            let mut driver = Driver::new(8, 0);
            let parts = vec![
                Part {
                    addr: 0x100,
                    len: 1,
                    is_writable: true,
                };
                entries
            ];
            let head = driver.post_indirect(&parts).unwrap();
            assert_eq!(walk_rx(&driver, head).err(), expected, "{entries}");
        }
    }

    #[test]
    fn f44_bad_indirect_tables_are_refused() {
        let mut driver = Driver::new(8, 0);
        let table = driver.alloc(32);
        for (inner, outer, fault) in [
            (
                desc(table, 16, I, 0),
                desc(table, 32, I, 0),
                ChainFault::NestedIndirect,
            ),
            (
                desc(0x100, 1, W | N, 2),
                desc(table, 32, I, 0),
                ChainFault::NextIndex(2),
            ),
            (
                desc(0x100, 0, W | N, 0),
                desc(table, 32, I, 0),
                ChainFault::TooLong,
            ),
            (
                desc(0x100, 1, W, 0),
                desc(table, 32, I | N, 1),
                ChainFault::IndirectHasNext,
            ),
            (
                desc(0x100, 1, W, 0),
                desc(table, 0, I, 0),
                ChainFault::IndirectLength(0),
            ),
            (
                desc(0x100, 1, W, 0),
                desc(table, 24, I, 0),
                ChainFault::IndirectLength(24),
            ),
            (
                desc(0x100, 1, W, 0),
                desc(u64::MAX - 15, 32, I, 0),
                ChainFault::OutsideMemory(u64::MAX - 15),
            ),
        ] {
            driver.write(table, &model::encode(inner));
            driver.write_desc(0, outer);
            assert_eq!(walk_rx(&driver, 0).err(), Some(fault));
        }
    }

    #[test]
    fn an_indirect_table_needs_the_feature() {
        let mut driver = Driver::new(8, 0);
        let parts = driver.parts(&[1], true);
        let head = driver.post_indirect(&parts).unwrap();
        let ring = rig::ring(&driver, Features::VERSION_1);
        let result = walk(&ring, head, RX, &mut Vec::new());
        assert_eq!(result, Err(ChainFault::IndirectNotAcked));
    }

    #[test]
    fn a_buffer_of_the_wrong_direction_is_refused() {
        let wrong = Some(ChainFault::Direction);
        let chain = [desc(0x100, 1, W | N, 1), desc(0x100, 1, 0, 0)];
        assert_eq!(verdict(8, &chain), wrong);
        let driver = Driver::new(8, 0);
        driver.write_desc(0, desc(0x100, 1, W, 0));
        let ring = rig::ring(&driver, rig::all_features());
        let result = walk(&ring, 0, Direction::Readable, &mut Vec::new());
        assert_eq!(result.err(), wrong);
    }

    #[test]
    fn f44_parts_in_many_regions_count_like_buffers() {
        const FAR: u64 = 1 << 32;
        const REGIONS: u16 = 64;
        let regions: Vec<_> = (0..u64::from(REGIONS))
            .map(|at| (FAR + at * 0x1000, 0x1000))
            .collect();
        let driver = Driver::with_regions(64, 0, &regions);
        let all = u32::from(REGIONS) * 0x1000;
        let fits = u16::try_from(CHAIN_MAX).unwrap() / REGIONS;
        for (buffers, result) in [(fits, Ok(fits)), (fits + 1, Err(ChainFault::TooLong))] {
            for index in 0..buffers {
                let next = if index + 1 < buffers { N } else { 0 };
                driver.write_desc(index, desc(FAR, all, W | next, index + 1));
            }
            let ring = rig::ring(&driver, rig::all_features());
            let walked = walk(&ring, 0, RX, &mut Vec::new());
            assert_eq!(walked.map(|chain| chain.descriptors), result);
        }
    }

    #[test]
    fn f45_buffers_at_the_edges_of_regions() {
        const FAR: u64 = 1 << 32;
        // Two adjacent regions, then a hole, then another one.
        let regions = [
            (FAR, 0x1000),
            (FAR + 0x1000, 0x1000),
            (FAR + 0x4000, 0x1000),
        ];
        let driver = Driver::with_regions(8, 0, &regions);
        for (addr, len, expected) in [
            (FAR, 1, Some(&[1][..])),
            (FAR + 0x1fff, 1, Some(&[1])),
            (FAR + 0xfff, 2, Some(&[1, 1])),
            (FAR, 0x2000, Some(&[0x1000, 0x1000])),
            (FAR, 0x2001, None),
            (FAR + 0x1fff, 2, None),
            (FAR + 0x3fff, 2, None),
            (FAR + 0x2000, 1, None),
            (FAR + 0x4fff, u32::MAX, None),
            (u64::MAX, 1, None),
            (u64::MAX - 1, 4, None),
        ] {
            driver.write_desc(0, desc(addr, len, W, 0));
            let seen = walk_rx(&driver, 0);
            let lens = seen.map(|(_, extents)| extents.iter().map(Extent::len).collect::<Vec<_>>());
            match expected {
                Some(expected) => assert_eq!(lens.unwrap(), expected, "{addr:#x}+{len:#x}"),
                None => assert_eq!(lens, Err(ChainFault::OutsideMemory(addr))),
            }
        }
    }
}
