//! Packets into the guest's receive buffers (rules FILL-1 to FILL-6).
//!
//! Buffers for a whole packet are reserved first, then written, then shown to the guest by one
//! store. Payload is copied once, from where the uplink put it to where the guest wants it.

use super::chain::{self, Chain, ChainFault, Direction, Extent};
use super::features::Features;
use super::ring::{QueueFault, SplitRing};
use super::stats::RxQueueStats;
use crate::gro::GroPacket;
use crate::sys::{GuestMap, GuestSlice};
use crate::wire::VnetHdr;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Written into this many buffers; the guest sees them at the next
    /// [`publish`](RxQueue::publish).
    Filled {
        /// Buffers used, at least 1.
        buffers: u16,
    },
    /// Too few buffers at the moment and nothing of the packet was written. Keep it, ask for a
    /// kick, come back (rule FILL-3).
    ///
    /// The guest still holds buffers of this ring, so that waiting can help. A guest that never
    /// posts as many as its ring could take may let a large packet wait for ever; after some time
    /// without any new buffer the caller does well to treat it like [`Fill::TooBig`].
    NoBuffers,
    /// The packet does not fit: not into the ring although the guest has filled it to the brim,
    /// or not into the one chain that it may use. Waiting does not help; segment it, or drop it
    /// if it can not be segmented (rule FILL-4). No buffer was used.
    TooBig,
}

/// A buffer reserved for the packet at hand.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    head: u16,
    bytes: u64,
}

/// The buffers found wanting at the last attempt. While nothing changes there is no use in
/// walking them again.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    /// Entries that waited in the available ring.
    available: u16,
    /// Bytes they had.
    bytes: u64,
}

/// The queue towards the guest.
#[derive(Debug)]
pub struct RxQueue {
    ring: SplitRing,
    hdr_len: usize,
    is_mergeable: bool,
    /// Reserved buffers, and the extents of all of them in a row. Both grow to what the largest
    /// packet needs and stay so.
    buffers: Vec<Buffer>,
    extents: Vec<Extent>,
    shortage: Option<Shortage>,
    stats: RxQueueStats,
}

impl RxQueue {
    /// Serves `ring` to a guest that acked `features`.
    #[must_use]
    pub fn new(ring: SplitRing, features: Features) -> Self {
        Self {
            hdr_len: features.hdr_len(),
            is_mergeable: features.contains(Features::MRG_RXBUF),
            buffers: Vec::with_capacity(usize::from(ring.size())),
            extents: Vec::with_capacity(usize::from(ring.size()) + chain::CHAIN_MAX),
            shortage: None,
            stats: RxQueueStats::default(),
            ring,
        }
    }

    /// The ring, to arm and disarm kicks.
    pub const fn ring_mut(&mut self) -> &mut SplitRing {
        &mut self.ring
    }

    /// Where a later run must start.
    #[must_use]
    pub const fn position(&self) -> u16 {
        self.ring.position()
    }

    /// Counters since the queue was made.
    #[must_use]
    pub const fn stats(&self) -> &RxQueueStats {
        &self.stats
    }

    /// Writes one packet into the guest's buffers.
    ///
    /// Whatever comes back, chains may have been returned: call [`publish`](Self::publish) at the
    /// end of the batch.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn fill<B: AsRef<[u8]>>(&mut self, packet: &GroPacket<B>) -> Result<Fill, QueueFault> {
        self.fill_from(packet.vnet, packet.frame_len(), packet.slices())
    }

    /// As [`fill`](Self::fill), for a packet that is given as its header, its length without it,
    /// and its bytes piece by piece (segments, announcements).
    ///
    /// # Errors
    /// The ring is broken.
    pub fn fill_from<'b>(
        &mut self,
        vnet: VnetHdr,
        frame_len: usize,
        pieces: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<Fill, QueueFault> {
        let needed = (self.hdr_len + frame_len) as u64;
        match self.reserve(needed)? {
            Fill::Filled { buffers } => {
                self.write(vnet, buffers, pieces);
                self.stage(needed);
                self.stats.packets += 1;
                self.stats.bytes += frame_len as u64;
                self.stats.buffers += u64::from(buffers);
                Ok(Fill::Filled { buffers })
            }
            short => {
                self.ring.rewind(self.reserved());
                match short {
                    Fill::TooBig => self.stats.too_big += 1,
                    _ => self.stats.buffer_waits += 1,
                }
                Ok(short)
            }
        }
    }

    /// Shows the guest everything filled since the last call. Says whether there was anything.
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Whether the guest is to be interrupted for what was published since the last decision.
    pub fn needs_notification(&mut self) -> bool {
        let wanted = self.ring.needs_notification();
        self.stats.notify.count(wanted);
        wanted
    }

    /// Takes buffers until they have room for `needed` bytes. On any other outcome than
    /// [`Fill::Filled`] the caller gives the reserved ones back.
    fn reserve(&mut self, needed: u64) -> Result<Fill, QueueFault> {
        self.release();
        if let Some(last) = self.shortage
            && last.bytes < needed
            && last.available == self.ring.available()?
        {
            return Ok(Fill::NoBuffers);
        }
        self.shortage = None;
        let mut have = 0;
        // Entries of the descriptor table that the available chains take up, and the fewest that
        // one of them does.
        let mut taken = 0_u32;
        let mut smallest = u16::MAX;
        // No guest, however fast it adds chains, keeps us here for longer than one ring.
        for _ in 0..self.ring.size() {
            let Some(head) = self.ring.pop()? else {
                break;
            };
            match self.take(head) {
                Ok(chain) => {
                    have += chain.bytes;
                    taken += u32::from(chain.descriptors);
                    smallest = smallest.min(chain.descriptors);
                }
                Err(_) => {
                    self.give_back(head);
                    (have, taken) = (0, 0);
                    continue;
                }
            }
            if have >= needed {
                return Ok(Fill::Filled {
                    buffers: self.reserved(),
                });
            }
            if !self.is_mergeable {
                return Ok(Fill::TooBig);
            }
        }
        let is_brimful =
            !self.buffers.is_empty() && taken + u32::from(smallest) > u32::from(self.ring.size());
        if is_brimful {
            return Ok(Fill::TooBig);
        }
        self.shortage = Some(Shortage {
            available: self.reserved(),
            bytes: have,
        });
        Ok(Fill::NoBuffers)
    }

    /// Reserves the chain at `head`. One that begins a packet must have room for the header and
    /// at least one byte; a later one for at least one byte.
    fn take(&mut self, head: u16) -> Result<Chain, ChainFault> {
        let before = self.extents.len();
        let chain = chain::walk(&self.ring, head, Direction::Writable, &mut self.extents)?;
        let header = if self.buffers.is_empty() {
            self.hdr_len as u64
        } else {
            0
        };
        if chain.bytes <= header {
            self.extents.truncate(before);
            return Err(ChainFault::TooSmall(chain.bytes));
        }
        self.buffers.push(Buffer {
            head,
            bytes: chain.bytes,
        });
        Ok(chain)
    }

    /// Returns a bad chain empty, and those reserved before it for the same packet: their order
    /// must be kept, and the buffers of a packet must follow on each other.
    fn give_back(&mut self, bad: u16) {
        self.stats.bad_chains += 1;
        self.stats.spoilt_chains += self.buffers.len() as u64;
        for buffer in &self.buffers {
            self.ring.stage_used(buffer.head, 0);
        }
        self.ring.stage_used(bad, 0);
        self.release();
    }

    fn release(&mut self) {
        self.buffers.clear();
        self.extents.clear();
    }

    /// Buffers reserved, which are never more than the ring has entries.
    fn reserved(&self) -> u16 {
        u16::try_from(self.buffers.len()).unwrap_or(u16::MAX)
    }

    /// Copies header and pieces through the reserved extents.
    fn write<'b>(
        &self,
        mut vnet: VnetHdr,
        buffers: u16,
        pieces: impl IntoIterator<Item = &'b [u8]>,
    ) {
        vnet.num_buffers = buffers;
        let header = vnet.encode();
        let mut writer = Writer::new(self.ring.map(), &self.extents);
        writer.write(&header[..self.hdr_len.min(header.len())]);
        for piece in pieces {
            writer.write(piece);
        }
    }

    /// Stages the reserved buffers as used: all but the last are full.
    fn stage(&mut self, needed: u64) {
        let mut left = needed;
        for buffer in &self.buffers {
            let len = buffer.bytes.min(left);
            left -= len;
            // A packet is far below 4 GiB.
            self.ring
                .stage_used(buffer.head, u32::try_from(len).unwrap_or(u32::MAX));
        }
    }
}

/// Writes bytes one after another through a list of extents.
struct Writer<'a> {
    map: &'a GuestMap,
    extents: std::slice::Iter<'a, Extent>,
    /// What is left of the extent at hand.
    rest: Option<GuestSlice<'a>>,
}

impl<'a> Writer<'a> {
    fn new(map: &'a GuestMap, extents: &'a [Extent]) -> Self {
        Self {
            map,
            extents: extents.iter(),
            rest: None,
        }
    }

    /// Writes as much of `bytes` as there is room for, which is all: the room was reserved.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(room) = self.room() else {
                debug_assert!(false, "the extents were reserved for all bytes");
                return;
            };
            let count = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(count);
            room.copy_from(now);
            bytes = later;
            self.rest = room.offset(count).ok();
        }
    }

    /// The next range with room, never empty.
    fn room(&mut self) -> Option<GuestSlice<'a>> {
        if let Some(rest) = self.rest.filter(|rest| !rest.is_empty()) {
            return Some(rest);
        }
        self.extents.next()?.slice(self.map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::driver_model::{Driver, Used};
    use super::super::rig;
    use super::*;

    /// Bytes of the modern header.
    const HDR: usize = 12;
    /// Largest packet: 65535 bytes behind the Ethernet header.
    const LARGEST: usize = 65549;

    fn mergeable() -> Features {
        rig::all_features()
    }

    fn unmergeable() -> Features {
        rig::all_features().without(Features::MRG_RXBUF)
    }

    /// Bytes that tell their place, so that a shift or a gap shows.
    fn frame(len: usize) -> Vec<u8> {
        (0..len)
            .map(|at| (at * 7 + at / 256).to_le_bytes()[0])
            .collect()
    }

    const MERGED: VnetHdr = VnetHdr {
        flags: 1,
        gso_type: 1,
        hdr_len: 66,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };

    /// Fills a merged packet of `len` bytes in pieces as the engine makes them.
    fn fill_packet(rx: &mut RxQueue, len: usize) -> Result<Fill, QueueFault> {
        let bytes = frame(len);
        let (head, payload) = bytes.split_at(len.min(1514));
        rx.fill_from(
            MERGED,
            len,
            std::iter::once(head).chain(payload.chunks(1448)),
        )
    }

    /// Fills one packet and shows it.
    fn fill(rx: &mut RxQueue, len: usize) -> Fill {
        let outcome = fill_packet(rx, len).unwrap();
        rx.publish();
        outcome
    }

    fn filled(buffers: u16) -> Fill {
        Fill::Filled { buffers }
    }

    /// Checks that `used` holds exactly the packet of `len` bytes with its header.
    fn assert_holds(driver: &Driver, used: &[Used], len: usize) {
        let mut bytes = Vec::new();
        for (nth, chain) in used.iter().enumerate() {
            let room: u32 = chain.parts.iter().map(|part| part.len).sum();
            let is_last = nth + 1 == used.len();
            assert!(is_last || chain.len == room, "only the last may have room");
            bytes.extend(driver.written(chain));
        }
        let header = VnetHdr {
            num_buffers: u16::try_from(used.len()).unwrap(),
            ..MERGED
        };
        assert_eq!(bytes[..HDR], header.encode());
        assert!(bytes[HDR..] == frame(len), "the frame's bytes differ");
    }

    #[test]
    fn f24_num_buffers_is_written_for_every_packet() {
        for features in [mergeable(), unmergeable()] {
            let mut driver = Driver::new(64, 0);
            let mut rx = rig::rx(&driver, features);
            for len in [42, 1514, LARGEST] {
                driver.post_rx(&[66_000]);
                assert_eq!(fill(&mut rx, len), filled(1));
                let used = driver.collect().unwrap();
                assert_eq!(driver.written(&used)[10..12], [1, 0]);
            }
        }
        let mut driver = Driver::new(64, 0);
        let mut rx = rig::rx(&driver, mergeable());
        for _ in 0..44 {
            driver.post_rx(&[1526]);
        }
        assert_eq!(fill(&mut rx, LARGEST), filled(43));
        let used = driver.collect().unwrap();
        assert_eq!(driver.written(&used)[10..12], [43, 0]);
    }

    #[test]
    fn f25_buffers_are_filled_to_the_end_whatever_their_sizes() {
        for sizes in [&[1526][..], &[2048], &[4096], &[1536, 600, 65536]] {
            for len in [100, 1514, 1515, 2036, 2037, 9014, 32_000, LARGEST] {
                let mut driver = Driver::new(64, 0);
                let mut rx = rig::rx(&driver, mergeable());
                for nth in 0..64 {
                    driver.post_rx(&[sizes[nth % sizes.len()]]);
                }
                assert!(matches!(fill(&mut rx, len), Fill::Filled { .. }));
                let used = driver.collect_all();
                assert_holds(&driver, &used, len);
            }
        }
    }

    #[test]
    fn f26_without_enough_buffers_nothing_is_shown_and_the_packet_comes_whole_later() {
        let mut driver = Driver::new(8, 65533);
        let mut rx = rig::rx(&driver, mergeable());
        for _ in 0..3 {
            driver.post_rx(&[1536]);
        }
        for _ in 0..2 {
            assert_eq!(fill(&mut rx, 6000), Fill::NoBuffers);
            assert_eq!(driver.collect(), None);
        }
        assert_eq!(rx.position(), 65533);
        driver.post_rx(&[1536]);
        assert_eq!(fill(&mut rx, 6000), filled(4));
        let used = driver.collect_all();
        assert_holds(&driver, &used, 6000);
        assert_eq!(rx.stats().buffer_waits, 2);
    }

    #[test]
    fn f26_several_packets_of_a_batch_are_shown_by_one_store() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        for _ in 0..4 {
            driver.post_rx(&[1536]);
        }
        for _ in 0..2 {
            assert_eq!(fill_packet(&mut rx, 2000), Ok(filled(2)));
            assert_eq!(driver.collect(), None);
        }
        assert!(rx.publish());
        let used = driver.collect_all();
        assert_holds(&driver, &used[..2], 2000);
        assert_holds(&driver, &used[2..], 2000);
    }

    #[test]
    fn f26_a_smaller_packet_still_fits_after_a_shortage() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        driver.post_rx(&[1536]);
        assert_eq!(fill(&mut rx, 3000), Fill::NoBuffers);
        assert_eq!(fill(&mut rx, 1000), filled(1));
        // As many entries as at the shortage, but larger ones.
        driver.post_rx(&[4096]);
        assert_eq!(fill(&mut rx, 3000), filled(1));
    }

    #[test]
    fn f27_a_packet_that_its_chain_can_not_take_leaves_the_chain_to_the_next() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, unmergeable());
        for _ in 0..2 {
            driver.post_rx(&[1526]);
        }
        assert_eq!(fill(&mut rx, 1514), filled(1));
        assert_eq!(fill(&mut rx, 1600), Fill::TooBig);
        assert_eq!(fill(&mut rx, 1514), filled(1));
        let used = driver.collect_all();
        assert_holds(&driver, &used[..1], 1514);
        assert_holds(&driver, &used[1..], 1514);
        assert_eq!(rx.stats().too_big, 1);
    }

    #[test]
    fn f27_a_ring_that_is_full_to_the_brim_can_not_take_more_by_waiting() {
        // Sizes of the buffers of one chain, and how many chains fill a ring of 8.
        for (lens, chains) in [(&[1526][..], 8), (&[12, 1514], 4), (&[12, 500, 1014], 2)] {
            let mut driver = Driver::new(8, 0);
            let mut rx = rig::rx(&driver, mergeable());
            for _ in 1..chains {
                driver.post_rx(lens);
            }
            assert_eq!(fill(&mut rx, LARGEST), Fill::NoBuffers, "{lens:?}");
            driver.post_rx(lens);
            assert_eq!(fill(&mut rx, LARGEST), Fill::TooBig, "{lens:?}");
            assert_eq!(fill(&mut rx, 1514), filled(1), "{lens:?}");
        }
    }

    #[test]
    fn an_empty_ring_is_worth_waiting_for() {
        for features in [mergeable(), unmergeable()] {
            let driver = Driver::new(8, 0);
            assert_eq!(fill(&mut rig::rx(&driver, features), 60), Fill::NoBuffers);
        }
    }

    #[test]
    fn f28_the_used_lengths_add_up_to_header_and_frame() {
        let mut driver = Driver::new(64, 0);
        let mut rx = rig::rx(&driver, mergeable());
        for _ in 0..40 {
            driver.post_rx(&[2048]);
        }
        for len in [60, 2036, 2037, 30_000] {
            fill(&mut rx, len);
            let sum: u32 = driver.collect_all().iter().map(|used| used.len).sum();
            assert_eq!(sum as usize, HDR + len);
        }
    }

    #[test]
    fn f29_a_burst_goes_through_a_small_ring_buffer_by_buffer() {
        let mut driver = Driver::new(8, 65530);
        let mut rx = rig::rx(&driver, mergeable());
        let buffer = driver.parts(&[1526], true);
        let mut delivered = 0;
        while delivered < 100 {
            while fill(&mut rx, 1514) == filled(1) {
                delivered += 1;
            }
            if rx.ring_mut().enable_notifications().unwrap() {
                continue;
            }
            // The guest gives one more and would have to kick for it.
            let before = driver.avail_idx();
            driver.collect_all();
            driver.post(&buffer).unwrap();
            assert_eq!(driver.avail_event(), before, "a kick was asked for");
        }
    }

    #[test]
    fn f30_the_header_goes_through_any_layout_of_descriptors() {
        for features in [mergeable(), unmergeable()] {
            for lens in [
                &[1, 11, 100][..],
                &[12, 100],
                &[11, 1, 100],
                &[5, 3, 4, 1, 99],
            ] {
                let mut driver = Driver::new(8, 0);
                let mut rx = rig::rx(&driver, features);
                driver.post_rx(lens);
                assert_eq!(fill(&mut rx, 90), filled(1));
                let used = driver.collect_all();
                assert_holds(&driver, &used, 90);
            }
        }
    }

    #[test]
    fn f30_a_chain_without_room_for_header_and_a_byte_goes_back_empty() {
        for features in [mergeable(), unmergeable()] {
            for lens in [&[12][..], &[5], &[1, 11], &[0]] {
                let mut driver = Driver::new(8, 0);
                let mut rx = rig::rx(&driver, features);
                driver.post_rx(lens);
                driver.post_rx(&[1526]);
                assert_eq!(fill(&mut rx, 90), filled(1));
                let used = driver.collect_all();
                assert_eq!(used[0].len, 0);
                assert!(driver.written(&used[0]).is_empty());
                assert_holds(&driver, &used[1..], 90);
                assert_eq!(rx.stats().bad_chains, 1);
            }
        }
    }

    #[test]
    fn f31_a_legacy_guest_gets_ten_bytes_of_header() {
        let legacy = unmergeable().without(Features::VERSION_1);
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, legacy);
        driver.post_rx(&[1526]);
        assert_eq!(fill(&mut rx, 60), filled(1));
        let used = driver.collect().unwrap();
        let bytes = driver.written(&used);
        assert_eq!(bytes[..10], MERGED.encode()[..10]);
        assert_eq!(bytes[10..], frame(60));
    }

    #[test]
    fn f32_a_readable_buffer_makes_the_chain_go_back_empty() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        let mut parts = driver.parts(&[1000, 1000], true);
        parts[1].is_writable = false;
        driver.post(&parts).unwrap();
        driver.post_rx(&[1526]);
        assert_eq!(fill(&mut rx, 1000), filled(1));
        let used = driver.collect_all();
        assert_eq!(used[0].len, 0);
        assert_holds(&driver, &used[1..], 1000);
    }

    #[test]
    fn f44_a_bad_chain_within_a_packet_spoils_the_ones_before_it_and_no_other() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        driver.post_rx(&[1000]);
        driver.post_rx(&[1000]);
        let mut bad = driver.parts(&[1000], true);
        bad[0].addr = u64::MAX - 10;
        driver.post(&bad).unwrap();
        for _ in 0..3 {
            driver.post_rx(&[1000]);
        }
        assert_eq!(fill(&mut rx, 2500), filled(3));
        let used = driver.collect_all();
        assert!(used[..3].iter().all(|chain| chain.len == 0));
        assert_holds(&driver, &used[3..], 2500);
        assert_eq!((rx.stats().bad_chains, rx.stats().spoilt_chains), (1, 2));
    }

    #[test]
    fn f44_bad_chains_go_back_even_when_the_packet_must_wait() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        driver.post_rx(&[3]);
        assert_eq!(fill(&mut rx, 60), Fill::NoBuffers);
        assert_eq!(driver.collect().map(|used| used.len), Some(0));
    }

    #[test]
    fn f46_a_broken_ring_is_reported() {
        let driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        driver.set_avail_idx(9);
        assert!(fill_packet(&mut rx, 60).is_err());
    }

    #[test]
    fn one_interrupt_for_a_batch_counted_when_sent_and_when_not() {
        let mut driver = Driver::new(8, 0);
        let mut rx = rig::rx(&driver, mergeable());
        for expected in [true, true, false] {
            driver.set_used_event(driver.used_idx() + u16::from(!expected) * 4);
            for _ in 0..2 {
                driver.post_rx(&[1526]);
                fill_packet(&mut rx, 60).unwrap();
            }
            rx.publish();
            assert_eq!(rx.needs_notification(), expected);
            driver.collect_all();
        }
        let notify = rx.stats().notify;
        assert_eq!((notify.sent, notify.suppressed), (2, 1));
    }

    /// Ways to cut `total` bytes into at most `pieces` buffers, empty ones among them.
    fn cuts(total: u32, pieces: usize) -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::vec(0..=total, 0..pieces).prop_map(move |mut at| {
            at.push(0);
            at.push(total);
            at.sort_unstable();
            at.windows(2).map(|pair| pair[1] - pair[0]).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn f32_any_cut_of_a_buffer_gives_the_same_bytes(
            small in cuts(4096, 63),
            large in cuts(65_600, 63),
            is_indirect in any::<bool>(),
            is_mergeable in any::<bool>(),
            small_len in 1..=4084_usize,
            large_len in 1..=LARGEST,
        ) {
            let features = if is_mergeable { mergeable() } else { unmergeable() };
            for (lens, len) in [(&small, small_len), (&large, large_len)] {
                let mut driver = Driver::new(64, 0);
                let mut rx = rig::rx(&driver, features);
                let parts = driver.parts(lens, true);
                if is_indirect {
                    driver.post_indirect(&parts).unwrap();
                } else {
                    driver.post(&parts).unwrap();
                }
                prop_assert_eq!(fill(&mut rx, len), filled(1));
                let used = driver.collect_all();
                assert_holds(&driver, &used, len);
            }
        }

        #[test]
        fn f25_any_ring_of_buffers_gives_every_packet_or_none_of_it(
            sizes in proptest::collection::vec(13..5000_u32, 1..64),
            lens in proptest::collection::vec(1..30_000_usize, 1..12),
            position in any::<u16>(),
        ) {
            let mut driver = Driver::new(64, position);
            let mut rx = rig::rx(&driver, mergeable());
            for &size in &sizes {
                driver.post_rx(&[size]);
            }
            let mut left: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
            for len in lens {
                let before = rx.position();
                match fill(&mut rx, len) {
                    Fill::Filled { buffers } => {
                        let used = driver.collect_all();
                        prop_assert_eq!(used.len(), usize::from(buffers));
                        assert_holds(&driver, &used, len);
                        let room = used.iter().flat_map(|chain| &chain.parts);
                        left -= room.map(|part| u64::from(part.len)).sum::<u64>();
                    }
                    Fill::NoBuffers | Fill::TooBig => {
                        prop_assert!(left < (HDR + len) as u64);
                        prop_assert_eq!(rx.position(), before);
                        prop_assert_eq!(driver.collect(), None);
                    }
                }
            }
        }
    }
}
