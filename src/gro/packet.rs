//! Packets: held in the table, or finished and on their way to the guest.

use alloc::vec::Vec;

use super::fast::Expected;
use super::flow::FlowKey;
use super::join::Join;
use super::network::IdMode;
use super::store::PacketId;
use super::table::Slot;
use crate::wire::{Layout, VnetHdr};

/// A frame buffer that the engine owns while it holds the frame.
///
/// Reading gives the whole Ethernet frame, always of the same length. Writing is used for the headers of the first frame of
/// a merged packet only; payload is never changed.
pub trait FrameBytes: AsRef<[u8]> + AsMut<[u8]> {}

impl<B: AsRef<[u8]> + AsMut<[u8]>> FrameBytes for B {}

/// Room that a frame list grows by.
const MORE_FRAMES: usize = 16;

/// A packet of the receive list, ready to be written into guest buffers.
///
/// Its bytes are the whole first frame (headers brought up to date) and then the payload of each
/// further frame; nothing is copied until the guest's buffers are filled.
#[derive(Debug)]
pub struct GroPacket<B> {
    /// Header for the guest; `num_buffers` is set when the ring is filled.
    pub vnet: VnetHdr,
    /// The first frame; there is one in every packet that is in use.
    head: Option<B>,
    /// The further frames, whole.
    rest: Vec<B>,
    /// Bytes of headers in each of them, which are not part of the packet. All frames of a packet
    /// have the same, because everything that has a length in a header has to be equal.
    pub(super) header_len: u16,
    pub(super) len: usize,
    pub(super) segs: u32,
    pub(super) needs_segmentation: bool,
}

impl<B> GroPacket<B> {
    /// One without frames.
    const UNUSED: Self = Self {
        vnet: VnetHdr::PLAIN,
        head: None,
        rest: Vec::new(),
        header_len: 0,
        len: 0,
        segs: 0,
        needs_segmentation: false,
    };

    /// Moves what is in the packet out of it.
    pub(super) const fn take(&mut self) -> Self {
        core::mem::replace(self, Self::UNUSED)
    }

    /// Frames behind the first.
    #[inline(always)]
    pub(super) const fn rest_len(&self) -> usize {
        self.rest.len()
    }

    /// Lets go of the frames.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.head = None;
        self.rest.clear();
    }
}

impl<B: FrameBytes> GroPacket<B> {
    /// Makes an unused packet one of a single frame.
    #[inline(always)]
    pub(super) fn start(&mut self, head: B, vnet: VnetHdr) {
        self.vnet = vnet;
        self.len = head.as_ref().len();
        self.head = Some(head);
        self.segs = 1;
        self.needs_segmentation = false;
    }

    /// The first frame.
    #[inline(always)]
    pub(super) fn head(&self) -> &[u8] {
        self.head.as_ref().map_or(&[], B::as_ref)
    }

    /// The first frame, for its headers to be changed.
    #[inline(always)]
    pub(super) fn head_mut(&mut self) -> &mut [u8] {
        self.head.as_mut().map_or(&mut [], B::as_mut)
    }

    /// Counts what was added to a first frame of `mss` bytes of payload. Only the last frame of a
    /// packet may have less.
    #[inline]
    pub(super) fn count(&mut self, mss: u32) {
        let Some((last, full)) = self.rest.split_last() else {
            return;
        };
        let last_len = last.as_ref().len().saturating_sub(self.header_len.into());
        self.len += full.len() * mss as usize + last_len;
        self.segs = narrow(full.len()) + 2;
    }
}

impl<B: AsRef<[u8]>> GroPacket<B> {
    /// Bytes of the packet without the virtio-net header.
    #[must_use]
    pub const fn frame_len(&self) -> usize {
        self.len
    }

    /// Frames of the wire in this packet, at least 1. A packet that the host had merged counts
    /// as the number of its segments.
    #[must_use]
    pub const fn segs(&self) -> u32 {
        self.segs
    }

    /// Whether the host merged this packet into a form that the guest did not ack: it must be cut
    /// with [`crate::gso::segment`] before it is delivered (rule IN-3).
    #[must_use]
    pub const fn needs_segmentation(&self) -> bool {
        self.needs_segmentation
    }

    /// The bytes of the packet in order, piece by piece.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let head = self.head.iter().map(B::as_ref);
        head.chain(self.rest.iter().map(|frame| {
            let header_len = usize::from(self.header_len);
            frame.as_ref().get(header_len..).unwrap_or_default()
        }))
    }
}

/// A packet in the table, to which further frames may be added (rule ENG-6). The header bytes of
/// its first frame stay as they are until it is completed.
#[derive(Debug)]
pub(super) struct HeldPacket<B> {
    /// The next full segment.
    pub(super) expected: Expected,
    /// As if nothing joined it: header and lengths are brought up to date at completion.
    pub(super) packet: GroPacket<B>,
    /// Of the first frame.
    pub(super) layout: Layout,
    /// Where the table has it.
    pub(super) slot: Slot,
    /// The packet behind it in its chain; means nothing while it is held.
    pub(super) next: PacketId,
    /// FIN and PSH of merged segments.
    pub(super) collected: u8,
}

impl<B> Default for HeldPacket<B> {
    /// One that is not in use: nothing can join it.
    fn default() -> Self {
        Self {
            expected: Expected::NONE,
            packet: GroPacket::UNUSED,
            layout: Layout::NONE,
            slot: Slot::default(),
            next: PacketId::NONE,
            collected: 0,
        }
    }
}

impl<B: FrameBytes> HeldPacket<B> {
    /// Makes room for one more frame. Done before the frame is moved, so that it need not be kept
    /// safe from a failing allocation.
    #[inline(always)]
    pub(super) fn make_room(&mut self) {
        while self.packet.rest.len() == self.packet.rest.capacity() {
            self.packet.rest.reserve(MORE_FRAMES);
        }
    }

    /// Adds the frame that was expected.
    #[inline(always)]
    pub(super) fn append_next(&mut self, buf: B) {
        self.packet.rest.push(buf);
        self.expected.advance(self.layout.payload_len());
    }

    /// Adds a frame that may join.
    pub(super) fn append(&mut self, buf: B, join: &Join) {
        self.packet.rest.push(buf);
        self.expected.id = join.id;
        self.expected.id_step = join.id_step;
        self.expected.advance(join.payload_len);
        self.collected = join.flags;
    }

    /// What identifies its flow (FLOW-1).
    #[inline]
    pub(super) fn key(&self) -> Option<FlowKey> {
        FlowKey::read(self.packet.head(), self.layout)
    }

    /// Segments so far.
    #[inline(always)]
    pub(super) fn segs(&self) -> u32 {
        1 + narrow(self.packet.rest.len())
    }

    /// Bytes so far. Only the last segment of a packet may be shorter than the first, and with it
    /// the packet is complete: so far all are full.
    pub(super) fn len(&self) -> usize {
        self.packet.len + self.packet.rest.len() * self.layout.payload_len() as usize
    }

    /// How its identification behaves.
    pub(super) fn id_mode(&self) -> IdMode {
        match (self.packet.rest.len(), self.expected.id_step) {
            (0, _) => IdMode::Undecided,
            (_, 0) => IdMode::Fixed,
            _ => IdMode::Incrementing,
        }
    }
}

/// A number of frames, which the size limit keeps small.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "at most 64 KiB")]
const fn narrow(frames: usize) -> u32 {
    frames as u32
}
