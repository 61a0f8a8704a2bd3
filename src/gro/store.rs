//! Where packets are while the engine has them: made once, used again and again.
//!
//! A packet is filled in where it lies, and it lies there until the guest has it: holding,
//! completing and listing it move a number, not the packet. Its frame list keeps its room, so a
//! steady flow allocates nothing. Unused and listed packets are chained through themselves.

use alloc::vec::Vec;

use super::packet::HeldPacket;

/// Names a packet of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketId(u32);

impl PacketId {
    /// Names no packet.
    pub(super) const NONE: Self = Self(u32::MAX);
}

/// All packets of an engine: held, listed or unused.
#[derive(Debug)]
pub(super) struct Store<B> {
    packets: Vec<HeldPacket<B>>,
    /// The last one given back is the first to be used again: it is still in the cache.
    unused: PacketId,
}

impl<B> Store<B> {
    /// Makes room for `capacity` packets.
    pub(super) fn new(capacity: usize) -> Self {
        let mut store = Self {
            packets: Vec::new(),
            unused: PacketId::NONE,
        };
        store.grow(capacity);
        store
    }

    /// An unused packet, to be filled in.
    #[inline(always)]
    pub(super) fn take(&mut self) -> (PacketId, &mut HeldPacket<B>) {
        if self.get(self.unused).is_none() {
            self.grow(self.packets.len());
        }
        let id = self.unused;
        // It was there, or there is one now.
        let held = &mut self.packets[id.0 as usize];
        self.unused = held.next;
        (id, held)
    }

    /// Takes a packet back: lets go of its frames.
    #[inline(always)]
    pub(super) fn give_back(&mut self, id: PacketId) {
        let unused = self.unused;
        if let Some(held) = self.get_mut(id) {
            held.packet.clear();
            held.next = unused;
            self.unused = id;
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, id: PacketId) -> Option<&HeldPacket<B>> {
        self.packets.get(id.0 as usize)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: PacketId) -> Option<&mut HeldPacket<B>> {
        self.packets.get_mut(id.0 as usize)
    }

    /// Adds packets. How many there are is bounded by the frames that their source can lend.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, by: usize) {
        let first = self.packets.len();
        self.packets
            .resize_with(first + by.max(1), HeldPacket::default);
        for at in (first..self.packets.len()).rev() {
            if let Ok(id) = u32::try_from(at) {
                self.give_back(PacketId(id));
            }
        }
    }
}

/// Packets of a store in the order in which they were added.
#[derive(Debug)]
pub(super) struct Chain {
    first: PacketId,
    last: PacketId,
    len: usize,
}

impl Chain {
    pub(super) const EMPTY: Self = Self {
        first: PacketId::NONE,
        last: PacketId::NONE,
        len: 0,
    };

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn first(&self) -> PacketId {
        self.first
    }

    /// Appends a packet that is in no other chain.
    #[inline(always)]
    pub(super) fn push<B>(&mut self, store: &mut Store<B>, id: PacketId) {
        match store.get_mut(self.last) {
            Some(last) if self.len > 0 => last.next = id,
            _ => self.first = id,
        }
        self.last = id;
        self.len += 1;
    }

    /// Takes the first packet out.
    #[inline(always)]
    pub(super) fn pop<B>(&mut self, store: &Store<B>) -> Option<PacketId> {
        self.len = self.len.checked_sub(1)?;
        let id = self.first;
        self.first = store.get(id)?.next;
        Some(id)
    }
}
