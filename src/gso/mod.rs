//! GSO in software: cuts a super-frame into the segments it stands for.
//!
//! Used where a packet cannot be handed on as it is: the guest did not negotiate its type, its
//! buffers are too small for it (rule FILL-4), or an uplink has no offload. It is the exact
//! inverse of merging, but for the fields that the rules allow to differ (INV-4).
//!
//! A super-frame's payload lies in several pieces, so it is given as an iterator of slices, the
//! first of which holds all headers. Each segment is built in a buffer of the caller. Segments
//! can be built one by one and in any order ([`Segments::write`]), so that a caller that runs out
//! of room can go on later from the same one.

use core::ops::ControlFlow;

use crate::wire::checksum::{self, OutOfFrame, Sum};
use crate::wire::ipv4::Ipv4;
use crate::wire::tcp::{self, Tcp};
use crate::wire::{GsoFault, GsoLayout, Network, Transport, VnetHdr, ipv4, ipv6, udp};

/// Why a packet was not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoError {
    /// Its header does not fit its bytes.
    Header(GsoFault),
    /// The buffer is shorter than a segment.
    BufferTooSmall,
    /// There is no segment of that index.
    NoSuchSegment,
}

impl core::fmt::Display for GsoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Header(_) => f.write_str("the segmentation header does not fit the frame"),
            Self::BufferTooSmall => f.write_str("the buffer is shorter than a segment"),
            Self::NoSuchSegment => f.write_str("the packet has fewer segments"),
        }
    }
}

impl core::error::Error for GsoError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Header(fault) => Some(fault),
            Self::BufferTooSmall | Self::NoSuchSegment => None,
        }
    }
}

/// How a packet is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    shape: GsoLayout,
}

impl Segments {
    /// Plans the cutting of the packet in `slices`, whose header is `vnet`.
    ///
    /// # Errors
    /// [`GsoError::Header`] if the two contradict each other or the first slice does not hold all
    /// headers.
    pub fn new<'a>(
        mut slices: impl Iterator<Item = &'a [u8]>,
        vnet: &VnetHdr,
    ) -> Result<Self, GsoError> {
        let head = slices.next().unwrap_or_default();
        let frame_len = slices.fold(head.len(), |len, slice| len + slice.len());
        GsoLayout::parse(head, frame_len, vnet)
            .map(|shape| Self { shape })
            .map_err(GsoError::Header)
    }

    /// Number of segments, at least 1.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.shape.segs
    }

    /// Bytes of buffer that every segment fits into.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.shape.segment_len()
    }

    /// Builds segment `index` at the start of `out` and returns its length in bytes.
    ///
    /// `slices` are the same that the plan was made from. All checksums of the segment are
    /// complete.
    ///
    /// # Errors
    /// [`GsoError::NoSuchSegment`] or [`GsoError::BufferTooSmall`].
    pub fn write<'a>(
        &self,
        slices: impl Iterator<Item = &'a [u8]>,
        index: u32,
        out: &mut [u8],
    ) -> Result<usize, GsoError> {
        let (start, len) = self
            .shape
            .payload_range(index)
            .ok_or(GsoError::NoSuchSegment)?;
        let payload_at = usize::from(self.shape.layout.payload);
        let out = out
            .get_mut(..payload_at + len)
            .ok_or(GsoError::BufferTooSmall)?;
        let (headers, payload) = out.split_at_mut(payload_at);
        gather(slices, start, headers, payload);
        self.fix_headers(index, out);
        Ok(out.len())
    }

    /// Rewrites the copied headers for segment `index` (rule TX-7).
    fn fix_headers(&self, index: u32, segment: &mut [u8]) {
        let layout = &self.shape.layout;
        let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
        match layout.network {
            Network::Ipv4 => {
                let first_id = Ipv4::at(segment, l3).map_or(0, Ipv4::id);
                let total = length(segment.len() - l3);
                // The identification counts modulo 2^16.
                let step = length(index as usize & 0xffff);
                ipv4::rewrite(segment, l3, total, first_id.wrapping_add(step));
            }
            Network::Ipv6 => {
                ipv6::rewrite(segment, l3, length(segment.len() - l3 - ipv6::HEADER_LEN));
            }
        }
        let seed = self.pseudo_header(segment);
        match layout.transport {
            Transport::Tcp => self.fix_tcp(index, segment, seed),
            Transport::Udp => {
                let len = length(segment.len() - l4);
                udp::rewrite(segment, l4, len, 0);
                let sum = transport_sum(seed, segment, l4);
                let checksum =
                    checksum::stored_form(sum.complement(), layout.transport.checksum_offset());
                udp::rewrite(segment, l4, len, checksum);
            }
        }
    }

    fn fix_tcp(&self, index: u32, segment: &mut [u8], seed: Sum) {
        let l4 = usize::from(self.shape.layout.l4);
        let Some((seq, flags)) = Tcp::at(segment, l4).map(|tcp| (tcp.seq(), tcp.flags())) else {
            return;
        };
        let step = index.wrapping_mul(u32::from(self.shape.gso_size));
        tcp::set_seq(segment, l4, seq.wrapping_add(step));
        let flags = segment_flags(flags, index == 0, index + 1 == self.shape.segs);
        tcp::rewrite(segment, l4, flags, 0);
        let sum = transport_sum(seed, segment, l4);
        tcp::rewrite(segment, l4, flags, sum.complement());
    }

    /// The pseudo-header sum of a segment, from that of the whole packet, which stands in the
    /// checksum field. So routing headers, whose final destination is part of the sum, are right.
    fn pseudo_header(&self, segment: &[u8]) -> Sum {
        let layout = &self.shape.layout;
        let l4 = usize::from(layout.l4);
        let field = l4 + usize::from(layout.transport.checksum_offset());
        let partial = segment.get(field..field + 2).map_or(Sum::ZERO, Sum::of);
        let header_len = usize::from(layout.payload) - l4;
        let whole = header_len + layout.payload_len as usize;
        partial
            .minus_word(length(whole))
            .plus_word(length(segment.len() - l4))
    }
}

/// Cuts the packet in `slices` and gives each segment, in order, to `sink`, which may break off.
/// Each is built in `scratch`. Returns how many segments the sink took.
///
/// # Errors
/// See [`Segments::new`] and [`Segments::write`]; no segment was given out then.
pub fn segment<'a, I>(
    slices: I,
    vnet: &VnetHdr,
    scratch: &mut [u8],
    mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<u32, GsoError>
where
    I: Iterator<Item = &'a [u8]> + Clone,
{
    let segments = Segments::new(slices.clone(), vnet)?;
    if scratch.len() < segments.max_len() {
        return Err(GsoError::BufferTooSmall);
    }
    for index in 0..segments.count() {
        let len = segments.write(slices.clone(), index, scratch)?;
        let segment = scratch.get(..len).ok_or(GsoError::BufferTooSmall)?;
        if sink(segment).is_break() {
            return Ok(index);
        }
    }
    Ok(segments.count())
}

/// Finishes the partial checksum that `vnet` describes (rule TX-8).
///
/// # Errors
/// Its place lies outside the frame.
pub fn complete_checksum(frame: &mut [u8], vnet: &VnetHdr) -> Result<(), OutOfFrame> {
    checksum::complete(frame, vnet.csum_start, vnet.csum_offset)
}

/// Copies the headers from the first slice and `payload.len()` bytes of payload from `start` on.
fn gather<'a>(
    mut slices: impl Iterator<Item = &'a [u8]>,
    start: usize,
    headers: &mut [u8],
    payload: &mut [u8],
) {
    let head = slices.next().unwrap_or_default();
    let Some((from, first)) = head.split_at_checked(headers.len()) else {
        return;
    };
    headers.copy_from_slice(from);
    let (mut skip, mut filled) = (start, 0);
    for slice in core::iter::once(first).chain(slices) {
        let Some(rest) = slice.get(skip..) else {
            skip -= slice.len();
            continue;
        };
        skip = 0;
        let Some(room) = payload.get_mut(filled..) else {
            return;
        };
        let len = room.len().min(rest.len());
        room[..len].copy_from_slice(&rest[..len]);
        filled += len;
        if filled == payload.len() {
            return;
        }
    }
}

/// FIN and PSH only on the last segment, CWR only on the first (RFC 3168).
const fn segment_flags(flags: u8, is_first: bool, is_last: bool) -> u8 {
    let mut flags = flags;
    if !is_last {
        flags &= !(tcp::FIN | tcp::PSH);
    }
    if !is_first {
        flags &= !tcp::CWR;
    }
    flags
}

fn transport_sum(seed: Sum, segment: &[u8], l4: usize) -> Sum {
    seed.plus(segment.get(l4..).unwrap_or_default())
}

/// A length that the plan has checked to be below 2^16.
fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
