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
        Self::of(head, frame_len, vnet)
    }

    /// The same for a packet of `frame_len` bytes that begins with `head` and continues where no
    /// slice can be had of it.
    ///
    /// # Errors
    /// As of [`Segments::new`].
    pub fn of(head: &[u8], frame_len: usize, vnet: &VnetHdr) -> Result<Self, GsoError> {
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
        let mut slices = slices;
        let head = slices.next().unwrap_or_default();
        let payload_at = usize::from(self.shape.layout.payload());
        let first = head.get(payload_at..).unwrap_or_default();
        self.write_with(head, index, out, |offset, payload| {
            let start = offset.saturating_sub(payload_at);
            gather(core::iter::once(first).chain(slices), start, payload);
        })
    }

    /// The same for a packet that begins with `head`, of which `copy` fills a slice with the bytes
    /// from an offset on.
    ///
    /// # Errors
    /// [`GsoError::NoSuchSegment`] or [`GsoError::BufferTooSmall`].
    pub fn write_with(
        &self,
        head: &[u8],
        index: u32,
        out: &mut [u8],
        copy: impl FnOnce(usize, &mut [u8]),
    ) -> Result<usize, GsoError> {
        let (start, len) = self
            .shape
            .payload_range(index)
            .ok_or(GsoError::NoSuchSegment)?;
        let payload_at = usize::from(self.shape.layout.payload());
        let out = out
            .get_mut(..payload_at + len)
            .ok_or(GsoError::BufferTooSmall)?;
        let (headers, payload) = out.split_at_mut(payload_at);
        if let Some(from) = head.get(..payload_at) {
            headers.copy_from_slice(from);
        }
        copy(payload_at + start, payload);
        self.fix_headers(index, out);
        Ok(out.len())
    }

    /// Rewrites the copied headers for segment `index` (rule TX-7).
    fn fix_headers(&self, index: u32, segment: &mut [u8]) {
        let layout = &self.shape.layout;
        let (l3, l4) = (usize::from(layout.l3()), usize::from(layout.l4()));
        match layout.network() {
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
        match layout.transport() {
            Transport::Tcp => self.fix_tcp(index, segment, seed),
            Transport::Udp => {
                let len = length(segment.len() - l4);
                udp::rewrite(segment, l4, len, 0);
                let sum = transport_sum(seed, segment, l4);
                let checksum =
                    checksum::stored_form(sum.complement(), layout.transport().checksum_offset());
                udp::rewrite(segment, l4, len, checksum);
            }
        }
    }

    fn fix_tcp(&self, index: u32, segment: &mut [u8], seed: Sum) {
        let l4 = usize::from(self.shape.layout.l4());
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
        let l4 = usize::from(layout.l4());
        let field = l4 + usize::from(layout.transport().checksum_offset());
        let partial = segment.get(field..field + 2).map_or(Sum::ZERO, Sum::of);
        let header_len = usize::from(layout.payload()) - l4;
        let whole = header_len + layout.payload_len() as usize;
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

/// Fills `payload` with the bytes of `slices` from `start` on.
fn gather<'a>(slices: impl Iterator<Item = &'a [u8]>, start: usize, payload: &mut [u8]) {
    let (mut skip, mut filled) = (start, 0);
    for slice in slices {
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

#[cfg(test)]
mod tests {
    use core::error::Error as _;

    use super::*;
    use crate::wire::sample::Sample;
    use crate::wire::vnet_hdr::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};

    /// A packet of `payload_len` bytes with the header of one to be cut at `gso_size`.
    fn packet(sample: &Sample, payload_len: usize, gso_size: u16) -> (Vec<u8>, VnetHdr) {
        let (bytes, vnet) = sample.clone().payload_len(payload_len).partial();
        let gso_type = match (sample.transport, sample.network) {
            (Transport::Tcp, Network::Ipv4) => GSO_TCPV4,
            (Transport::Tcp, Network::Ipv6) => GSO_TCPV6,
            (Transport::Udp, _) => GSO_UDP_L4,
        };
        let vnet = VnetHdr {
            gso_type,
            gso_size,
            ..vnet
        };
        (bytes, vnet)
    }

    fn cut(slices: &[&[u8]], vnet: &VnetHdr) -> Result<Vec<Vec<u8>>, GsoError> {
        let mut frames = Vec::new();
        let mut scratch = [0; 2048];
        let slices = slices.iter().copied();
        segment(slices, vnet, &mut scratch, |frame| {
            frames.push(frame.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(frames)
    }

    /// The frames that a sender would have sent: full segments and a shorter one.
    fn expected(sample: &Sample, payload_len: usize, gso_size: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut next = sample.clone();
        let mut left = payload_len;
        while left > 0 {
            next = next.payload_len(left.min(gso_size));
            frames.push(next.bytes());
            left -= next.payload.len();
            next = next.next();
        }
        frames
    }

    fn kinds() -> Vec<Sample> {
        let mut all = Vec::new();
        for network in [Network::Ipv4, Network::Ipv6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                for tags in 0..=2 {
                    let mut sample = Sample::new(network, transport);
                    sample.tags = vec![(0x8100, 7); tags];
                    all.push(sample);
                }
            }
        }
        let mut options = Sample::tcp4();
        options.ip_options = vec![1; 8];
        options.options = vec![1; 12];
        let mut extensions = Sample::tcp6();
        extensions.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![0; 14])];
        all.extend([options, extensions]);
        all
    }

    #[test]
    fn f41_segments_are_the_frames_of_a_sender() {
        for mut sample in kinds() {
            sample.id = 0xfffe;
            sample.seq = u32::MAX - 150;
            for payload_len in [100, 101, 199, 200, 999, 1000] {
                let (bytes, vnet) = packet(&sample, payload_len, 100);
                assert_eq!(
                    cut(&[&bytes], &vnet).unwrap(),
                    expected(&sample, payload_len, 100),
                    "{payload_len} bytes of {sample:?}"
                );
            }
        }
    }

    #[test]
    fn f41_any_pieces_give_the_same_segments() {
        let (bytes, vnet) = packet(&Sample::tcp4(), 1000, 77);
        let whole = cut(&[&bytes], &vnet).unwrap();
        for first in [54, 55, 60, 131, 132, 500] {
            for second in [first, first + 1, 600, bytes.len()] {
                let slices = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(cut(&slices, &vnet).unwrap(), whole, "{first} {second}");
            }
        }
    }

    #[test]
    fn f41_flags_are_on_the_segment_they_belong_to() {
        let all = tcp::FIN | tcp::PSH | tcp::CWR | 0x40 | 0x10;
        let mut sample = Sample::tcp4();
        sample.flags = all;
        for ecn in [0, GSO_ECN] {
            let (bytes, mut vnet) = packet(&sample, 300, 100);
            vnet.gso_type |= ecn;
            let flags: Vec<_> = cut(&[&bytes], &vnet)
                .unwrap()
                .iter()
                .map(|frame| frame[47])
                .collect();
            let last = tcp::FIN | tcp::PSH;
            assert_eq!(
                flags,
                [all & !last, all & !last & !tcp::CWR, all & !tcp::CWR]
            );
        }
    }

    #[test]
    fn f41_a_udp_checksum_of_zero_becomes_all_ones() {
        let mut sample = Sample::udp4().payload_len(100);
        let field = sample.checksum_place().1;
        let bytes = sample.bytes();
        // Spread the stored checksum over the first payload word: the sum becomes all ones.
        let stored = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
        let word = u16::from_be_bytes([sample.payload[0], sample.payload[1]]);
        let sum = Sum::ZERO.plus_word(word).plus_word(stored).fold();
        sample.payload[..2].copy_from_slice(&sum.to_be_bytes());
        let (mut frame, vnet) = sample.partial();
        complete_checksum(&mut frame, &vnet).unwrap();
        assert_eq!(frame[field..field + 2], [0xff, 0xff]);
        let vnet = VnetHdr {
            gso_type: GSO_UDP_L4,
            gso_size: 100,
            ..vnet
        };
        let (partial, _) = sample.partial();
        let frames = cut(&[&partial], &vnet).unwrap();
        assert_eq!(frames[0][field..field + 2], [0xff, 0xff]);
    }

    #[test]
    fn segments_can_be_built_one_by_one_in_any_order() {
        let (bytes, vnet) = packet(&Sample::tcp6(), 350, 100);
        let slices = || core::iter::once(bytes.as_slice());
        let whole = cut(&[&bytes], &vnet).unwrap();
        let segments = Segments::new(slices(), &vnet).unwrap();
        assert_eq!((segments.count(), segments.max_len()), (4, 174));
        let mut out = [0; 174];
        for index in [3, 0, 2, 1] {
            let len = segments.write(slices(), index, &mut out).unwrap();
            assert_eq!(out[..len], whole[index as usize]);
        }
        assert_eq!(
            segments.write(slices(), 4, &mut out),
            Err(GsoError::NoSuchSegment)
        );
        assert_eq!(
            segments.write(slices(), 0, &mut out[..173]),
            Err(GsoError::BufferTooSmall)
        );
    }

    #[test]
    fn a_sink_may_break_off() {
        let (bytes, vnet) = packet(&Sample::tcp4(), 500, 100);
        let mut taken = 0;
        let mut scratch = [0; 200];
        let slices = core::iter::once(bytes.as_slice());
        let done = segment(slices, &vnet, &mut scratch, |_| {
            taken += 1;
            if taken == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(done, Ok(2), "the third was not taken");
    }

    #[test]
    fn f07_headers_that_do_not_fit_are_refused() {
        let (bytes, vnet) = packet(&Sample::tcp4(), 500, 100);
        let fault = |bytes: &[u8], vnet: VnetHdr| match cut(&[bytes], &vnet) {
            Err(GsoError::Header(fault)) => Some(fault),
            _ => None,
        };
        let no_csum = VnetHdr { flags: 0, ..vnet };
        assert_eq!(fault(&bytes, no_csum), Some(GsoFault::NoPartialChecksum));
        for gso_size in [0, u16::MAX] {
            let odd = VnetHdr { gso_size, ..vnet };
            assert_eq!(fault(&bytes, odd), Some(GsoFault::Size));
        }
        for gso_type in [0, 2, 3, 0x20, 0x40 | GSO_TCPV4, GSO_ECN | GSO_UDP_L4] {
            let odd = VnetHdr { gso_type, ..vnet };
            assert_eq!(fault(&bytes, odd), Some(GsoFault::UnknownType));
        }
        for gso_type in [GSO_TCPV6, GSO_UDP_L4] {
            let odd = VnetHdr { gso_type, ..vnet };
            assert_eq!(fault(&bytes, odd), Some(GsoFault::Protocol));
        }
        let odd = VnetHdr {
            csum_start: 35,
            ..vnet
        };
        assert_eq!(fault(&bytes, odd), Some(GsoFault::ChecksumPlace));
        for len in 0..54 {
            assert!(
                cut(&[&bytes[..len], &bytes[len..]], &vnet).is_err(),
                "{len}"
            );
            assert!(cut(&[&bytes[..len]], &vnet).is_err(), "{len}");
        }
        let mut lying = bytes.clone();
        for words in 0..5 {
            lying[46] = words << 4;
            assert!(fault(&lying, vnet).is_some(), "{words}");
        }
        let long = vec![0; 70_000];
        assert_eq!(
            cut(&[&bytes, &long], &vnet),
            Err(GsoError::Header(GsoFault::Size))
        );
    }

    #[test]
    fn errors_say_what_is_the_matter() {
        let header = GsoError::Header(GsoFault::Size);
        assert_eq!(
            [header, GsoError::BufferTooSmall, GsoError::NoSuchSegment]
                .map(|error| error.to_string()),
            [
                "the segmentation header does not fit the frame",
                "the buffer is shorter than a segment",
                "the packet has fewer segments",
            ]
        );
        let cause = |error: &GsoError| error.source().map(ToString::to_string);
        assert_eq!(cause(&header), Some(GsoFault::Size.to_string()));
        assert_eq!(cause(&GsoError::BufferTooSmall), None);
    }

    #[test]
    fn f07_a_scratch_buffer_that_is_too_small_gives_no_segment() {
        let (bytes, vnet) = packet(&Sample::tcp4(), 500, 100);
        let slices = core::iter::once(bytes.as_slice());
        let result = segment(slices, &vnet, &mut [0; 153], |_| {
            panic!("nothing may be given out")
        });
        assert_eq!(result, Err(GsoError::BufferTooSmall));
        let slices = core::iter::once(bytes.as_slice());
        let result = segment(slices, &vnet, &mut [0; 154], |_| ControlFlow::Continue(()));
        assert_eq!(result, Ok(5), "each of 100 bytes behind 54 of headers");
    }
}
