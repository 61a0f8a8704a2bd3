//! A frame becomes a held packet.

use super::table::Home;
use super::{FlushReason, FrameBytes, GroEngine, GroResult, complete, ethernet_len, udp};
use crate::time::Instant;
use crate::wire::{Layout, RxMeta, Transport};

/// What starts a packet, beside the frame.
pub(super) struct First {
    pub(super) layout: Layout,
    /// Where its flow belongs.
    pub(super) home: Home,
    /// TCP sequence number behind its payload.
    pub(super) next_seq: u32,
}

impl<B: FrameBytes> GroEngine<B> {
    /// Makes a frame a held packet; the oldest of its bucket makes room (ENG-3).
    #[inline(always)]
    pub(super) fn hold(
        &mut self,
        now: Instant,
        mut buf: B,
        meta: &RxMeta,
        first: &First,
    ) -> GroResult {
        let First {
            layout,
            home,
            next_seq,
        } = *first;
        // What it says to the guest if nothing joins it.
        let vnet = match complete::plain_header(buf.as_mut(), &meta.vnet, true, self.types.csum) {
            Ok(vnet) => vnet,
            Err(reason) => return self.refuse(reason),
        };
        let frame = buf.as_ref();
        if let Some(oldest) = self.table.evictee(home) {
            self.complete(oldest, FlushReason::Eviction);
        }
        let max_rest = self.max_rest(frame.len(), layout);
        let (id, held) = self.store.take();
        held.expected.start(frame, layout);
        held.expected.merge_mark = meta.merge_mark;
        held.expected.max_rest = max_rest;
        held.expected.seq = next_seq;
        held.collected = 0;
        held.layout = layout;
        held.slot = self.table.insert(home, id, now);
        held.packet.header_len = layout.payload();
        self.hints.set(frame, id);
        held.packet.start(buf, vnet);
        self.stats.held += 1;
        GroResult::Held
    }

    /// How many full segments may follow a first frame of `len` bytes without being the last
    /// (LIM-1, LIM-3). A datagram that makes a packet full closes it (UDP-5).
    #[inline(always)]
    fn max_rest(&self, len: usize, layout: Layout) -> usize {
        let segs = match layout.transport() {
            Transport::Tcp => self.config.gro_max_segs,
            Transport::Udp => udp::MAX_SEGS - 1,
        };
        let bytes = self.config.size_limit().saturating_sub(ethernet_len(len));
        let by_size = u32::try_from(bytes).unwrap_or(u32::MAX) / layout.payload_len().max(1);
        by_size.min(segs.saturating_sub(1)) as usize
    }
}
