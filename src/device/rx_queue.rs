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
        let available = self.ring.available()?;
        if let Some(last) = self.shortage
            && last.available == available
            && last.bytes < needed
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
