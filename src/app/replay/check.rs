//! Cuts what the guest would get apart again and holds it against the frames that came in
//! (invariants INV-3, INV-4 and INV-9).
//!
//! These fields of a segment may differ from the frame it came from, and nothing else:
//!
//! | field | when |
//! |---|---|
//! | IPv4 identification from the second segment on, and the header checksum with it | the sender gave all frames the same one and set "don't fragment": segmentation counts up |
//! | transport checksum | the frame was captured where its checksum was still to be completed |
//! | 0x0000 against 0xffff in the IPv4 header or TCP checksum | both mean the same on the wire |

use std::fmt;
use std::iter;
use std::ops::{ControlFlow, Range};

use super::ledger::Pending;
use crate::gso::{self, GsoError};
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::{Layout, Malformed, Network, Transport, VnetHdr, ipv6, layout, tcp, udp};

/// A difference that must not be.
#[derive(Debug, thiserror::Error)]
pub(in crate::app) enum Mismatch {
    #[error("frame {frame} and packet {packet} of the result differ in {}", field.0)]
    Field {
        frame: u64,
        packet: u64,
        field: Field,
    },
    #[error("packet {packet} of the result cannot be cut apart")]
    Uncut { packet: u64, source: GsoError },
    #[error("packet {packet} of the result is malformed: {}", reason.name())]
    Malformed { packet: u64, reason: Malformed },
    #[error("packet {packet} of the result cuts into {cut} segments, but {frames} went in")]
    Count {
        packet: u64,
        cut: u32,
        frames: usize,
    },
    #[error("packet {packet} of the result has more than went in")]
    Surplus { packet: u64 },
    #[error("frame {frame} did not come out")]
    Missing { frame: u64 },
}

/// Name of a header field, or of what else a frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) struct Field(&'static str);

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Holds packets against frames. Keeps its buffer.
#[derive(Debug, Default)]
pub(super) struct Checker {
    segment: Vec<u8>,
}

impl Checker {
    /// Holds packet number `packet` of the result, with header `vnet`, against the frames that it
    /// was made of.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn check(
        &mut self,
        packet: u64,
        bytes: &[u8],
        vnet: &VnetHdr,
        frames: &[Pending],
    ) -> Result<(), Mismatch> {
        if let [frame] = frames {
            let layout = layout::parse(&frame.original).ok();
            return compare(bytes, &frame.original, &[], layout.as_ref())
                .map_err(|field| frame.differs(packet, field));
        }
        let layout = layout::parse(bytes).map_err(|unfit| Mismatch::Malformed {
            packet,
            reason: unfit.reason,
        })?;
        self.segment.resize(bytes.len(), 0);
        let has_fixed_id = has_fixed_id(&layout, frames);
        let mut inputs = frames.iter();
        let mut result = Ok(());
        let cut = gso::segment(iter::once(bytes), vnet, &mut self.segment, |segment| {
            let Some(frame) = inputs.next() else {
                return ControlFlow::Continue(());
            };
            let free = free_fields(&layout, frame, segment, has_fixed_id);
            result = compare(segment, &frame.original, &free, Some(&layout))
                .map_err(|field| frame.differs(packet, field));
            if result.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .map_err(|source| Mismatch::Uncut { packet, source })?;
        result?;
        if cut as usize != frames.len() {
            return Err(Mismatch::Count {
                packet,
                cut,
                frames: frames.len(),
            });
        }
        Ok(())
    }
}

impl Pending {
    fn differs(&self, packet: u64, field: Field) -> Mismatch {
        Mismatch::Field {
            frame: self.number,
            packet,
            field,
        }
    }
}

/// Whether the sender gave all frames one identification, which it may with "don't fragment".
fn has_fixed_id(layout: &Layout, frames: &[Pending]) -> bool {
    let l3 = usize::from(layout.l3());
    let mut ids = frames.iter().map(|frame| {
        let ip = Ipv4::at(&frame.original, l3)?;
        ip.is_df().then(|| ip.id())
    });
    let first = ids.next().flatten();
    layout.network() == Network::Ipv4 && first.is_some() && ids.all(|id| id == first)
}

/// Bytes of `segment` that may differ from the frame.
fn free_fields(
    layout: &Layout,
    frame: &Pending,
    segment: &[u8],
    has_fixed_id: bool,
) -> Vec<Range<usize>> {
    let mut free = Vec::new();
    let are_both_zero = |field: &Range<usize>| {
        let (ours, theirs) = (
            segment.get(field.clone()),
            frame.original.get(field.clone()),
        );
        matches!(
            (ours, theirs),
            (Some([0, 0]), Some([0xff, 0xff])) | (Some([0xff, 0xff]), Some([0, 0]))
        )
    };
    if layout.network() == Network::Ipv4 {
        let l3 = usize::from(layout.l3());
        let checksum = l3 + 10..l3 + 12;
        if has_fixed_id {
            free.push(l3 + 4..l3 + 6);
        }
        if has_fixed_id || are_both_zero(&checksum) {
            free.push(checksum);
        }
    }
    let checksum = usize::from(layout.l4() + layout.transport().checksum_offset());
    let checksum = checksum..checksum + 2;
    let is_tcp = layout.transport() == Transport::Tcp;
    if frame.is_partial || (is_tcp && are_both_zero(&checksum)) {
        free.push(checksum);
    }
    free
}

/// Finds the first byte that differs where it must not, and names its field by `layout`.
fn compare(
    ours: &[u8],
    theirs: &[u8],
    free: &[Range<usize>],
    layout: Option<&Layout>,
) -> Result<(), Field> {
    if ours == theirs {
        return Ok(());
    }
    if ours.len() != theirs.len() {
        return Err(Field("length"));
    }
    let differs = |at: &usize| {
        ours.get(*at) != theirs.get(*at) && !free.iter().any(|field| field.contains(at))
    };
    (0..theirs.len())
        .find(differs)
        .map_or(Ok(()), |at| Err(field_at(at, layout)))
}

/// A field: the first byte behind it, and its name.
type Row = (usize, &'static str);

const ETHERNET: &[Row] = &[(6, "destination MAC"), (12, "source MAC")];
const IPV4: &[Row] = &[
    (1, "IPv4 header length"),
    (2, "IPv4 type of service"),
    (4, "IPv4 total length"),
    (6, "IPv4 identification"),
    (8, "IPv4 fragment bits"),
    (9, "TTL"),
    (10, "IPv4 protocol"),
    (12, "IPv4 header checksum"),
    (16, "IPv4 source address"),
    (ipv4::HEADER_LEN, "IPv4 destination address"),
];
const IPV6: &[Row] = &[
    (4, "IPv6 traffic class or flow label"),
    (6, "IPv6 payload length"),
    (7, "IPv6 next header"),
    (8, "hop limit"),
    (24, "IPv6 source address"),
    (ipv6::HEADER_LEN, "IPv6 destination address"),
    (usize::MAX, "IPv6 extension headers"),
];
const TCP: &[Row] = &[
    (2, "TCP source port"),
    (4, "TCP destination port"),
    (8, "TCP sequence number"),
    (12, "TCP acknowledgement number"),
    (14, "TCP flags or header length"),
    (16, "TCP window"),
    (18, "TCP checksum"),
    (tcp::HEADER_LEN, "TCP urgent pointer"),
    (usize::MAX, "TCP options"),
];
const UDP: &[Row] = &[
    (2, "UDP source port"),
    (4, "UDP destination port"),
    (6, "UDP length"),
    (udp::HEADER_LEN, "UDP checksum"),
];

/// Name of the field that byte `at` of a frame lies in.
fn field_at(at: usize, layout: Option<&Layout>) -> Field {
    if let Some(name) = name_at(ETHERNET, at) {
        return name;
    }
    let Some(layout) = layout else {
        return Field("bytes");
    };
    let [l3, l4, payload] = [layout.l3(), layout.l4(), layout.payload()].map(usize::from);
    let (rows, start) = if at < l3 {
        return Field("VLAN tag or EtherType");
    } else if at < l4 {
        match layout.network() {
            Network::Ipv4 => (IPV4, l3),
            Network::Ipv6 => (IPV6, l3),
        }
    } else if at < payload {
        match layout.transport() {
            Transport::Tcp => (TCP, l4),
            Transport::Udp => (UDP, l4),
        }
    } else {
        return Field("payload");
    };
    name_at(rows, at - start).unwrap_or(Field("bytes"))
}

fn name_at(rows: &[Row], at: usize) -> Option<Field> {
    let row = rows.iter().find(|(end, _)| at < *end);
    row.map(|(_, name)| Field(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use crate::wire::sample::Sample;
    use crate::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};

    const SEGS: usize = 3;

    /// Frames in a row and the packet that they merge into.
    fn merged(sample: &Sample) -> (Vec<Pending>, Vec<u8>, VnetHdr) {
        let mut next = sample.clone().payload_len(100);
        let mut frames = Vec::new();
        for number in 1..=SEGS as u64 {
            frames.push(Pending {
                number,
                arrival: Instant::ZERO,
                taken: Instant::ZERO,
                is_partial: false,
                original: next.bytes(),
            });
            next = next.next().payload_len(100);
        }
        let (bytes, mut vnet) = sample.clone().payload_len(100 * SEGS).partial();
        vnet.gso_size = 100;
        vnet.gso_type = match (sample.transport, sample.network) {
            (Transport::Tcp, Network::Ipv4) => GSO_TCPV4,
            (Transport::Tcp, Network::Ipv6) => GSO_TCPV6,
            (Transport::Udp, _) => GSO_UDP_L4,
        };
        assert_eq!(vnet.flags, F_NEEDS_CSUM);
        (frames, bytes, vnet)
    }

    fn samples() -> [Sample; 4] {
        [
            Sample::tcp4(),
            Sample::tcp6(),
            Sample::udp4(),
            Sample::new(Network::Ipv6, Transport::Udp),
        ]
    }

    fn check(bytes: &[u8], vnet: &VnetHdr, frames: &[Pending]) -> Result<(), Mismatch> {
        Checker::default().check(7, bytes, vnet, frames)
    }

    #[test]
    fn a_packet_that_gives_its_frames_back_is_right() {
        for sample in samples() {
            let (frames, bytes, vnet) = merged(&sample);
            check(&bytes, &vnet, &frames).unwrap();
        }
    }

    #[test]
    fn every_changed_byte_of_every_frame_is_found_and_named() {
        for sample in samples() {
            let (mut frames, bytes, vnet) = merged(&sample);
            for i in 0..frames.len() {
                for at in 0..frames[i].original.len() {
                    frames[i].original[at] ^= 0x11;
                    let error = check(&bytes, &vnet, &frames).unwrap_err().to_string();
                    let names = format!("frame {} and packet 7 of the result differ in ", i + 1);
                    assert!(error.starts_with(&names), "byte {at}: {error}");
                    frames[i].original[at] ^= 0x11;
                }
            }
        }
    }

    #[test]
    fn the_field_that_differs_is_named() {
        let (mut frames, bytes, vnet) = merged(&Sample::tcp4());
        for (at, name) in [
            (0, "destination MAC"),
            (14 + 8, "TTL"),
            (34 + 4, "TCP sequence number"),
            (34 + 16, "TCP checksum"),
            (54, "payload"),
        ] {
            frames[1].original[at] ^= 1;
            let error = check(&bytes, &vnet, &frames).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("frame 2 and packet 7 of the result differ in {name}")
            );
            frames[1].original[at] ^= 1;
        }
    }

    #[test]
    fn an_identification_may_differ_only_if_it_was_fixed() {
        let mut sample = Sample::tcp4();
        let (mut frames, bytes, vnet) = merged(&sample);
        for frame in &mut frames {
            sample = sample.payload_len(100);
            frame.original = sample.bytes();
            let id = sample.id;
            sample = sample.next();
            sample.id = id;
        }
        check(&bytes, &vnet, &frames).unwrap();
        let other = sample.id + 9;
        frames[2].original[18..20].copy_from_slice(&other.to_be_bytes());
        let error = check(&bytes, &vnet, &frames).unwrap_err().to_string();
        assert!(error.contains("IPv4 identification"), "{error}");
    }

    #[test]
    fn a_partial_checksum_may_differ_and_no_other() {
        let (mut frames, bytes, vnet) = merged(&Sample::tcp6());
        let field = 14 + 40 + 16;
        frames[1].original[field] ^= 1;
        frames[1].is_partial = true;
        check(&bytes, &vnet, &frames).unwrap();
        frames[2].original[field] ^= 1;
        check(&bytes, &vnet, &frames).unwrap_err();
    }

    #[test]
    fn a_packet_of_more_or_fewer_frames_is_found() {
        let (mut frames, bytes, vnet) = merged(&Sample::tcp4());
        frames.pop();
        let error = check(&bytes, &vnet, &frames).unwrap_err();
        assert!(
            matches!(
                error,
                Mismatch::Count {
                    cut: 3,
                    frames: 2,
                    ..
                }
            ),
            "{error}"
        );
    }
}
