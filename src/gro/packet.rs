//! Packets: held in the table, or finished and on their way to the guest.

use alloc::vec::Vec;

use super::alike::Mask;
use super::config::GroConfig;
use super::ethernet_len;
use super::flow::FlowKey;
use super::join::Join;
use super::network::IdMode;
use super::udp::MAX_SEGS;
use crate::time::Instant;
use crate::wire::{Layout, Transport, VnetHdr};

/// A frame buffer that the engine owns while it holds the frame.
///
/// Reading gives the whole Ethernet frame. Writing is used for the headers of the first frame of
/// a merged packet only; payload is never changed.
pub trait FrameBytes: AsRef<[u8]> + AsMut<[u8]> {}

impl<B: AsRef<[u8]> + AsMut<[u8]>> FrameBytes for B {}

/// A packet of the receive list, ready to be written into guest buffers.
///
/// Its bytes are the whole first frame (headers brought up to date) and then the payload of each
/// further frame; nothing is copied until the guest's buffers are filled.
#[derive(Debug)]
pub struct GroPacket<B> {
    /// Header for the guest; `num_buffers` is set when the ring is filled.
    pub vnet: VnetHdr,
    pub(super) head: B,
    /// The further frames, whole.
    pub(super) rest: Vec<B>,
    /// Bytes of headers in each of them, which are not part of the packet. All frames of a packet
    /// have the same, because everything that has a length in a header has to be equal.
    pub(super) header_len: u16,
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
            header_len: 0,
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
        core::iter::once(self.head.as_ref()).chain(self.rest.iter().map(|frame| {
            let header_len = usize::from(self.header_len);
            frame.as_ref().get(header_len..).unwrap_or_default()
        }))
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
    /// IPv4 identification that the next frame should have.
    pub(super) next_id: u16,
    /// TCP sequence number behind the payload held so far.
    pub(super) next_seq: u32,
    pub(super) room: Room,
    /// FIN and PSH of merged segments.
    pub(super) collected: u32,
    pub(super) id_mode: IdMode,
}

impl<B> HeldPacket<B> {
    /// Adds a frame that may join.
    #[inline(always)]
    pub(super) fn append(&mut self, buf: B, join: &Join) {
        self.packet.rest.push(buf);
        self.packet.len += join.payload_len as usize;
        self.packet.segs += 1;
        self.next_seq = self.next_seq.wrapping_add(join.payload_len);
        self.collected |= join.flags;
        self.id_mode = join.id_mode;
        let step = u16::from(join.id_mode == IdMode::Incrementing);
        self.next_id = match join.id_mode {
            IdMode::Fixed => self.first_id,
            IdMode::Undecided | IdMode::Incrementing => self.next_id.wrapping_add(step),
        };
        self.room.take(join.payload_len);
    }
}

/// How much may still join (TCP-9, UDP-4, LIM-1, LIM-3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of payload up to the size limit.
    bytes: u32,
    /// Segments up to the limit of their number.
    segs: u32,
    /// Longest payload that may still join.
    max_len: u32,
    /// Payload of the first frame.
    mss: u32,
}

impl Room {
    /// What is left behind a first frame of `len` bytes.
    pub(super) fn behind(len: usize, layout: &Layout, config: &GroConfig) -> Self {
        let bytes = config.size_limit().saturating_sub(ethernet_len(len));
        let segs = match layout.transport {
            Transport::Tcp => config.gro_max_segs,
            Transport::Udp => MAX_SEGS,
        };
        let mut room = Self {
            bytes: u32::try_from(bytes).unwrap_or_default(),
            segs,
            max_len: 0,
            mss: layout.payload_len,
        };
        room.take(0);
        room
    }

    /// Whether a payload is neither empty nor too long; one comparison for both.
    #[inline(always)]
    pub(super) const fn has_for(&self, payload_len: u32) -> bool {
        payload_len.wrapping_sub(1) < self.max_len
    }

    /// Whether one more segment is the last.
    #[inline(always)]
    pub(super) const fn is_last(&self) -> bool {
        self.segs == 1
    }

    #[inline(always)]
    fn take(&mut self, payload_len: u32) {
        self.bytes = self.bytes.saturating_sub(payload_len);
        self.segs = self.segs.saturating_sub(1);
        self.max_len = if self.segs == 0 {
            0
        } else {
            self.bytes.min(self.mss)
        };
    }
}
