//! Packets: held in the table, or finished and on their way to the guest.

use alloc::vec::Vec;

use super::alike::Mask;
use super::flow::FlowKey;
use super::network::IdMode;
use crate::time::Instant;
use crate::wire::{Layout, VnetHdr};

/// A frame buffer that the engine owns while it holds the frame.
///
/// Reading gives the whole Ethernet frame. Writing is used for the headers of the first frame of
/// a merged packet only; payload is never changed.
pub trait FrameBytes: AsRef<[u8]> + AsMut<[u8]> {}

impl<B: AsRef<[u8]> + AsMut<[u8]>> FrameBytes for B {}

/// Payload of one merged frame: where in its buffer it lies.
#[derive(Debug)]
pub struct Piece<B> {
    pub(super) buf: B,
    pub(super) offset: u16,
}

impl<B: AsRef<[u8]>> Piece<B> {
    /// The payload bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buf
            .as_ref()
            .get(usize::from(self.offset)..)
            .unwrap_or_default()
    }
}

/// A packet of the receive list, ready to be written into guest buffers.
///
/// Its bytes are the whole first frame (headers brought up to date) and then the payload of each
/// further frame; nothing is copied until the guest's buffers are filled.
#[derive(Debug)]
pub struct GroPacket<B> {
    /// Header for the guest; `num_buffers` is set when the ring is filled.
    pub vnet: VnetHdr,
    pub(super) head: B,
    pub(super) rest: Vec<Piece<B>>,
    pub(super) len: usize,
    pub(super) segs: u32,
    pub(super) needs_segmentation: bool,
}

impl<B: AsRef<[u8]>> GroPacket<B> {
    /// A packet of one frame.
    #[inline]
    pub(super) fn of(head: B, vnet: VnetHdr) -> Self {
        Self {
            vnet,
            len: head.as_ref().len(),
            head,
            rest: Vec::new(),
            segs: 1,
            needs_segmentation: false,
        }
    }

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
        core::iter::once(self.head.as_ref()).chain(self.rest.iter().map(Piece::bytes))
    }
}

/// A packet in the table, to which further frames may be added (rule ENG-6). The header bytes of
/// its first frame stay as they are until it is completed.
#[derive(Debug)]
pub(super) struct HeldPacket<B> {
    pub(super) key: FlowKey,
    /// `vnet` is that of the first frame, from the host.
    pub(super) packet: GroPacket<B>,
    /// Of the first frame.
    pub(super) layout: Layout,
    /// What has to be equal in further frames.
    pub(super) mask: Option<&'static Mask>,
    /// IPv4 identification of the first frame.
    pub(super) first_id: u16,
    /// Arrival of the first frame; merging does not make a packet younger.
    pub(super) created: Instant,
    /// Metadata of the first frame (META-1).
    pub(super) merge_mark: u64,
    /// TCP sequence number behind the payload held so far.
    pub(super) next_seq: u32,
    /// FIN and PSH of merged segments.
    pub(super) collected: u8,
    pub(super) id_mode: IdMode,
}
