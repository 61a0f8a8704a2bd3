//! Where held packets are: eight buckets of eight, each ordered by age (rules ENG-1 to ENG-5).

use alloc::boxed::Box;

use super::flow::{AddressPair, FlowKey};
use super::packet::HeldPacket;
use crate::time::Instant;

/// Number of buckets.
///
/// Source: `GRO_HASH_BUCKETS`, `include/linux/netdevice.h`.
pub(super) const BUCKETS: usize = 8;
/// Held packets per bucket.
///
/// Source: `MAX_GRO_SKBS`, `net/core/gro.c`.
pub(super) const PER_BUCKET: usize = 8;

/// Where a flow belongs: its bucket, and a tag that tells most flows of a bucket apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) bucket: u8,
    pub(super) tag: u32,
}

/// Where a held packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    bucket: u8,
    entry: u8,
}

/// Slot numbers from oldest to youngest, one byte each, the oldest in the lowest byte.
#[derive(Clone, Copy, Debug, Default)]
struct Ages {
    order: u64,
    len: u32,
}

impl Ages {
    const fn oldest(self) -> Option<u8> {
        self.nth(0)
    }

    const fn nth(self, rank: u32) -> Option<u8> {
        if rank >= self.len {
            return None;
        }
        Some((self.order >> (8 * rank) & 0xff) as u8)
    }

    const fn push(&mut self, entry: u8) {
        if self.len < 8 {
            self.order |= (entry as u64) << (8 * self.len);
            self.len += 1;
        }
    }

    fn remove(&mut self, entry: u8) {
        let Some(rank) = (0..self.len).find(|rank| self.nth(*rank) == Some(entry)) else {
            return;
        };
        let younger = u64::MAX << (8 * rank);
        self.order = (self.order & !younger) | (self.order >> 8 & younger);
        self.len -= 1;
    }
}

struct Bucket<B> {
    /// Tags of the entries; that of an empty entry means nothing.
    tags: [u32; PER_BUCKET],
    /// One bit per entry.
    used: u8,
    ages: Ages,
    entries: [Option<HeldPacket<B>>; PER_BUCKET],
}

impl<B> Bucket<B> {
    fn new() -> Self {
        Self {
            tags: [0; PER_BUCKET],
            used: 0,
            ages: Ages::default(),
            entries: [const { None }; PER_BUCKET],
        }
    }

    #[inline]
    fn find(&self, tag: u32, key: &FlowKey) -> Option<u8> {
        let mut hits = 0_u8;
        for (entry, held_tag) in self.tags.iter().enumerate() {
            hits |= u8::from(*held_tag == tag) << entry;
        }
        hits &= self.used;
        while hits != 0 {
            let entry = lowest_bit(hits);
            if self.entry(entry).is_some_and(|held| held.key == *key) {
                return Some(entry);
            }
            hits &= hits - 1;
        }
        None
    }

    #[inline]
    fn entry(&self, entry: u8) -> Option<&HeldPacket<B>> {
        self.entries.get(usize::from(entry))?.as_ref()
    }

    fn oldest(&self) -> Option<&HeldPacket<B>> {
        self.entry(self.ages.oldest()?)
    }
}

/// All held packets of an engine.
pub(super) struct Table<B> {
    buckets: Box<[Bucket<B>; BUCKETS]>,
    /// One bit per bucket that holds something.
    occupied: u8,
    held: usize,
}

impl<B> Table<B> {
    pub(super) fn new() -> Self {
        Self {
            buckets: Box::new(core::array::from_fn(|_| Bucket::new())),
            occupied: 0,
            held: 0,
        }
    }

    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Finds the packet of a flow. There is at most one.
    #[inline]
    pub(super) fn find(&self, home: Home, key: &FlowKey) -> Option<Slot> {
        let entry = self.bucket(home.bucket)?.find(home.tag, key)?;
        Some(Slot {
            bucket: home.bucket,
            entry,
        })
    }

    /// Finds any packet between two hosts.
    pub(super) fn find_between(&self, pair: &AddressPair) -> Option<Slot> {
        self.slots().find(|slot| {
            self.get(*slot)
                .is_some_and(|held| held.key.is_between(pair))
        })
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot) -> Option<&HeldPacket<B>> {
        self.bucket(slot.bucket)?.entry(slot.entry)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut HeldPacket<B>> {
        self.buckets
            .get_mut(usize::from(slot.bucket))?
            .entries
            .get_mut(usize::from(slot.entry))?
            .as_mut()
    }

    /// The packet that has to leave before another can be held in this bucket.
    #[inline]
    pub(super) fn evictee(&self, bucket: u8) -> Option<Slot> {
        let full = self.bucket(bucket)?;
        (full.used == u8::MAX)
            .then(|| full.ages.oldest())
            .flatten()
            .map(|entry| Slot { bucket, entry })
    }

    /// Holds a packet as the youngest of its bucket. Gives it back if the bucket is full.
    #[inline]
    pub(super) fn insert(&mut self, home: Home, held: HeldPacket<B>) -> Result<(), HeldPacket<B>> {
        let Some(bucket) = self.buckets.get_mut(usize::from(home.bucket)) else {
            return Err(held);
        };
        let entry = lowest_bit(!bucket.used);
        let place = usize::from(entry);
        let (Some(tag), Some(empty)) = (bucket.tags.get_mut(place), bucket.entries.get_mut(place))
        else {
            return Err(held);
        };
        *tag = home.tag;
        *empty = Some(held);
        bucket.used |= 1 << entry;
        bucket.ages.push(entry);
        self.occupied |= 1 << home.bucket;
        self.held += 1;
        Ok(())
    }

    /// Takes a packet out.
    #[inline]
    pub(super) fn remove(&mut self, slot: Slot) -> Option<HeldPacket<B>> {
        let bucket = self.buckets.get_mut(usize::from(slot.bucket))?;
        let held = bucket.entries.get_mut(usize::from(slot.entry))?.take()?;
        bucket.used &= !(1 << slot.entry);
        bucket.ages.remove(slot.entry);
        if bucket.used == 0 {
            self.occupied &= !(1 << slot.bucket);
        }
        self.held -= 1;
        Some(held)
    }

    /// The next packet of a flush (ENG-5): of the first bucket from `from` on whose oldest is at
    /// most as young as `newest`, that oldest.
    pub(super) fn next_flushed(&self, from: u8, newest: Instant) -> Option<Slot> {
        (from..BUCKETS as u8).find_map(|bucket| {
            if self.occupied & 1 << bucket == 0 {
                return None;
            }
            let entry = self.bucket(bucket)?.ages.oldest()?;
            let slot = Slot { bucket, entry };
            (self.get(slot)?.created <= newest).then_some(slot)
        })
    }

    /// The packet that was created first (ENG-7).
    pub(super) fn oldest(&self) -> Option<(Slot, Instant)> {
        (0..BUCKETS as u8)
            .filter_map(|bucket| {
                let full = self.bucket(bucket)?;
                let entry = full.ages.oldest()?;
                Some((Slot { bucket, entry }, full.oldest()?.created))
            })
            .min_by_key(|(_, created)| *created)
    }

    /// All used slots in the order of a flush.
    fn slots(&self) -> impl Iterator<Item = Slot> {
        (0_u8..)
            .zip(self.buckets.iter())
            .flat_map(|(bucket, full)| {
                (0..full.ages.len)
                    .filter_map(move |rank| full.ages.nth(rank))
                    .map(move |entry| Slot { bucket, entry })
            })
    }

    #[inline]
    fn bucket(&self, bucket: u8) -> Option<&Bucket<B>> {
        self.buckets.get(usize::from(bucket))
    }
}

impl Slot {
    pub(super) const fn bucket(self) -> u8 {
        self.bucket
    }
}

#[inline]
const fn lowest_bit(bits: u8) -> u8 {
    bits.trailing_zeros() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_keep_order_when_any_entry_leaves() {
        for leaving in 0..8 {
            let mut ages = Ages::default();
            (0..8).for_each(|entry| ages.push(entry));
            ages.remove(leaving);
            ages.push(leaving);
            let order: Vec<_> = (0..8).filter_map(|rank| ages.nth(rank)).collect();
            let expected: Vec<_> = (0..8)
                .filter(|entry| *entry != leaving)
                .chain([leaving])
                .collect();
            assert_eq!(order, expected);
            assert_eq!(ages.nth(8), None);
        }
    }
}
