//! Frames out of the guest's transmit buffers.
//!
//! One frame is in hand at a time. Its header and first bytes, or the whole frame if it is small
//! or in very many pieces, are copied once and checked in the copy, so that the guest can not
//! change what was checked; the rest stays in guest memory for the uplink to send from. A frame
//! that the uplink does not take at the moment stays in hand and comes again (rule TX-4).

use super::chain::{self, Direction, Extent};
use super::features::{Features, Offloads};
use super::ring::{QueueFault, SplitRing};
use super::stats::TxQueueStats;
use super::tx_check::{self, FRAME_MAX, TxDrop};
use crate::sys::{GuestMap, GuestSlice};
use crate::wire::VnetHdr;
use crate::wire::vnet_hdr::VNET_HDR_LEN;

/// Frames up to this many bytes are copied whole; above, a copy costs more than the pieces do.
const COPY_MAX: usize = 2048;
/// Bytes copied of larger frames, enough for all headers.
const HEAD_LEN: usize = 256;
/// Most pieces behind the copied bytes; a frame in more is copied whole. Linux gathers at most
/// `MAX_SKB_FRAGS` (17) fragments and the end of a linear part.
const REST_MAX: usize = 20;

/// A frame from the guest, checked.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Header with only what rule TX-5 lets pass.
    pub vnet: VnetHdr,
    /// Our copy of the first bytes: the whole frame, or at least all headers.
    pub head: &'a [u8],
    rest: [GuestSlice<'a>; REST_MAX],
    rest_len: usize,
    frame_len: usize,
}

impl<'a> TxFrame<'a> {
    /// The bytes behind `head`, still in guest memory.
    #[must_use]
    pub fn rest(&self) -> &[GuestSlice<'a>] {
        &self.rest[..self.rest_len]
    }

    /// Bytes of the frame, without the virtio-net header.
    #[must_use]
    pub const fn frame_len(&self) -> usize {
        self.frame_len
    }
}

/// What the queue had next.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack for one frame; a box would allocate"
)]
pub enum Tx<'a> {
    /// A frame to send. It comes again until [`TxQueue::complete`] is called.
    Frame(TxFrame<'a>),
    /// A frame that was refused, counted and completed.
    Dropped(TxDrop),
}

/// The frame in hand: taken from the ring, checked, not completed.
#[derive(Clone, Copy, Debug)]
struct InHand {
    chain_head: u16,
    vnet: VnetHdr,
    frame_len: usize,
    /// Bytes of `copy` that belong to the frame.
    copied: usize,
}

/// The queue from the guest.
#[derive(Debug)]
pub struct TxQueue {
    ring: SplitRing,
    hdr_len: usize,
    allowed: Offloads,
    in_hand: Option<InHand>,
    /// What is left of the frame in hand behind the copied bytes.
    rest: Vec<Extent>,
    copy: Box<[u8]>,
    stats: TxQueueStats,
}

impl TxQueue {
    /// Serves `ring` to a guest that acked `features`.
    #[must_use]
    pub fn new(ring: SplitRing, features: Features) -> Self {
        Self {
            ring,
            hdr_len: features.hdr_len(),
            allowed: features.host_offloads(),
            in_hand: None,
            rest: Vec::with_capacity(chain::CHAIN_MAX),
            copy: vec![0; FRAME_MAX].into_boxed_slice(),
            stats: TxQueueStats::default(),
        }
    }

    /// The ring, to arm and disarm kicks.
    pub const fn ring_mut(&mut self) -> &mut SplitRing {
        &mut self.ring
    }

    /// Where a later run must start. A frame in hand was not used and comes again then.
    #[must_use]
    pub const fn position(&self) -> u16 {
        self.ring.position()
    }

    /// Counters since the queue was made.
    #[must_use]
    pub const fn stats(&self) -> &TxQueueStats {
        &self.stats
    }

    /// The frame in hand, or else the next one of the ring; `None` when the ring is empty.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn peek(&mut self) -> Result<Option<Tx<'_>>, QueueFault> {
        if self.in_hand.is_none() {
            let Some(chain_head) = self.ring.pop()? else {
                return Ok(None);
            };
            match self.take(chain_head) {
                Ok(taken) => self.in_hand = Some(taken),
                Err(reason) => {
                    self.stats.drops.count(reason);
                    self.ring.stage_used(chain_head, 0);
                    return Ok(Some(Tx::Dropped(reason)));
                }
            }
        }
        Ok(self.in_hand.map(|taken| Tx::Frame(self.frame(&taken))))
    }

    /// Gives the frame in hand back to the guest, sent or not. The device wrote nothing into its
    /// buffers, so the used length is 0.
    pub fn complete(&mut self) {
        if let Some(taken) = self.in_hand.take() {
            self.ring.stage_used(taken.chain_head, 0);
            self.stats.frames += 1;
            self.stats.bytes += taken.frame_len as u64;
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

    /// Copies and checks the frame in the chain at `chain_head`.
    fn take(&mut self, chain_head: u16) -> Result<InHand, TxDrop> {
        self.rest.clear();
        let chain = chain::walk(&self.ring, chain_head, Direction::Readable, &mut self.rest)
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
        copy_front(map, &mut self.rest, &mut header[..hdr_len]);
        let mut copied = if frame_len <= COPY_MAX {
            frame_len
        } else {
            HEAD_LEN
        };
        copy_front(map, &mut self.rest, &mut self.copy[..copied]);
        if self.rest.len() > REST_MAX {
            copy_front(map, &mut self.rest, &mut self.copy[copied..frame_len]);
            copied = frame_len;
            self.stats.copied += 1;
        }
        let vnet = tx_check::check(
            &VnetHdr::decode(&header),
            &self.copy[..copied],
            frame_len,
            self.allowed,
        )?;
        Ok(InHand {
            chain_head,
            vnet,
            frame_len,
            copied,
        })
    }

    fn frame(&self, taken: &InHand) -> TxFrame<'_> {
        let mut rest = [empty_slice(); REST_MAX];
        let mut rest_len = 0;
        for (slot, extent) in rest.iter_mut().zip(&self.rest) {
            if let Some(slice) = extent.slice(self.ring.map()) {
                *slot = slice;
                rest_len += 1;
            }
        }
        TxFrame {
            vnet: taken.vnet,
            head: &self.copy[..taken.copied],
            rest,
            rest_len,
            frame_len: taken.frame_len,
        }
    }
}

fn empty_slice<'a>() -> GuestSlice<'a> {
    GuestSlice::from(<&mut [u8]>::default())
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
