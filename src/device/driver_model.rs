//! A driver's side of a split ring, for tests and benches: posts chains, collects used entries.
//!
//! Written against the specification only (virtio 1.2, 2.7), and with nothing of this crate, so
//! that it is a second opinion on the device's side. It recycles descriptors in any order.
#![allow(dead_code, reason = "tests and benches use different parts")]
#![allow(
    clippy::unwrap_used,
    reason = "test code, but a bench is not seen as a test"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Where the descriptor table lies.
pub(crate) const DESC: u64 = 0x1_0000;
/// Byte that buffers hold before anyone writes them.
pub(crate) const FILLER: u8 = 0xa5;
/// Bytes of guest memory behind the ring.
const DATA_LEN: u64 = 8 << 20;

/// One descriptor as the driver writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Desc {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// A buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) is_writable: bool,
}

/// A chain given back by the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) head: u16,
    pub(crate) len: u32,
    pub(crate) parts: Vec<Part>,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) memory: Arc<GuestMemoryMmap>,
    pub(crate) size: u16,
    /// Added to every address, so that two rings may lie in one memory.
    base: u64,
    avail_idx: u16,
    last_used: u16,
    free: Vec<u16>,
    /// Descriptors and buffers of the chains that the device has, by head.
    posted: HashMap<u16, (Vec<u16>, Vec<Part>)>,
    next_data: u64,
}

impl Driver {
    /// A ring of `size` entries whose indices start at `position`.
    pub(crate) fn new(size: u16, position: u16) -> Self {
        Self::with_regions(size, position, &[])
    }

    /// The same with further memory regions, by address and length.
    pub(crate) fn with_regions(size: u16, position: u16, regions: &[(u64, usize)]) -> Self {
        let data = data_start(size);
        let first = (GuestAddress(0), usize::try_from(data + DATA_LEN).unwrap());
        let regions: Vec<_> = std::iter::once(first)
            .chain(
                regions
                    .iter()
                    .map(|&(start, len)| (GuestAddress(start), len)),
            )
            .collect();
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&regions).unwrap());
        Self::within(memory, 0, size, position)
    }

    /// Two rings of the same size in one memory.
    pub(crate) fn two(size: u16, position: u16) -> [Self; 2] {
        let base = (data_start(size) + DATA_LEN).next_multiple_of(0x1_0000);
        let len = usize::try_from(base).unwrap();
        let first = Self::with_regions(size, position, &[(base, len)]);
        let second = Self::within(Arc::clone(&first.memory), base, size, position);
        [first, second]
    }

    fn within(memory: Arc<GuestMemoryMmap>, base: u64, size: u16, position: u16) -> Self {
        let driver = Self {
            memory,
            size,
            base,
            avail_idx: position,
            last_used: position,
            free: (0..size).rev().collect(),
            posted: HashMap::new(),
            next_data: base + data_start(size),
        };
        driver.set_avail_idx(position);
        driver.store(driver.used() + 2, position);
        driver
    }

    pub(crate) fn desc(&self) -> u64 {
        self.base + DESC
    }

    pub(crate) fn avail(&self) -> u64 {
        self.desc() + u64::from(self.size) * 16
    }

    pub(crate) fn used(&self) -> u64 {
        (self.avail() + 6 + u64::from(self.size) * 2).next_multiple_of(4)
    }

    /// Memory that nothing else uses, holding [`FILLER`], with a gap behind it.
    pub(crate) fn alloc(&mut self, len: usize) -> u64 {
        let addr = self.next_data;
        self.next_data += len as u64 + 64;
        self.write(addr, &vec![FILLER; len]);
        addr
    }

    /// Starts again to hand out memory from the beginning; all buffers must be back.
    pub(crate) fn reset_alloc(&mut self) {
        assert!(self.posted.is_empty());
        self.next_data = self.base + data_start(self.size);
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(addr)).unwrap();
    }

    pub(crate) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(addr))
            .unwrap();
        bytes
    }

    /// Buffers of these sizes, each in memory of its own.
    pub(crate) fn parts(&mut self, lens: &[u32], is_writable: bool) -> Vec<Part> {
        lens.iter()
            .map(|&len| Part {
                addr: self.alloc(len as usize),
                len,
                is_writable,
            })
            .collect()
    }

    /// Makes a chain of these buffers available. `None` without enough descriptors.
    pub(crate) fn post(&mut self, parts: &[Part]) -> Option<u16> {
        let at = self.free.len().checked_sub(parts.len())?;
        let mut indices = self.free.split_off(at);
        indices.reverse();
        for (nth, part) in parts.iter().enumerate() {
            let next = indices.get(nth + 1).copied();
            self.write_desc(indices[nth], desc_of(part, next));
        }
        Some(self.make_available(indices, parts.to_vec()))
    }

    /// Makes these buffers available through an indirect table.
    pub(crate) fn post_indirect(&mut self, parts: &[Part]) -> Option<u16> {
        let index = self.free.pop()?;
        let table = self.alloc(parts.len() * 16);
        for (nth, part) in parts.iter().enumerate() {
            let nth = u16::try_from(nth).unwrap();
            let next = (usize::from(nth) + 1 < parts.len()).then_some(nth + 1);
            self.write(table + u64::from(nth) * 16, &encode(desc_of(part, next)));
        }
        let len = u32::try_from(parts.len() * 16).unwrap();
        self.write_desc(
            index,
            Desc {
                addr: table,
                len,
                flags: INDIRECT,
                next: 0,
            },
        );
        Some(self.make_available(vec![index], parts.to_vec()))
    }

    /// Posts one writable chain with buffers of these sizes.
    pub(crate) fn post_rx(&mut self, lens: &[u32]) -> u16 {
        let parts = self.parts(lens, true);
        self.post(&parts).expect("descriptors are left")
    }

    /// Posts one readable chain that holds `bytes`, cut into buffers of these sizes.
    pub(crate) fn post_tx(&mut self, bytes: &[u8], lens: &[u32]) -> u16 {
        let parts = self.tx_parts(bytes, lens);
        self.post(&parts).expect("descriptors are left")
    }

    /// Readable buffers of these sizes that hold `bytes`.
    pub(crate) fn tx_parts(&mut self, bytes: &[u8], lens: &[u32]) -> Vec<Part> {
        let parts = self.parts(lens, false);
        let mut rest = bytes;
        for part in &parts {
            let (now, later) = rest.split_at(part.len as usize);
            self.write(part.addr, now);
            rest = later;
        }
        assert!(rest.is_empty());
        parts
    }

    /// Makes any head available, valid or not.
    pub(crate) fn post_head(&mut self, head: u16) {
        self.make_available(vec![head], Vec::new());
    }

    fn make_available(&mut self, indices: Vec<u16>, parts: Vec<Part>) -> u16 {
        let head = indices[0];
        self.posted.insert(head, (indices, parts));
        let slot = u64::from(self.avail_idx % self.size);
        self.store(self.avail() + 4 + 2 * slot, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.set_avail_idx(self.avail_idx);
        head
    }

    /// The next chain that the device gave back.
    pub(crate) fn collect(&mut self) -> Option<Used> {
        if self.used_idx() == self.last_used {
            return None;
        }
        let slot = u64::from(self.last_used % self.size);
        let element = self.read(self.used() + 4 + 8 * slot, 8);
        let word = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        let head = u16::try_from(word(0)).unwrap();
        self.last_used = self.last_used.wrapping_add(1);
        let (indices, parts) = self
            .posted
            .remove(&head)
            .expect("the device had this chain");
        self.free.extend(indices);
        Some(Used {
            head,
            len: word(4),
            parts,
        })
    }

    /// All chains that the device gave back.
    pub(crate) fn collect_all(&mut self) -> Vec<Used> {
        std::iter::from_fn(|| self.collect()).collect()
    }

    /// What the device wrote into a chain. Fails when it touched a byte beyond.
    pub(crate) fn written(&self, used: &Used) -> Vec<u8> {
        let mut bytes: Vec<u8> = used
            .parts
            .iter()
            .flat_map(|part| self.read(part.addr, part.len as usize))
            .collect();
        let beyond = bytes.split_off(used.len as usize);
        assert!(
            beyond.iter().all(|&byte| byte == FILLER),
            "bytes beyond the used length were written"
        );
        bytes
    }

    pub(crate) fn write_desc(&self, index: u16, desc: Desc) {
        self.write(self.desc() + u64::from(index) * 16, &encode(desc));
    }

    pub(crate) fn set_avail_idx(&self, idx: u16) {
        self.store(self.avail() + 2, idx);
    }

    pub(crate) fn avail_idx(&self) -> u16 {
        self.avail_idx
    }

    pub(crate) fn set_avail_flags(&self, flags: u16) {
        self.store(self.avail(), flags);
    }

    pub(crate) fn set_used_event(&self, idx: u16) {
        self.store(self.avail() + 4 + 2 * u64::from(self.size), idx);
    }

    pub(crate) fn used_flags(&self) -> u16 {
        self.load(self.used())
    }

    pub(crate) fn used_idx(&self) -> u16 {
        self.load(self.used() + 2)
    }

    pub(crate) fn avail_event(&self) -> u16 {
        self.load(self.used() + 4 + 8 * u64::from(self.size))
    }

    /// The whole used ring as it lies in memory.
    pub(crate) fn used_ring(&self) -> Vec<u8> {
        self.read(self.used(), 6 + 8 * usize::from(self.size))
    }

    fn store(&self, addr: u64, value: u16) {
        self.memory
            .store(value.to_le(), GuestAddress(addr), Ordering::Release)
            .unwrap();
    }

    fn load(&self, addr: u64) -> u16 {
        let value: u16 = self
            .memory
            .load(GuestAddress(addr), Ordering::Acquire)
            .unwrap();
        u16::from_le(value)
    }
}

fn data_start(size: u16) -> u64 {
    (DESC + u64::from(size) * 26 + 0x1000).next_multiple_of(0x1_0000)
}

fn desc_of(part: &Part, next: Option<u16>) -> Desc {
    let mut flags = if part.is_writable { WRITE } else { 0 };
    if next.is_some() {
        flags |= NEXT;
    }
    Desc {
        addr: part.addr,
        len: part.len,
        flags,
        next: next.unwrap_or(0),
    }
}

pub(crate) fn encode(desc: Desc) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..8].copy_from_slice(&desc.addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&desc.len.to_le_bytes());
    bytes[12..14].copy_from_slice(&desc.flags.to_le_bytes());
    bytes[14..16].copy_from_slice(&desc.next.to_le_bytes());
    bytes
}
