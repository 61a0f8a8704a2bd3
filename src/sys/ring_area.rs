//! The three parts of a split ring, at fixed host addresses.
//!
//! Source: virtio 1.2, 2.7 "Split Virtqueues".
#![allow(
    unsafe_code,
    reason = "ring fields are shared with the guest and read at raw addresses"
)]

use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::prefetch::{Purpose, prefetch};
use super::{GuestMap, GuestSlice};

/// Bytes of one descriptor.
pub const DESCRIPTOR_LEN: usize = 16;
/// Bytes of one used element.
const USED_ELEMENT_LEN: usize = 8;

/// One descriptor, read once; nothing in it is to be trusted.
///
/// Source: `struct virtq_desc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest physical address of the buffer.
    pub addr: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// `VIRTQ_DESC_F_*`.
    pub flags: u16,
    /// Index of the next descriptor, where the flags say that there is one.
    pub next: u16,
}

impl Descriptor {
    /// Reads the fields from their wire form.
    #[must_use]
    pub fn decode(bytes: [u8; DESCRIPTOR_LEN]) -> Self {
        let word = u128::from_le_bytes(bytes);
        #[allow(clippy::cast_possible_truncation, reason = "each half is cut out")]
        Self::from_halves([word as u64, (word >> 64) as u64])
    }

    /// Cuts the fields out of the two halves of a descriptor.
    const fn from_halves([addr, rest]: [u64; 2]) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "each field is cut out")]
        Self {
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        }
    }
}

/// Descriptor table, available ring and used ring of one queue.
///
/// Slots are taken modulo the size of the ring, so no index can leave the area.
#[derive(Debug)]
pub struct RingArea {
    size: u16,
    /// `size` descriptors.
    desc: *mut u8,
    /// `flags`, `idx`, `ring[size]`, `used_event`: `3 + size` words, aligned to 2.
    avail: *mut u16,
    /// `flags`, `idx`, `ring[size]`, `avail_event`, aligned to 4.
    used: *mut u16,
    /// Keeps the mapping.
    _map: Rc<GuestMap>,
}

impl RingArea {
    /// Finds the three parts by guest physical address; `None` when the size is no power of two,
    /// a part does not lie in one region or is not aligned.
    #[must_use]
    pub fn new(map: &Rc<GuestMap>, size: u16, desc: u64, avail: u64, used: u64) -> Option<Self> {
        if !size.is_power_of_two() {
            return None;
        }
        let entries = usize::from(size);
        let desc = map.translate(desc, entries * DESCRIPTOR_LEN)?;
        let avail = map.translate(avail, 6 + entries * 2)?;
        let used = map.translate(used, 6 + entries * USED_ELEMENT_LEN)?;
        Some(Self {
            size,
            desc: start(&desc, 16)?,
            avail: start(&avail, 2)?.cast(),
            used: start(&used, 4)?.cast(),
            _map: Rc::clone(map),
        })
    }

    /// Entries of the ring, a power of two.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// `avail.flags`.
    #[must_use]
    pub fn avail_flags(&self) -> u16 {
        u16::from_le(self.avail_word(0).load(Ordering::Relaxed))
    }

    /// `avail.idx`; what the guest wrote before it is visible behind this load.
    #[must_use]
    pub fn avail_idx(&self) -> u16 {
        u16::from_le(self.avail_word(1).load(Ordering::Acquire))
    }

    /// `avail.ring[position % size]`.
    #[must_use]
    pub fn avail_head(&self, position: u16) -> u16 {
        let word = 2 + self.slot(position);
        u16::from_le(self.avail_word(word).load(Ordering::Relaxed))
    }

    /// `avail.used_event`.
    #[must_use]
    pub fn used_event(&self) -> u16 {
        let word = 2 + usize::from(self.size);
        u16::from_le(self.avail_word(word).load(Ordering::Relaxed))
    }

    /// The descriptor with this index, `None` beyond the table.
    #[must_use]
    pub fn descriptor(&self, index: u16) -> Option<Descriptor> {
        if index >= self.size {
            return None;
        }
        let at = usize::from(index) * 2;
        let halves = [at, at + 1].map(|half| self.desc_half(half).load(Ordering::Relaxed));
        Some(Descriptor::from_halves(halves.map(u64::from_le)))
    }

    /// Asks for the descriptor with this index ahead of its use; nothing happens beyond the table.
    pub fn prefetch_descriptor(&self, index: u16) {
        if index < self.size {
            let at = usize::from(index) * DESCRIPTOR_LEN;
            prefetch(self.desc.wrapping_add(at), Purpose::Read);
        }
    }

    /// Writes `used.ring[position % size]`. Not seen by the guest until
    /// [`publish_used`](Self::publish_used).
    pub fn write_used(&self, position: u16, head: u16, len: u32) {
        let word = self.slot(position) * (USED_ELEMENT_LEN / 4);
        self.used_element(word)
            .store(u32::from(head).to_le(), Ordering::Relaxed);
        self.used_element(word + 1)
            .store(len.to_le(), Ordering::Relaxed);
    }

    /// Asks for `used.ring[position % size]` ahead of its being written.
    pub fn prefetch_used(&self, position: u16) {
        let at = 4 + self.slot(position) * USED_ELEMENT_LEN;
        prefetch(self.used.cast::<u8>().wrapping_add(at), Purpose::Write);
    }

    /// Stores `used.idx`, behind everything written before.
    pub fn publish_used(&self, idx: u16) {
        self.used_word(1).store(idx.to_le(), Ordering::Release);
    }

    /// Stores `used.flags`.
    pub fn set_used_flags(&self, flags: u16) {
        self.used_word(0).store(flags.to_le(), Ordering::Relaxed);
    }

    /// Stores `used.avail_event`.
    pub fn set_avail_event(&self, idx: u16) {
        let word = 2 + usize::from(self.size) * (USED_ELEMENT_LEN / 2);
        self.used_word(word).store(idx.to_le(), Ordering::Relaxed);
    }

    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }

    /// Half `index` of the descriptors, which is below `2 * size`.
    fn desc_half(&self, index: usize) -> &AtomicU64 {
        let half = self.desc.cast::<u64>().wrapping_add(index);
        // SAFETY: the caller stays within the `size` descriptors that `new` translated, aligned to
        // 16, in a mapping that lives as long as `self`; we use these halves atomically only.
        unsafe { AtomicU64::from_ptr(half) }
    }

    /// Word `index` of the available ring, which is below `3 + size`.
    fn avail_word(&self, index: usize) -> &AtomicU16 {
        let word = self.avail.wrapping_add(index);
        // SAFETY: every caller stays within the `3 + size` words that `new` translated, aligned
        // to 2, in a mapping that lives as long as `self`; we use these words atomically only.
        unsafe { AtomicU16::from_ptr(word) }
    }

    /// Half word `index` of the used ring: 0, 1, or the one behind its elements.
    fn used_word(&self, index: usize) -> &AtomicU16 {
        let word = self.used.wrapping_add(index);
        // SAFETY: every caller stays within the area that `new` translated, aligned to 4, in a
        // mapping that lives as long as `self`; we use these words atomically only.
        unsafe { AtomicU16::from_ptr(word) }
    }

    /// Word `index` of the used elements, which is below `2 * size`.
    fn used_element(&self, index: usize) -> &AtomicU32 {
        let word = self.used.cast::<u32>().wrapping_add(1 + index);
        // SAFETY: the elements begin 4 bytes into an area that is aligned to 4 and was translated
        // for `size` of them; the mapping lives as long as `self`; atomic use only.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

/// Where `slice` begins, `None` when that is not a multiple of `alignment`.
fn start(slice: &GuestSlice<'_>, alignment: usize) -> Option<*mut u8> {
    let start = slice.ptr_guard_mut().as_ptr();
    start.addr().is_multiple_of(alignment).then_some(start)
}
