//! Where held packets are: eight buckets of eight, each ordered by age (rules ENG-1 to ENG-5).

use super::flow::{AddressPair, FlowKey};
use super::packet::{FrameBytes, HeldPacket};
use super::store::{PacketId, Store};
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
    bucket: u8,
    tag: u8,
}

impl Home {
    /// ENG-2: the bucket is `bucket` modulo their number; the tag comes from other bits of `hash`.
    #[inline]
    pub(super) const fn new(bucket: u64, hash: u64) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "three bits for the bucket, the highest eight for the tag"
        )]
        Self {
            bucket: (bucket % BUCKETS as u64) as u8,
            tag: (hash >> 56) as u8,
        }
    }
}

/// Where a held packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot(u8);

impl Slot {
    #[inline]
    const fn new(bucket: u8, entry: u8) -> Self {
        Self(bucket << 3 | entry)
    }

    #[inline]
    pub(super) const fn bucket(self) -> u8 {
        self.0 >> 3
    }

    #[inline]
    const fn entry(self) -> u8 {
        self.0 & 7
    }
}

/// Entry numbers from oldest to youngest, one byte each, the oldest in the lowest byte.
#[derive(Clone, Copy, Debug, Default)]
struct Ages {
    order: u64,
    len: u8,
}

impl Ages {
    const fn nth(self, rank: u8) -> Option<u8> {
        if rank >= self.len {
            return None;
        }
        Some(self.order.to_le_bytes()[rank as usize % PER_BUCKET])
    }

    const fn oldest(self) -> Option<u8> {
        self.nth(0)
    }

    fn push(&mut self, entry: u8) {
        if usize::from(self.len) < PER_BUCKET {
            self.order |= u64::from(entry) << (8 * self.len);
            self.len += 1;
        }
    }

    #[inline(always)]
    fn remove(&mut self, entry: u8) {
        if self.oldest() == Some(entry) {
            self.order >>= 8;
            self.len -= 1;
            return;
        }
        let ranks = equal_bytes(self.order.to_le_bytes(), entry);
        let rank = lowest_bit(ranks);
        if rank >= self.len {
            return;
        }
        let from_here = u64::MAX << (8 * rank);
        self.order = (self.order & !from_here) | (self.order >> 8 & from_here);
        self.len -= 1;
    }
}

/// Which entries of a bucket are used, and in what order they came.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// One byte per entry; that of an empty entry means nothing.
    tags: [u8; PER_BUCKET],
    /// One bit per entry.
    used: u8,
    ages: Ages,
}

impl Bucket {
    /// Takes an empty entry for a new packet.
    #[inline(always)]
    fn take(&mut self, tag: u8) -> u8 {
        let entry = lowest_bit(!self.used) & 7;
        self.tags[usize::from(entry)] = tag;
        self.used |= 1 << entry;
        self.ages.push(entry);
        entry
    }

    /// Empties an entry; false if it was empty.
    #[inline(always)]
    fn give_back(&mut self, entry: u8) -> bool {
        let is_used = self.used & 1 << entry != 0;
        self.used &= !(1 << entry);
        self.ages.remove(entry);
        is_used
    }
}

/// A held packet, as the table knows it.
#[derive(Clone, Copy)]
struct Entry {
    id: PacketId,
    /// Arrival of its first frame; merging does not make a packet younger (ENG-4).
    created: Instant,
}

impl Entry {
    const EMPTY: Self = Self {
        id: PacketId::NONE,
        created: Instant::ZERO,
    };
}

/// All held packets of an engine.
pub(super) struct Table {
    buckets: [Bucket; BUCKETS],
    entries: [Entry; BUCKETS * PER_BUCKET],
    held: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            buckets: [Bucket::default(); BUCKETS],
            entries: [Entry::EMPTY; BUCKETS * PER_BUCKET],
            held: 0,
        }
    }

    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Finds the packet of a flow. There is at most one.
    #[inline(always)]
    pub(super) fn find<B: FrameBytes>(
        &self,
        store: &Store<B>,
        home: Home,
        key: &FlowKey,
    ) -> Option<PacketId> {
        let bucket = self.bucket(home.bucket);
        let mut hits = equal_bytes(bucket.tags, home.tag) & bucket.used;
        while hits != 0 {
            let id = self.entry(Slot::new(home.bucket, lowest_bit(hits))).id;
            if store.get(id).is_some_and(|held| held.key() == Some(*key)) {
                return Some(id);
            }
            hits &= hits - 1;
        }
        None
    }

    /// Finds any packet between two hosts, the next one of a flush first.
    pub(super) fn find_between<B: FrameBytes>(
        &self,
        store: &Store<B>,
        pair: &AddressPair,
    ) -> Option<Slot> {
        (0_u8..)
            .zip(&self.buckets)
            .flat_map(|(number, bucket)| {
                let entries = (0..bucket.ages.len).filter_map(|rank| bucket.ages.nth(rank));
                entries.map(move |entry| Slot::new(number, entry))
            })
            .find(|slot| {
                let held = store.get(self.entry(*slot).id);
                let key = held.and_then(HeldPacket::key);
                key.is_some_and(|key| key.is_between(pair))
            })
    }

    /// The packet that has to leave before another can be held (ENG-3).
    #[inline(always)]
    pub(super) fn evictee(&self, home: Home) -> Option<Slot> {
        let bucket = self.bucket(home.bucket);
        if bucket.used != u8::MAX {
            return None;
        }
        Some(Slot::new(home.bucket, bucket.ages.oldest()?))
    }

    /// Holds a packet as the youngest of its bucket, which has room.
    #[inline(always)]
    pub(super) fn insert(&mut self, home: Home, id: PacketId, created: Instant) -> Slot {
        let entry = self.bucket_mut(home.bucket).take(home.tag);
        let slot = Slot::new(home.bucket, entry);
        self.entries[usize::from(slot.0) % (BUCKETS * PER_BUCKET)] = Entry { id, created };
        self.held += 1;
        slot
    }

    /// Takes a packet out.
    #[inline(always)]
    pub(super) fn remove(&mut self, slot: Slot) -> Option<PacketId> {
        let bucket = self.bucket_mut(slot.bucket());
        if !bucket.give_back(slot.entry()) {
            return None;
        }
        self.held -= 1;
        Some(self.entry(slot).id)
    }

    /// The next packet of a flush (ENG-5): of the first bucket from `from` on whose oldest was
    /// created at `newest` or before, that oldest.
    pub(super) fn next_flushed(&self, from: u8, newest: Instant) -> Option<Slot> {
        self.oldest_of_each()
            .skip(usize::from(from))
            .flatten()
            .find(|(_, created)| *created <= newest)
            .map(|(slot, _)| slot)
    }

    /// The packet that was created first (ENG-7).
    pub(super) fn oldest(&self) -> Option<(Slot, Instant)> {
        self.oldest_of_each()
            .flatten()
            .min_by_key(|(_, created)| *created)
    }

    /// The oldest packet of each bucket with its creation time.
    fn oldest_of_each(&self) -> impl Iterator<Item = Option<(Slot, Instant)>> {
        (0_u8..).zip(&self.buckets).map(|(number, bucket)| {
            let slot = Slot::new(number, bucket.ages.oldest()?);
            Some((slot, self.entry(slot).created))
        })
    }

    #[inline]
    const fn bucket(&self, bucket: u8) -> &Bucket {
        &self.buckets[bucket as usize % BUCKETS]
    }

    #[inline]
    const fn bucket_mut(&mut self, bucket: u8) -> &mut Bucket {
        &mut self.buckets[bucket as usize % BUCKETS]
    }

    /// What the table knows of a slot; of an empty one it means nothing.
    #[inline]
    const fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[slot.0 as usize % (BUCKETS * PER_BUCKET)]
    }
}

/// One bit for each byte that equals `wanted`, found in all bytes at once.
#[inline]
const fn equal_bytes(bytes: [u8; 8], wanted: u8) -> u8 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let differing = u64::from_le_bytes(bytes) ^ (LOW * wanted as u64);
    // The high bit of each byte that is zero.
    let zero = !(((differing & SEVEN) + SEVEN) | differing | SEVEN);
    // Gathers those bits in the highest byte, the one of byte 0 as the lowest.
    #[allow(clippy::cast_possible_truncation, reason = "one byte is left")]
    {
        ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "at most 8")]
const fn lowest_bit(bits: u8) -> u8 {
    bits.trailing_zeros() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_are_found_wherever_they_are() {
        for pattern in 0..=255_u8 {
            for (wanted, other) in [(0, 1), (1, 0), (0x80, 0), (0xff, 0x7f), (7, 0x87)] {
                let bytes = core::array::from_fn(|at| {
                    if pattern & 1 << at == 0 {
                        other
                    } else {
                        wanted
                    }
                });
                assert_eq!(equal_bytes(bytes, wanted), pattern);
            }
        }
    }

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
