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
//! `decide` finds out what becomes of a frame, this file does it. `store` has the packets, `flow`
//! identifies, `table` knows what is held, `network`, `tcp` and `udp` hold one function per merge
//! rule, `join` applies them in order. `hints`, `fast` and `alike` find the plain case in few
//! instructions. `hold` starts a packet, `host` takes what the host had merged, `complete` writes
//! the last fields, `stats` names every reason.

mod alike;
mod complete;
mod config;
mod decide;
mod fast;
mod flow;
mod headers;
mod hints;
mod hold;
mod host;
mod join;
mod network;
mod packet;
mod stats;
mod store;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use core::time::Duration;

use crate::time::Instant;
use crate::wire::vnet_hdr::GSO_NONE;
use crate::wire::{RxMeta, VnetHdr, ethernet, layout};

pub use config::{GroConfig, GroTypes, HashMode, PortSet};
pub use packet::{FrameBytes, GroPacket};
pub use stats::{Bail, Conflict, DropReason, FlushReason, GroStats};

use config::Kinds;
use hints::Hints;
use join::Join;
use store::{Chain, PacketId, Store};
use table::{BUCKETS, PER_BUCKET, Slot, Table};

/// Packets to begin with: those of a full table, and as many on their way.
const PACKETS: usize = 2 * BUCKETS * PER_BUCKET;

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
    store: Store<B>,
    table: Table,
    hints: Hints,
    ready: Chain,
    /// Segments appended to the list since it was last handed over (BATCH-2).
    batch: u32,
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
            store: Store::new(PACKETS),
            table: Table::new(),
            hints: Hints::new(),
            ready: Chain::EMPTY,
            batch: 0,
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
    #[inline(always)]
    pub fn receive(&mut self, now: Instant, buf: B, meta: &RxMeta) -> GroResult {
        let frame = buf.as_ref();
        let len = frame.len() as u64;
        let Some(held) = self.guess(frame, meta) else {
            self.stats.frames += 1;
            self.stats.bytes += len;
            return self.receive_other(now, buf, meta);
        };
        held.make_room();
        held.append_next(buf);
        self.stats.frames += 1;
        self.stats.merged += 1;
        self.stats.bytes += len;
        GroResult::Merged
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
    pub const fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// The next packet for the guest.
    #[must_use]
    #[inline]
    pub fn front(&self) -> Option<&GroPacket<B>> {
        if self.ready.len() == 0 {
            return None;
        }
        let held = self.store.get(self.ready.first())?;
        Some(&held.packet)
    }

    /// Takes the next packet as the caller's own. Where packets are many, [`GroEngine::front`] and
    /// [`GroEngine::release_front`] move less.
    pub fn pop(&mut self) -> Option<GroPacket<B>> {
        let id = self.ready.pop(&self.store)?;
        let packet = self.store.get_mut(id).map(|held| held.packet.take());
        self.store.give_back(id);
        packet
    }

    /// Takes the next packet, which has been delivered, out of the list and lets go of its frames.
    #[inline]
    pub fn release_front(&mut self) {
        if let Some(id) = self.ready.pop(&self.store) {
            self.store.give_back(id);
        }
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> &GroStats {
        &self.stats
    }

    /// A frame of which nothing is known yet.
    #[inline(never)]
    fn receive_other(&mut self, now: Instant, buf: B, meta: &RxMeta) -> GroResult {
        if meta.vnet.gso_type != GSO_NONE {
            return self.receive_gso(now, buf, *meta);
        }
        self.receive_plain(now, buf, meta)
    }

    /// A frame without segmentation type.
    #[inline(always)]
    fn receive_plain(&mut self, now: Instant, buf: B, meta: &RxMeta) -> GroResult {
        if !self.kinds.any() {
            return self.pass(buf, &meta.vnet);
        }
        match layout::parse(buf.as_ref()) {
            Ok(layout) => self.receive_candidate(now, buf, meta, layout),
            Err(unfit) => {
                self.make_way(buf.as_ref(), meta, unfit);
                self.pass(buf, &meta.vnet)
            }
        }
    }

    /// Adds a frame to a held packet.
    #[inline]
    fn append(&mut self, id: PacketId, buf: B, join: &Join) -> GroResult {
        if let Some(held) = self.store.get_mut(id) {
            self.hints.set(buf.as_ref(), id);
            held.append(buf, join);
        }
        self.stats.merged += 1;
        if join.closes {
            self.complete_packet(id, FlushReason::Close);
        }
        GroResult::Merged
    }

    /// Puts a frame into the list as it is.
    #[inline(always)]
    fn pass(&mut self, mut buf: B, host: &VnetHdr) -> GroResult {
        let frame = buf.as_mut();
        if frame.len() < ethernet::HEADER_LEN {
            return self.refuse(DropReason::Runt);
        }
        match complete::plain_header(frame, host, false, self.types.csum) {
            Ok(vnet) => {
                self.stats.normal += 1;
                let (id, held) = self.store.take();
                held.packet.start(buf, vnet);
                self.list(id, 1);
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
    #[inline(never)]
    fn complete_packet(&mut self, id: PacketId, reason: FlushReason) {
        if let Some(held) = self.store.get(id) {
            self.complete(held.slot, reason);
        }
    }

    /// Takes a held packet out of the table, writes its last fields and puts it into the list.
    #[inline(always)]
    fn complete(&mut self, slot: Slot, reason: FlushReason) {
        let Some(id) = self.table.remove(slot) else {
            return;
        };
        let Some(held) = self.store.get_mut(id) else {
            return;
        };
        held.expected.end();
        self.stats.count_completed(reason, held.segs());
        if held.packet.rest_len() > 0 {
            complete::super_frame(held);
        }
        let segs = held.packet.segs;
        self.list(id, segs);
    }

    fn flush_created_until(&mut self, newest: Instant, reason: FlushReason) {
        let mut bucket = 0;
        while self.has_held()
            && let Some(slot) = self.table.next_flushed(bucket, newest)
        {
            bucket = slot.bucket();
            self.complete(slot, reason);
        }
    }

    /// The one way out (ORD-3).
    #[inline(always)]
    fn list(&mut self, id: PacketId, segs: u32) {
        self.batch = self.batch.saturating_add(segs);
        self.ready.push(&mut self.store, id);
    }
}

/// Bytes of a frame of `len` behind its Ethernet header without tags.
#[inline]
const fn ethernet_len(len: usize) -> usize {
    len.saturating_sub(ethernet::HEADER_LEN)
}
