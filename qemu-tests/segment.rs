//! TCP segments that a test hands to the wire byte by byte, and what the guest got of them.

use anyhow::{Context, Result};
use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, NetSlice, SingleVlanHeader, SlicedPacket,
    TcpHeader, TransportSlice,
};

use crate::harness::capture::Frame;

/// Payload of a segment, unless a test is about its size.
pub(crate) const PAYLOAD: usize = 1000;

/// In which a segment differs from its neighbours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) payload: usize,
    pub(crate) psh: bool,
    pub(crate) ttl: u8,
    /// The two bits of RFC 3168: 2 is ECT(0), 3 is CE.
    pub(crate) ecn: u8,
    pub(crate) bad_checksum: bool,
}

impl Segment {
    pub(crate) const PLAIN: Segment = Segment {
        payload: PAYLOAD,
        psh: false,
        ttl: 64,
        ecn: 2,
        bad_checksum: false,
    };
}

/// The address that the segments claim to come from; nobody has it, so nobody answers.
const SOURCE: [u8; 4] = [10, 77, 0, 99];
const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0x77, 0, 99];
const SOURCE_PORT: u16 = 40000;

/// The filter for these segments, with and without a tag.
pub(crate) const FILTER: &str =
    "(tcp and src host 10.77.0.99) or (vlan and tcp and src host 10.77.0.99)";

/// Frames of one connection: consecutive segments to the guest with the number `guest`.
pub(crate) fn frames(guest: u8, vlan: Option<u16>, segments: &[Segment]) -> Result<Vec<Vec<u8>>> {
    let mut sequence = 1000;
    let mut frames = Vec::new();
    for (segment, identification) in segments.iter().zip(1..) {
        frames.push(frame(guest, vlan, segment, sequence, identification)?);
        sequence += u32::try_from(segment.payload)?;
    }
    Ok(frames)
}

fn frame(
    guest: u8,
    vlan: Option<u16>,
    segment: &Segment,
    sequence: u32,
    identification: u16,
) -> Result<Vec<u8>> {
    let payload: Vec<u8> = (sequence..)
        .take(segment.payload)
        .map(|at| at.to_le_bytes()[0] ^ 0x5a)
        .collect();
    let mut tcp = TcpHeader::new(SOURCE_PORT, 9, sequence, 500);
    tcp.ack = true;
    tcp.acknowledgment_number = 1;
    tcp.psh = segment.psh;
    let length = tcp.header_len() + payload.len();
    let mut ip = Ipv4Header::new(
        u16::try_from(length)?,
        segment.ttl,
        IpNumber::TCP,
        SOURCE,
        [10, 77, 0, guest],
    )?;
    ip.identification = identification;
    ip.dont_fragment = true;
    ip.ecn = segment.ecn.try_into()?;
    ip.header_checksum = ip.calc_header_checksum();
    tcp.checksum = tcp.calc_checksum_ipv4(&ip, &payload)?;
    if segment.bad_checksum {
        tcp.checksum ^= 0x1234;
    }
    let mut frame = Vec::new();
    let ether_type = if vlan.is_some() {
        EtherType::VLAN_TAGGED_FRAME
    } else {
        EtherType::IPV4
    };
    let destination = [0x52, 0x54, 0x00, 0x77, 0x00, guest];
    Ethernet2Header {
        source: SOURCE_MAC,
        destination,
        ether_type,
    }
    .write(&mut frame)?;
    if let Some(id) = vlan {
        let tag = SingleVlanHeader {
            vlan_id: id.try_into()?,
            ether_type: EtherType::IPV4,
            ..Default::default()
        };
        tag.write(&mut frame)?;
    }
    ip.write(&mut frame)?;
    tcp.write(&mut frame)?;
    frame.extend(payload);
    Ok(frame)
}

/// What of a received packet a test looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) sequence: u32,
    pub(crate) payload: usize,
    pub(crate) psh: bool,
    pub(crate) ttl: u8,
    pub(crate) ecn: u8,
    pub(crate) vlan: Option<u16>,
}

impl Received {
    fn parse(frame: &Frame) -> Result<Self> {
        let packet = SlicedPacket::from_ethernet(&frame.bytes)?;
        let Some(NetSlice::Ipv4(ip)) = &packet.net else {
            anyhow::bail!("not IPv4: {frame:02x?}")
        };
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
            anyhow::bail!("not TCP: {frame:02x?}")
        };
        let vlan = packet.vlan_ids().first().map(|id| id.value());
        Ok(Received {
            sequence: tcp.sequence_number(),
            payload: tcp.payload().len(),
            psh: tcp.psh(),
            ttl: ip.header().ttl(),
            ecn: ip.header().ecn().value(),
            vlan,
        })
    }
}

/// The received packets, in order.
pub(crate) fn parse(frames: &[Frame]) -> Result<Vec<Received>> {
    frames
        .iter()
        .map(Received::parse)
        .collect::<Result<_>>()
        .context("a captured frame")
}

/// Whether the payload of `count` plain segments has arrived, in however many packets.
pub(crate) fn has_all(frames: &[Frame], segments: &[Segment]) -> bool {
    let wanted: usize = segments.iter().map(|segment| segment.payload).sum();
    parse(frames)
        .is_ok_and(|packets| packets.iter().map(|packet| packet.payload).sum::<usize>() >= wanted)
}
