//! GRO: merges frames of one flow into super-frames. Pure: no descriptor, clock, log or lock.
//!
//! # Theory of operation
//! [`GroEngine::receive`] takes one frame at a time, parses it once and gives a verdict. A frame
//! *merges* into the held packet of its flow, becomes a *held* packet itself, or goes to the
//! receive list as a *normal* frame. Held packets are *completed* into the same list: when their
//! last segment closes them, when a frame of their flow cannot join, when their bucket is full,
//! or when a flush says so. Everything leaves through that one list, in order, so no flow is ever
//! reordered: a frame that cannot join first completes what is held of its flow, even if only its
//! addresses could be read.
//!
//! Payload is never copied: a packet is the buffer of its first frame and a list of the others.
//! Header bytes stay as they came until completion, which alone writes them.
//!
//! The engine never asks what time it is, and it never flushes on its own account: when to flush
//! is the business of `napi`. The receive list is bounded by the caller's frame pool.
//!
//! # Files
//! `decide` finds the verdict, this file carries it out. `flow` identifies, `table` stores,
//! `network`, `tcp` and `udp` hold one function per merge rule, `join` applies them in order;
//! `fast` and `alike` say yes to the plain case in few instructions. `host` takes what the host
//! had merged, `complete` writes the last fields, `stats` names every reason.

mod alike;
mod complete;
mod config;
mod decide;
mod fast;
mod flow;
mod headers;
mod host;
mod join;
mod network;
mod packet;
mod stats;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use crate::time::Instant;
use crate::wire::ipv4::Ipv4;
use crate::wire::vnet_hdr::GSO_NONE;
use crate::wire::{Network, RxMeta, VnetHdr, ethernet};

pub use config::{GroConfig, GroTypes, HashMode, PortSet};
pub use packet::{FrameBytes, GroPacket};
pub use stats::{Bail, Conflict, DropReason, FlushReason, GroStats};

use config::Kinds;
use decide::{First, Verdict};
use flow::FlowKey;
use join::Join;
use packet::{HeldPacket, Room};
use table::{BUCKETS, PER_BUCKET, Slot, Table};

/// Frame lists that are kept for reuse: those of a full table, and as many on their way.
const SPARE_LISTS: usize = 2 * BUCKETS * PER_BUCKET;
/// Room of a fresh frame list: a packet of 1448-byte segments has 45.
const FRAMES: usize = 48;
/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroResult {
    /// It joined a held packet.
    Merged,
    /// It became a held packet.
    Held,
    /// It went to the receive list.
    Normal,
    /// It was thrown away and counted, because its source must not send such a frame.
    Dropped,
}

/// Coalesces the frames of one receive queue. Never shared, no locks.
///
/// `B` is any owned buffer that holds one Ethernet frame.
pub struct GroEngine<B> {
    config: GroConfig,
    types: GroTypes,
    /// What may be merged under both.
    kinds: Kinds,
    table: Table<B>,
    /// Where the last candidate went; a guess where the next one belongs.
    recent: Slot,
    ready: VecDeque<GroPacket<B>>,
    /// Segments appended to the list since it was last handed over (BATCH-2).
    batch: u32,
    spare: Vec<Vec<B>>,
    stats: GroStats,
}

impl<B: FrameBytes> GroEngine<B> {
    /// Makes an engine that merges nothing until [`GroEngine::set_types`] says what the guest
    /// accepts.
    #[must_use]
    pub fn new(config: GroConfig) -> Self {
        Self {
            config,
            types: GroTypes::default(),
            kinds: Kinds::default(),
            table: Table::new(),
            recent: Slot::default(),
            ready: VecDeque::with_capacity(SPARE_LISTS),
            batch: 0,
            spare: Vec::with_capacity(SPARE_LISTS),
            stats: GroStats::default(),
        }
    }

    /// The tunables in force.
    #[must_use]
    pub const fn config(&self) -> &GroConfig {
        &self.config
    }

    /// Changes the tunables. What is held is completed first.
    pub fn set_config(&mut self, config: GroConfig) {
        self.flush_all(FlushReason::Teardown);
        self.config = config;
        self.kinds = Kinds::new(&self.config, self.types);
    }

    /// Says what the guest accepts from now on. What is held is completed first, under the former
    /// setting (FEAT-6); the caller hands the list over before the guest may rely on the new one.
    pub fn set_types(&mut self, types: GroTypes) {
        self.flush_all(FlushReason::Teardown);
        self.types = types;
        self.kinds = Kinds::new(&self.config, self.types);
    }

    /// Takes one frame that arrived at `now`.
    #[inline]
    pub fn receive(&mut self, now: Instant, buf: B, meta: RxMeta) -> GroResult {
        let len = buf.as_ref().len();
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
        if meta.vnet.gso_type != GSO_NONE {
            return self.receive_gso(now, buf, meta);
        }
        self.receive_plain(now, buf, &meta)
    }

    /// Completes everything held (ENG-5).
    pub fn flush_all(&mut self, reason: FlushReason) {
        self.flush_created_until(Instant::from_nanos(u64::MAX), reason);
    }

    /// Completes what was created `age` ago or earlier (ENG-5).
    pub fn flush_older(&mut self, now: Instant, age: Duration, reason: FlushReason) {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        if let Some(newest) = now.as_nanos().checked_sub(age) {
            self.flush_created_until(Instant::from_nanos(newest), reason);
        }
    }

    /// Completes the oldest held packet of all buckets (ENG-7). False if nothing is held.
    pub fn flush_oldest(&mut self, reason: FlushReason) -> bool {
        let Some((slot, _)) = self.table.oldest() else {
            return false;
        };
        self.complete(slot, reason);
        true
    }

    /// Number of held packets.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.table.held()
    }

    /// Whether anything is held.
    #[must_use]
    pub const fn has_held(&self) -> bool {
        self.held() > 0
    }

    /// Creation time of the oldest held packet.
    #[must_use]
    pub fn earliest(&self) -> Option<Instant> {
        self.table.oldest().map(|(_, created)| created)
    }

    /// Whether the receive list has grown enough to be handed over (BATCH-1, BATCH-2).
    #[must_use]
    pub const fn should_hand_over(&self) -> bool {
        self.batch >= self.config.gro_normal_batch
    }

    /// Starts counting towards the next batch.
    pub const fn handed_over(&mut self) {
        self.batch = 0;
    }

    /// Packets in the receive list.
    #[must_use]
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// The next packet for the guest.
    #[must_use]
    pub fn front(&self) -> Option<&GroPacket<B>> {
        self.ready.front()
    }

    /// Takes the next packet for the guest.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<GroPacket<B>> {
        self.ready.pop_front()
    }

    /// Takes a delivered packet back: drops its frames and keeps its list for the next packet, so
    /// that a steady flow allocates nothing.
    #[inline(always)]
    pub fn recycle(&mut self, packet: GroPacket<B>) {
        let mut list = packet.rest;
        list.clear();
        if list.capacity() > 0 && self.spare.len() < SPARE_LISTS {
            self.spare.push(list);
        }
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> &GroStats {
        &self.stats
    }

    /// A frame without segmentation type.
    #[inline(always)]
    fn receive_plain(&mut self, now: Instant, buf: B, meta: &RxMeta) -> GroResult {
        if !self.kinds.any() {
            return self.pass(buf, &meta.vnet);
        }
        let frame = buf.as_ref();
        let verdict = match self.guess(frame, meta) {
            Some(join) => Verdict::Join(self.recent, join),
            None => self.decide(frame, meta),
        };
        match verdict {
            Verdict::Join(slot, join) => self.append(slot, buf, &join),
            Verdict::Hold(first) => self.hold(now, buf, meta, &first),
            Verdict::Pass => self.pass(buf, &meta.vnet),
        }
    }

    /// Adds a frame to a held packet.
    #[inline(always)]
    fn append(&mut self, slot: Slot, buf: B, join: &Join) -> GroResult {
        if let Some(held) = self.table.get_mut(slot) {
            if held.packet.rest.capacity() == 0 {
                held.packet.rest = match self.spare.pop() {
                    Some(list) => list,
                    None => Vec::with_capacity(FRAMES),
                };
            }
            held.append(buf, join);
        }
        self.stats.merged += 1;
        self.recent = slot;
        if join.closes != 0 {
            self.complete(slot, FlushReason::Close);
        }
        GroResult::Merged
    }

    /// Makes a frame a held packet; the oldest of its bucket makes room (ENG-3).
    #[inline(never)]
    fn hold(&mut self, now: Instant, buf: B, meta: &RxMeta, first: &First) -> GroResult {
        let frame = buf.as_ref();
        let layout = first.layout;
        let Some(key) = FlowKey::read(frame, &layout) else {
            return self.pass(buf, &meta.vnet);
        };
        let first_id = match layout.network {
            Network::Ipv4 => Ipv4::at(frame, usize::from(layout.l3)).map_or(0, Ipv4::id),
            Network::Ipv6 => 0,
        };
        let home = self.home(&key, meta);
        if let Some(oldest) = self.table.evictee(home) {
            self.complete(oldest, FlushReason::Eviction);
        }
        let held = HeldPacket {
            key,
            layout,
            mask: alike::mask_for(&layout),
            first_id,
            next_id: first_id.wrapping_add(1),
            room: Room::behind(frame.len(), &layout, &self.config),
            created: now,
            merge_mark: self.merge_mark(meta),
            next_seq: first.next_seq,
            collected: 0,
            id_mode: network::IdMode::Undecided,
            packet: GroPacket {
                header_len: layout.payload,
                ..GroPacket::of(buf, meta.vnet)
            },
        };
        self.recent = self.table.insert(home, held);
        self.stats.held += 1;
        GroResult::Held
    }

    /// Puts a frame into the list as it is.
    #[inline]
    fn pass(&mut self, mut buf: B, host: &VnetHdr) -> GroResult {
        let frame = buf.as_mut();
        if frame.len() < ethernet::HEADER_LEN {
            return self.refuse(DropReason::Runt);
        }
        match complete::plain_header(frame, host, false, self.types.csum) {
            Ok(vnet) => {
                self.stats.normal += 1;
                self.list(GroPacket::of(buf, vnet));
                GroResult::Normal
            }
            Err(reason) => self.refuse(reason),
        }
    }

    #[cold]
    fn refuse(&mut self, reason: DropReason) -> GroResult {
        self.stats.count_dropped(reason);
        GroResult::Dropped
    }

    /// Completes a held packet.
    #[inline]
    fn complete(&mut self, slot: Slot, reason: FlushReason) {
        if let Some(held) = self.table.remove(slot) {
            self.finish(held, reason);
        }
    }

    /// Writes the last fields of a packet that left the table and puts it into the list.
    #[inline]
    fn finish(&mut self, held: HeldPacket<B>, reason: FlushReason) {
        self.stats.count_completed(reason, held.packet.segs);
        let packet = if held.packet.segs > 1 {
            complete::super_frame(held)
        } else {
            let mut packet = held.packet;
            let frame = packet.head.as_mut();
            match complete::plain_header(frame, &packet.vnet, true, self.types.csum) {
                Ok(vnet) => packet.vnet = vnet,
                Err(reason) => {
                    self.refuse(reason);
                    return;
                }
            }
            packet
        };
        self.list(packet);
    }

    fn flush_created_until(&mut self, newest: Instant, reason: FlushReason) {
        let mut bucket = 0;
        while let Some(slot) = self.table.next_flushed(bucket, newest) {
            bucket = slot.bucket();
            self.complete(slot, reason);
        }
    }

    /// The one way out (ORD-3).
    #[inline]
    fn list(&mut self, packet: GroPacket<B>) {
        self.batch = self.batch.saturating_add(packet.segs);
        self.ready.push_back(packet);
    }
}

/// Bytes of a frame of `len` behind its Ethernet header without tags.
#[inline]
const fn ethernet_len(len: usize) -> usize {
    len.saturating_sub(ethernet::HEADER_LEN)
}
