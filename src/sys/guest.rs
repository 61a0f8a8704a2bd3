//! Guest memory by host address: every region translated once, looked up without a lock.
//!
//! A guest may write its memory at any time, so no reference is ever made to it: bytes move
//! through [`GuestSlice`], index fields by atomic loads and stores ([`RingArea`](super::RingArea)).
#![allow(unsafe_code, reason = "guest memory is only reachable by raw pointers")]

use std::cell::Cell;
use std::sync::Arc;

use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::prefetch::{LINE, Purpose, prefetch};

/// A range of guest memory, valid as long as the borrow of the map it came from.
pub type GuestSlice<'a> = vm_memory::VolatileSlice<'a>;

/// One mapped region.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Guest physical address of its first byte.
    start: u64,
    /// Bytes, at least 1.
    len: u64,
    /// Where that first byte is mapped.
    host: *mut u8,
}

/// The guest's memory as one data thread sees it.
///
/// Holds the mapping, so a slice that borrows from the map can not outlive it. Belongs to one
/// thread (it remembers the region of the last look-up); each thread makes its own.
#[derive(Debug)]
pub struct GuestMap {
    /// Sorted by address, without overlap.
    regions: Box<[Region]>,
    last_hit: Cell<usize>,
    memory: Arc<GuestMemoryMmap>,
}

impl GuestMap {
    /// Looks up where each region of `memory` is mapped.
    #[must_use]
    pub fn new(memory: Arc<GuestMemoryMmap>) -> Self {
        // A collection keeps its regions sorted by address and refuses overlaps.
        let regions = memory
            .iter()
            .filter(|region| region.len() > 0)
            .map(|region| Region {
                start: region.start_addr().raw_value(),
                len: region.len(),
                host: region.as_ptr(),
            })
            .collect();
        Self {
            regions,
            last_hit: Cell::new(0),
            memory,
        }
    }

    /// The memory behind the map.
    #[must_use]
    pub const fn memory(&self) -> &Arc<GuestMemoryMmap> {
        &self.memory
    }

    /// The `len` bytes from guest address `gpa` on; `None` unless all of them lie in one region.
    #[must_use]
    pub fn translate(&self, gpa: u64, len: usize) -> Option<GuestSlice<'_>> {
        self.prefix(gpa, len).filter(|slice| slice.len() == len)
    }

    /// The bytes from guest address `gpa` on, at most `len` and as far as the region goes that
    /// `gpa` lies in; `None` when it lies in no region.
    ///
    /// A buffer that crosses into an adjacent region is seen whole by going on behind the prefix.
    #[must_use]
    pub fn prefix(&self, gpa: u64, len: usize) -> Option<GuestSlice<'_>> {
        let (region, offset) = self.find(gpa)?;
        // Both conversions hold: a mapping is never larger than the address space.
        let left = usize::try_from(region.len - offset).ok()?;
        let offset = usize::try_from(offset).ok()?;
        let host = region.host.wrapping_add(offset);
        // SAFETY: `offset + left` is the length of the mapping at `region.host`, which `memory`
        // keeps alive for as long as `self` is borrowed. All access goes through such slices or
        // atomics.
        Some(unsafe { GuestSlice::new(host, left.min(len)) })
    }

    /// Asks for the first `len` bytes from guest address `gpa` on ahead of their use, as far as they
    /// are memory. `gpa` may be anything: nothing follows from it but a hint.
    pub fn prefetch(&self, gpa: u64, len: usize, purpose: Purpose) {
        if let Some(slice) = self.prefix(gpa, len) {
            let start = slice.ptr_guard().as_ptr();
            for at in (0..slice.len()).step_by(LINE) {
                prefetch(start.wrapping_add(at), purpose);
            }
        }
    }

    /// The region around `gpa`, and how far behind its start `gpa` lies.
    fn find(&self, gpa: u64) -> Option<(&Region, u64)> {
        let within = |region: &Region| {
            let offset = gpa.checked_sub(region.start)?;
            (offset < region.len).then_some(offset)
        };
        let hit = self.regions.get(self.last_hit.get())?;
        if let Some(offset) = within(hit) {
            return Some((hit, offset));
        }
        let index = self
            .regions
            .partition_point(|region| region.start <= gpa)
            .checked_sub(1)?;
        let region = self.regions.get(index)?;
        let offset = within(region)?;
        self.last_hit.set(index);
        Some((region, offset))
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    /// Two adjacent regions, a hole, and a last one.
    fn map() -> GuestMap {
        let ranges = [(0x1000, 0x1000), (0x2000, 0x1000), (0x8000, 0x1000)]
            .map(|(start, len)| (GuestAddress(start), len));
        GuestMap::new(Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap()))
    }

    #[test]
    fn f45_only_ranges_within_one_region_translate() {
        let map = map();
        for (gpa, len, whole) in [
            (0x1000, 0x1000, true),
            (0x1fff, 1, true),
            (0x1fff, 2, false),
            (0x8fff, 1, true),
            (0x8fff, 2, false),
            (0x0fff, 1, false),
            (0x3000, 1, false),
            (0x9000, 0, false),
            (u64::MAX, 1, false),
            (u64::MAX - 7, 16, false),
            (0x8000, usize::MAX, false),
        ] {
            assert_eq!(map.translate(gpa, len).is_some(), whole, "{gpa:#x}+{len}");
        }
    }

    #[test]
    fn f45_a_prefix_ends_where_its_region_does() {
        let map = map();
        assert_eq!(map.prefix(0x1ff0, 0x20).map(|s| s.len()), Some(0x10));
        assert_eq!(map.prefix(0x2000, 0x10).map(|s| s.len()), Some(0x10));
        assert!(map.prefix(0x3000, 0x10).is_none());
    }

    #[test]
    fn a_slice_is_the_memory_at_its_address() {
        let map = map();
        for gpa in [0x8123, 0x1ffc, 0x2000] {
            map.translate(gpa, 4).unwrap().copy_from(b"gpa!");
            let mut seen = [0; 4];
            let memory = map.memory();
            memory.read_slice(&mut seen, GuestAddress(gpa)).unwrap();
            assert_eq!(&seen, b"gpa!");
        }
    }

    #[test]
    fn a_map_without_regions_translates_nothing() {
        let map = GuestMap::new(Arc::new(GuestMemoryMmap::new()));
        assert!(map.translate(0, 0).is_none());
    }
}
