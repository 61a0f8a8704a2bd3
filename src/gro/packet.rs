//! A finished packet on its way to the guest: one frame, or several merged into one.

use alloc::vec::Vec;

use crate::wire::VnetHdr;

/// A frame buffer that the engine owns while it holds the frame.
///
/// Reading gives the whole Ethernet frame. Writing is used for the headers of the first frame of
/// a merged packet only; payload is never changed.
pub trait FrameBytes: AsRef<[u8]> + AsMut<[u8]> {}

impl<B: AsRef<[u8]> + AsMut<[u8]>> FrameBytes for B {}

/// Payload of one merged frame: where in its buffer it lies.
#[derive(Debug)]
pub struct Piece<B> {
    pub(crate) buf: B,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl<B: AsRef<[u8]>> Piece<B> {
    /// The payload bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let start = self.offset as usize;
        self.buf
            .as_ref()
            .get(start..start + self.len as usize)
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
    pub(crate) head: B,
    pub(crate) rest: Vec<Piece<B>>,
    pub(crate) len: usize,
    pub(crate) segs: u32,
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

    /// The bytes of the packet in order, piece by piece.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.head.as_ref()).chain(self.rest.iter().map(Piece::bytes))
    }
}
