//! Frames out of the guest's transmit buffers.
//!
//! A bulk of frames is in hand at a time. Of each, the header and first bytes, or the whole frame if
//! it is small or in very many pieces, are copied once and checked in the copy, so that the guest
//! can not change what was checked; the rest stays in guest memory for the uplink to send from.
//! What the uplink does not take at the moment stays in hand, checked and in order (rule TX-4). A
//! frame that was refused is in hand as well until its turn comes: buffers go back in the order in
//! which they came.

use super::chain::{self, Direction, Extent};
use super::features::{Features, Offloads};
use super::ring::{QueueFault, SplitRing};
use super::stats::TxQueueStats;
use super::tx_check::{self, FRAME_MAX, TxDrop};
use crate::sys::{GuestMap, GuestSlice};
use crate::wire::VnetHdr;
use crate::wire::vnet_hdr::{GSO_NONE, VNET_HDR_LEN};

/// Frames up to this many bytes are copied whole; above, a copy costs more than the pieces do.
const COPY_MAX: usize = 2048;
/// Bytes copied of larger frames, enough for all headers.
const HEAD_LEN: usize = 256;
/// Most pieces behind the copied bytes; a frame in more is copied whole. Linux gathers at most
/// `MAX_SKB_FRAGS` (17) fragments and the end of a linear part.
const REST_MAX: usize = 20;
/// Room for the copy of one frame. Most of it is never touched, which costs nothing. It is no
/// multiple of a page, or the heads of a bulk would be in each other's way in the processor's cache.
const COPY_LEN: usize = FRAME_MAX + COPY_MAX;

/// A frame from the guest, checked.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Header with only what rule TX-5 lets pass.
    pub vnet: VnetHdr,
    /// Our copy of the first bytes: the whole frame, or at least all headers.
    pub head: &'a [u8],
    rest: &'a [GuestSlice<'a>],
    frame_len: usize,
}

impl<'a> TxFrame<'a> {
    /// The bytes behind `head`, still in guest memory.
    #[must_use]
    pub const fn rest(&self) -> &[GuestSlice<'a>] {
        self.rest
    }

    /// Bytes of the frame, without the virtio-net header.
    #[must_use]
    pub const fn frame_len(&self) -> usize {
        self.frame_len
    }
}

/// Where the pieces of one frame after the other are noted while it is looked at. Made once for a
/// bulk: to clear it costs more than all else that is done for a small frame.
#[derive(Debug)]
pub struct Pieces<'m>([GuestSlice<'m>; REST_MAX]);

impl Default for Pieces<'_> {
    fn default() -> Self {
        Self([GuestSlice::from(<&mut [u8]>::default()); REST_MAX])
    }
}

/// One frame in hand.
#[derive(Clone, Copy, Debug)]
pub enum Tx<'a> {
    /// A frame to send.
    Frame(TxFrame<'a>),
    /// A frame that was refused and counted. Only its buffers wait to go back.
    Dropped(TxDrop),
}

/// What was taken from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A frame of this length, without its virtio-net header.
    Frame {
        /// Bytes, a super-frame's payload included.
        len: usize,
        /// Whether it is to be segmented.
        is_gso: bool,
    },
    /// A frame that was refused and counted.
    Dropped(TxDrop),
}

/// A chain in hand: taken from the ring, not used.
#[derive(Debug)]
struct InHand {
    chain_head: u16,
    frame: Result<Checked, TxDrop>,
    /// What is left of the frame behind the copied bytes.
    rest: Vec<Extent>,
}

/// A frame that may be sent.
#[derive(Clone, Copy, Debug)]
struct Checked {
    vnet: VnetHdr,
    frame_len: usize,
    /// Bytes of its copy that belong to it.
    copied: usize,
}

/// The queue from the guest.
#[derive(Debug)]
pub struct TxQueue {
    ring: SplitRing,
    hdr_len: usize,
    allowed: Offloads,
    /// Chains in hand are those from `first` to `end`, in the order of the ring.
    slots: Box<[InHand]>,
    first: usize,
    end: usize,
    /// [`COPY_LEN`] bytes for each slot.
    copies: Box<[u8]>,
    stats: TxQueueStats,
}

impl TxQueue {
    /// Serves `ring` to a guest that acked `features`, with up to `in_hand` frames in hand.
    #[must_use]
    pub fn new(ring: SplitRing, features: Features, in_hand: usize) -> Self {
        let slot = || InHand {
            chain_head: 0,
            frame: Err(TxDrop::BadChain),
            rest: Vec::with_capacity(chain::CHAIN_MAX),
        };
        let in_hand = in_hand.max(1);
        Self {
            ring,
            hdr_len: features.hdr_len(),
            allowed: features.host_offloads(),
            slots: std::iter::repeat_with(slot).take(in_hand).collect(),
            first: 0,
            end: 0,
            copies: vec![0; in_hand * COPY_LEN].into_boxed_slice(),
            stats: TxQueueStats::default(),
        }
    }

    /// The ring, to arm and disarm kicks.
    pub const fn ring_mut(&mut self) -> &mut SplitRing {
        &mut self.ring
    }

    /// Where a later run must start. Frames in hand were not used and come again then.
    #[must_use]
    pub const fn position(&self) -> u16 {
        self.ring.position()
    }

    /// Counters since the queue was made.
    #[must_use]
    pub const fn stats(&self) -> &TxQueueStats {
        &self.stats
    }

    /// Frames in hand, those that were refused included.
    #[must_use]
    pub const fn in_hand(&self) -> usize {
        self.end - self.first
    }

    /// Takes one frame from the ring, behind those in hand, and checks it; `None` when the ring is
    /// empty or there is no place for another one.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn take(&mut self) -> Result<Option<Taken>, QueueFault> {
        if self.end == self.slots.len() {
            return Ok(None);
        }
        let Some(chain_head) = self.ring.pop()? else {
            return Ok(None);
        };
        let frame = self.check(chain_head);
        let slot = &mut self.slots[self.end];
        slot.chain_head = chain_head;
        slot.frame = frame;
        self.end += 1;
        Ok(Some(match frame {
            Ok(checked) => Taken::Frame {
                len: checked.frame_len,
                is_gso: checked.vnet.gso_type != GSO_NONE,
            },
            Err(reason) => {
                self.stats.drops.count(reason);
                Taken::Dropped(reason)
            }
        }))
    }

    /// The frame in hand that has `nth` others before it.
    #[must_use]
    pub fn frame<'f, 'm: 'f>(&'m self, nth: usize, pieces: &'f mut Pieces<'m>) -> Option<Tx<'f>> {
        let at = self.first + nth;
        let slot = self.slots[..self.end].get(at)?;
        Some(match slot.frame {
            Ok(checked) => Tx::Frame(self.seen(at, slot, &checked, pieces)),
            Err(reason) => Tx::Dropped(reason),
        })
    }

    /// Gives the first `count` frames in hand back to the guest, sent or not. The device wrote
    /// nothing into their buffers, so the used length is 0.
    pub fn complete(&mut self, count: usize) {
        for _ in 0..count.min(self.in_hand()) {
            let slot = &self.slots[self.first];
            self.ring.stage_used(slot.chain_head, 0);
            if let Ok(checked) = slot.frame {
                self.stats.frames += 1;
                self.stats.bytes += checked.frame_len as u64;
            }
            self.first += 1;
        }
        if self.first == self.end {
            (self.first, self.end) = (0, 0);
        }
    }

    /// Shows the guest everything completed since the last call. Says whether there was anything.
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Whether the guest is to be interrupted for what was published since the last decision.
    pub fn needs_notification(&mut self) -> bool {
        let wanted = self.ring.needs_notification();
        self.stats.notify.count(wanted);
        wanted
    }

    /// Copies the frame in the chain at `chain_head` into the next slot, and checks it.
    fn check(&mut self, chain_head: u16) -> Result<Checked, TxDrop> {
        let rest = &mut self.slots[self.end].rest;
        let copy = &mut self.copies[self.end * COPY_LEN..][..COPY_LEN];
        rest.clear();
        let chain = chain::walk(&self.ring, chain_head, Direction::Readable, rest)
            .map_err(|_| TxDrop::BadChain)?;
        let frame_len = usize::try_from(chain.bytes)
            .map_err(|_| TxDrop::TooLong)?
            .checked_sub(self.hdr_len)
            .ok_or(TxDrop::TooShort)?;
        if frame_len > FRAME_MAX {
            return Err(TxDrop::TooLong);
        }
        let map = self.ring.map();
        let mut header = [0; VNET_HDR_LEN];
        let hdr_len = self.hdr_len.min(VNET_HDR_LEN);
        copy_front(map, rest, &mut header[..hdr_len]);
        let mut copied = if frame_len <= COPY_MAX {
            frame_len
        } else {
            HEAD_LEN
        };
        copy_front(map, rest, &mut copy[..copied]);
        if rest.len() > REST_MAX {
            copy_front(map, rest, &mut copy[copied..frame_len]);
            copied = frame_len;
            self.stats.copied += 1;
        }
        let vnet = tx_check::check(
            &VnetHdr::decode(&header),
            &copy[..copied],
            frame_len,
            self.allowed,
        )?;
        Ok(Checked {
            vnet,
            frame_len,
            copied,
        })
    }

    fn seen<'f, 'm: 'f>(
        &'m self,
        at: usize,
        slot: &InHand,
        checked: &Checked,
        Pieces(pieces): &'f mut Pieces<'m>,
    ) -> TxFrame<'f> {
        let mut count = 0;
        for (piece, extent) in pieces.iter_mut().zip(&slot.rest) {
            if let Some(slice) = extent.slice(self.ring.map()) {
                *piece = slice;
                count += 1;
            }
        }
        TxFrame {
            vnet: checked.vnet,
            head: &self.copies[at * COPY_LEN..][..checked.copied],
            rest: &pieces[..count],
            frame_len: checked.frame_len,
        }
    }
}

/// Fills `out` from the front of `extents` and takes those bytes off them. The caller made sure
/// that there are enough.
fn copy_front(map: &GuestMap, extents: &mut Vec<Extent>, out: &mut [u8]) {
    let mut filled = 0;
    let mut whole = 0;
    for extent in extents.iter_mut() {
        let room = &mut out[filled..];
        let count = room.len().min(extent.len());
        let Some(slice) = extent.slice(map) else {
            break;
        };
        slice.copy_to(&mut room[..count]);
        filled += count;
        if count < extent.len() {
            extent.advance(count);
            break;
        }
        whole += 1;
    }
    extents.drain(..whole);
}

#[cfg(test)]
mod tests {
    use super::super::driver_model::Driver;
    use super::super::rig;
    use super::*;
    use crate::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4};

    const HDR: usize = VNET_HDR_LEN;
    /// Largest frame of a guest with VIRTIO_NET_F_HOST_TSO4.
    const LARGEST: usize = 65549;

    fn queue(driver: &Driver) -> TxQueue {
        rig::tx(driver, rig::all_features())
    }

    /// A frame of `len` bytes that tell their place, behind a header that asks for nothing.
    fn plain(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; HDR];
        bytes.extend((0..len).map(|at| (at * 11 + at / 256).to_le_bytes()[0]));
        bytes
    }

    /// All bytes of a frame, wherever they lie.
    fn bytes(frame: &TxFrame<'_>) -> Vec<u8> {
        let mut bytes = frame.head.to_vec();
        for slice in frame.rest() {
            let start = bytes.len();
            bytes.resize(start + slice.len(), 0);
            slice.copy_to(&mut bytes[start..]);
        }
        assert_eq!(bytes.len(), frame.frame_len());
        bytes
    }

    /// The frame in hand behind `nth` others; `Err` for a refused one.
    fn seen(tx: &TxQueue, nth: usize) -> Result<Vec<u8>, TxDrop> {
        match tx
            .frame(nth, &mut Pieces::default())
            .expect("so many are in hand")
        {
            Tx::Frame(frame) => Ok(bytes(&frame)),
            Tx::Dropped(reason) => Err(reason),
        }
    }

    /// Takes the next frame whole and gives it back; `Err` for a refused one.
    fn take(tx: &mut TxQueue) -> Option<Result<Vec<u8>, TxDrop>> {
        tx.take().unwrap()?;
        let taken = seen(tx, 0);
        tx.complete(1);
        tx.publish();
        Some(taken)
    }

    /// `total` bytes as `count` sizes that are as equal as can be.
    fn split(total: usize, count: usize) -> Vec<u32> {
        (0..count)
            .map(|nth| u32::try_from(total * (nth + 1) / count - total * nth / count).unwrap())
            .collect()
    }

    #[test]
    fn f28_frames_come_whole_in_order_and_go_back_with_length_0() {
        let mut driver = Driver::new(8, 65533);
        let mut tx = queue(&driver);
        let heads: Vec<_> = [60, 1514, LARGEST]
            .iter()
            .map(|&len| driver.post_tx(&plain(len), &split(HDR + len, 2)))
            .collect();
        for len in [60, 1514, LARGEST] {
            assert_eq!(take(&mut tx), Some(Ok(plain(len)[HDR..].to_vec())));
        }
        assert_eq!(take(&mut tx), None);
        let used = driver.collect_all();
        assert!(used.iter().all(|chain| chain.len == 0));
        assert_eq!(
            used.iter().map(|chain| chain.head).collect::<Vec<_>>(),
            heads
        );
        assert_eq!(tx.stats().bytes, 60 + 1514 + LARGEST as u64);
    }

    #[test]
    fn f39_a_frame_stays_in_hand_until_it_is_completed() {
        let mut driver = Driver::new(8, 0);
        let mut tx = queue(&driver);
        driver.post_tx(&plain(5000), &[12, 5000]);
        driver.post_tx(&plain(60), &[12, 60]);
        tx.take().unwrap();
        for _ in 0..3 {
            assert_eq!(seen(&tx, 0), Ok(plain(5000)[HDR..].to_vec()));
        }
        assert!(!tx.publish(), "nothing is given back yet");
        assert_eq!(tx.position(), 0, "a later run begins with this frame");
        tx.complete(2);
        assert_eq!(tx.position(), 1, "completing is for frames in hand only");
        assert_eq!(take(&mut tx), Some(Ok(plain(60)[HDR..].to_vec())));
        assert_eq!((tx.stats().frames, driver.collect_all().len()), (2, 2));
    }

    #[test]
    fn tx_4_what_is_left_of_a_bulk_stays_in_order_and_as_it_was_checked() {
        let mut driver = Driver::new(16, 65530);
        let mut tx = queue(&driver);
        let frames = [plain(60), plain(5000), plain(1514), plain(3000)];
        let mut parts = Vec::new();
        for frame in &frames {
            let len = u32::try_from(frame.len()).unwrap();
            parts.push(driver.tx_parts(frame, &[12, len - 12]));
            driver.post(parts.last().unwrap()).unwrap();
        }
        for _ in &frames {
            assert!(matches!(tx.take(), Ok(Some(Taken::Frame { .. }))));
        }
        assert_eq!(tx.take(), Ok(None), "the ring is empty");
        tx.complete(2);
        tx.publish();
        assert_eq!(driver.collect_all().len(), 2);
        // The guest writes other headers where they were.
        for parts in &parts {
            driver.write(parts[0].addr, &[0xff; 12]);
        }
        assert_eq!(tx.in_hand(), 2);
        for (nth, frame) in frames[2..].iter().enumerate() {
            assert_eq!(seen(&tx, nth), Ok(frame[HDR..].to_vec()));
        }
        assert!(tx.frame(2, &mut Pieces::default()).is_none());
        tx.complete(2);
        tx.publish();
        assert_eq!(driver.collect_all().len(), 2);
        assert_eq!(tx.stats().frames, 4);
    }

    #[test]
    fn tx_4_a_refused_frame_goes_back_when_its_turn_comes() {
        let mut driver = Driver::new(16, 0);
        let mut tx = queue(&driver);
        let heads = [plain(60), plain(1), plain(70)]
            .map(|frame| driver.post_tx(&frame, &[u32::try_from(frame.len()).unwrap()]));
        let taken: Vec<_> = (0..3).filter_map(|_| tx.take().unwrap()).collect();
        assert_eq!(taken[1], Taken::Dropped(TxDrop::TooShort));
        assert_eq!(seen(&tx, 1), Err(TxDrop::TooShort));
        assert!(!tx.publish(), "the first one is not sent yet");
        tx.complete(3);
        tx.publish();
        let used: Vec<_> = driver.collect_all().iter().map(|used| used.head).collect();
        assert_eq!(used, heads);
        assert_eq!((tx.stats().frames, tx.stats().drops.total()), (2, 1));
    }

    #[test]
    fn no_more_frames_are_in_hand_than_there_is_place_for() {
        let mut driver = Driver::new(16, 0);
        let ring = rig::ring(&driver, rig::all_features());
        let mut tx = TxQueue::new(ring, rig::all_features(), 2);
        for _ in 0..3 {
            driver.post_tx(&plain(60), &[72]);
        }
        let taken = std::iter::from_fn(|| tx.take().unwrap()).count();
        assert_eq!((taken, tx.in_hand()), (2, 2));
        tx.complete(1);
        assert_eq!(tx.take(), Ok(None), "what is left comes first");
        tx.complete(1);
        assert!(tx.take().unwrap().is_some());
    }

    #[test]
    fn f48_what_was_checked_can_not_be_changed_afterwards() {
        let mut driver = Driver::new(8, 0);
        let mut tx = queue(&driver);
        let frame = plain(4000);
        let parts = driver.tx_parts(&frame, &[4012]);
        driver.post(&parts).unwrap();
        assert!(tx.take().unwrap().is_some());
        driver.write(parts[0].addr, &vec![0xff; 4012]);
        let mut pieces = Pieces::default();
        let Some(Tx::Frame(seen)) = tx.frame(0, &mut pieces) else {
            panic!("the frame is still in hand");
        };
        assert_eq!(seen.vnet, VnetHdr::default());
        assert_eq!(seen.head, &frame[HDR..HDR + HEAD_LEN]);
    }

    #[test]
    fn f42_a_frame_in_very_many_pieces_comes_whole() {
        for count in [1, 2, 19, 64, 256, 1024] {
            for is_indirect in [false, true] {
                let mut driver = Driver::new(1024, 0);
                let mut tx = queue(&driver);
                let frame = plain(LARGEST);
                let parts = driver.tx_parts(&frame, &split(frame.len(), count));
                if is_indirect {
                    driver.post_indirect(&parts).unwrap();
                } else {
                    driver.post(&parts).unwrap();
                }
                assert!(take(&mut tx) == Some(Ok(frame[HDR..].to_vec())), "{count}");
                let is_copied = count - 1 > REST_MAX;
                assert_eq!(tx.stats().copied, u64::from(is_copied), "{count}");
            }
        }
    }

    #[test]
    fn f42_one_byte_descriptors_come_whole() {
        let mut driver = Driver::new(1024, 0);
        let mut tx = queue(&driver);
        let frame = plain(1000);
        driver.post_tx(&frame, &vec![1; frame.len()]);
        assert_eq!(take(&mut tx), Some(Ok(frame[HDR..].to_vec())));
    }

    #[test]
    fn f42_a_chain_beyond_the_bound_goes_back_and_the_queue_goes_on() {
        let mut driver = Driver::new(8, 0);
        let mut tx = queue(&driver);
        let parts = driver.tx_parts(&plain(1100), &split(1112, 1025));
        driver.post_indirect(&parts).unwrap();
        driver.post_tx(&plain(60), &[72]);
        assert_eq!(take(&mut tx), Some(Err(TxDrop::BadChain)));
        assert_eq!(take(&mut tx), Some(Ok(plain(60)[HDR..].to_vec())));
        assert_eq!(driver.collect_all().len(), 2);
        assert_eq!(tx.stats().drops.get(TxDrop::BadChain), 1);
    }

    #[test]
    fn f38_lengths_that_no_frame_has_are_refused() {
        for (len, reason) in [
            (0, TxDrop::TooShort),
            (HDR - 1, TxDrop::TooShort),
            (HDR + 13, TxDrop::TooShort),
            (HDR + FRAME_MAX + 1, TxDrop::TooLong),
        ] {
            let mut driver = Driver::new(8, 0);
            let mut tx = queue(&driver);
            driver.post_tx(&vec![0; len], &split(len, 2));
            assert_eq!(take(&mut tx), Some(Err(reason)), "{len}");
            assert_eq!(driver.collect().map(|used| used.len), Some(0));
        }
    }

    #[test]
    fn a_writable_buffer_is_refused() {
        let mut driver = Driver::new(8, 0);
        let mut tx = queue(&driver);
        driver.post_rx(&[100]);
        assert_eq!(take(&mut tx), Some(Err(TxDrop::BadChain)));
    }

    #[test]
    fn a_legacy_guest_sends_ten_bytes_of_header() {
        let features = Features::CSUM;
        let mut driver = Driver::new(8, 0);
        let mut tx = rig::tx(&driver, features);
        driver.post_tx(&plain(60)[2..], &[70]);
        assert_eq!(take(&mut tx), Some(Ok(plain(60)[HDR..].to_vec())));
    }

    #[test]
    fn f38_no_header_whatever_harms_or_stops_the_queue() {
        const BYTES: [u8; 5] = [0, 1, 4, 5, 0x81];
        const WORDS: [u16; 8] = [0, 1, 14, 34, 50, 1448, 65534, 65535];
        let lens = (0..=70).chain([1514, 65550]);
        let mut driver = Driver::new(4, 0);
        let mut tx = queue(&driver);
        let mut seen = 0;
        for len in lens {
            // Large frames need not meet every value.
            let words = if len > 70 { &WORDS[6..] } else { &WORDS[..] };
            for flags in [0, 1, 0xf7] {
                for gso_type in BYTES {
                    for &gso_size in words {
                        for &csum_start in words {
                            let mut frame = plain(len);
                            frame[..HDR].copy_from_slice(
                                &VnetHdr {
                                    flags,
                                    gso_type,
                                    hdr_len: !csum_start,
                                    gso_size,
                                    csum_start,
                                    csum_offset: gso_size,
                                    num_buffers: 0,
                                }
                                .encode(),
                            );
                            driver.post_tx(&frame, &[u32::try_from(frame.len()).unwrap()]);
                            driver.post_tx(&plain(60), &[72]);
                            let outcome = take(&mut tx).expect("a frame or a refusal");
                            assert!(outcome.is_err() || outcome == Ok(frame[HDR..].to_vec()));
                            seen += usize::from(outcome.is_err());
                            assert_eq!(take(&mut tx), Some(Ok(plain(60)[HDR..].to_vec())));
                            assert!(driver.collect_all().iter().all(|used| used.len == 0));
                            driver.reset_alloc();
                        }
                    }
                }
            }
        }
        assert_eq!(tx.stats().drops.total(), seen as u64);
        assert_eq!(
            tx.stats().drops.iter().map(|(_, count)| count).sum::<u64>(),
            seen as u64
        );
    }

    #[test]
    fn a_checked_segmentation_header_comes_with_the_frame() {
        let mut driver = Driver::new(8, 0);
        let mut tx = queue(&driver);
        let mut frame = plain(3000);
        frame[HDR + 12..HDR + 15].copy_from_slice(&[8, 0, 0x45]);
        frame[HDR + 23] = 6;
        frame[HDR + 46] = 5 << 4;
        let vnet = VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 54,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 0,
        };
        frame[..HDR].copy_from_slice(&vnet.encode());
        driver.post_tx(&frame, &[12, 100, 2900]);
        let is_gso = true;
        assert_eq!(tx.take(), Ok(Some(Taken::Frame { len: 3000, is_gso })));
        let mut pieces = Pieces::default();
        let Some(Tx::Frame(seen)) = tx.frame(0, &mut pieces) else {
            panic!("a good frame");
        };
        assert_eq!(seen.vnet, vnet);
    }

    #[test]
    fn interrupts_are_decided_once_and_counted() {
        let mut driver = Driver::new(8, 0);
        let mut tx = queue(&driver);
        driver.post_tx(&plain(60), &[72]);
        take(&mut tx).unwrap().unwrap();
        assert!(tx.needs_notification(), "the first decision is yes");
        driver.set_used_event(100);
        driver.post_tx(&plain(60), &[72]);
        take(&mut tx).unwrap().unwrap();
        assert!(!tx.needs_notification());
        let notify = tx.stats().notify;
        assert_eq!((notify.sent, notify.suppressed), (1, 1));
    }
}
