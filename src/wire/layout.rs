//! One pass over a frame: where its headers are, and whether it may take part in merging.

use core::fmt;

use super::ipv4::{self, Ipv4};
use super::ipv6::{self, Ipv6};
use super::tcp::{self, Tcp};
use super::udp::{self, Udp};
use super::{Malformed, array_at, ethernet};

/// Internet protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Transport protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// IP protocol number.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Self::Tcp => tcp::PROTOCOL,
            Self::Udp => udp::PROTOCOL,
        }
    }

    /// Where in the transport header the checksum lies, in bytes.
    #[must_use]
    pub const fn checksum_offset(self) -> u16 {
        match self {
            Self::Tcp => tcp::CHECKSUM_OFFSET,
            Self::Udp => udp::CHECKSUM_OFFSET,
        }
    }

    const fn from_protocol(protocol: u8) -> Option<Self> {
        match protocol {
            tcp::PROTOCOL => Some(Self::Tcp),
            udp::PROTOCOL => Some(Self::Udp),
            _ => None,
        }
    }
}

/// Where the headers of a frame are. One word, so that it travels in a register.
///
/// # Units
/// Offsets are bytes from the start of the Ethernet frame, VLAN tags included.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout(u64);

/// Lowest bits of the fields of a layout; bits 0 and 1 are the protocols.
mod bit {
    pub(super) const L3: u32 = 2;
    pub(super) const L4: u32 = 8;
    pub(super) const PAYLOAD: u32 = 24;
    pub(super) const PAYLOAD_LEN: u32 = 40;
}

impl Layout {
    /// That of no frame.
    pub(crate) const NONE: Self = Self(0);
    /// Longest payload that can be described, in bytes: far above what any frame can have.
    pub(crate) const MAX_PAYLOAD_LEN: usize = (1 << 24) - 1;

    /// Puts a layout together from an IP header at `l3`, a transport header at `l4` and
    /// `payload_len` bytes of payload at `payload`.
    #[inline(always)]
    pub(crate) const fn new(
        network: Network,
        transport: Transport,
        l3: u16,
        l4: u16,
        payload: u16,
        payload_len: u32,
    ) -> Self {
        Self(
            network as u64
                | (transport as u64) << 1
                | (l3 as u64 & 0x3f) << bit::L3
                | (l4 as u64) << bit::L4
                | (payload as u64) << bit::PAYLOAD
                | (payload_len as u64) << bit::PAYLOAD_LEN,
        )
    }

    /// Internet protocol.
    #[must_use]
    #[inline(always)]
    pub const fn network(self) -> Network {
        if self.0 & 1 == Network::Ipv4 as u64 {
            Network::Ipv4
        } else {
            Network::Ipv6
        }
    }

    /// Transport protocol.
    #[must_use]
    #[inline(always)]
    pub const fn transport(self) -> Transport {
        if self.0 >> 1 & 1 == Transport::Tcp as u64 {
            Transport::Tcp
        } else {
            Transport::Udp
        }
    }

    /// Offset of the IP header.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "6 bits are left")]
    pub const fn l3(self) -> u16 {
        (self.0 >> bit::L3) as u16 & 0x3f
    }

    /// Offset of the transport header.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "as wide as the field")]
    pub const fn l4(self) -> u16 {
        (self.0 >> bit::L4) as u16
    }

    /// Offset of the transport payload, which is also the length of all headers.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "as wide as the field")]
    pub const fn payload(self) -> u16 {
        (self.0 >> bit::PAYLOAD) as u16
    }

    /// Bytes of transport payload.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "24 bits are left")]
    pub const fn payload_len(self) -> u32 {
        (self.0 >> bit::PAYLOAD_LEN) as u32
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("network", &self.network())
            .field("transport", &self.transport())
            .field("l3", &self.l3())
            .field("l4", &self.l4())
            .field("payload", &self.payload())
            .field("payload_len", &self.payload_len())
            .finish()
    }
}

/// How much of a frame's identity could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: no flow can be concerned.
    Nothing,
    /// The addresses, but no ports.
    Addresses {
        /// Internet protocol.
        network: Network,
        /// Offset of the IP header.
        l3: u16,
    },
    /// Addresses and ports; the frame is damaged or excluded all the same. The payload fields of
    /// the layout say nothing.
    Flow(Layout),
}

/// A frame that cannot take part in merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The check that failed.
    pub reason: Malformed,
    /// What could be read.
    pub known: Known,
}

/// Reads the layout of a frame and checks all of rules ETH-2, VLAN-3, IP4-1 to 6, IP6-1 to 4,
/// UDP-3 and the header part of TCP-0, in the order of section 4. The transport checksum is not
/// looked at.
///
/// # Errors
/// The first check that failed, with what is known of the flow.
#[inline(always)]
pub fn parse(frame: &[u8]) -> Result<Layout, Unfit> {
    let link = ethernet::walk(frame).map_err(unknown)?;
    match link.ethertype {
        ethernet::TYPE_IPV4 => parse_ipv4(frame, link.l3),
        ethernet::TYPE_IPV6 => parse_ipv6(frame, link.l3),
        _ => Err(unknown(Malformed::NotIp)),
    }
}

#[inline(always)]
fn parse_ipv4(frame: &[u8], l3: usize) -> Result<Layout, Unfit> {
    let ip = Ipv4::at(frame, l3).ok_or(unknown(Malformed::Ip4Header))?;
    let header_len = ip.header_len();
    if ip.version() != 4 || header_len < ipv4::HEADER_LEN {
        return Err(unknown(Malformed::Ip4Header));
    }
    let transport =
        Transport::from_protocol(ip.protocol()).ok_or(unknown(Malformed::Ip4Protocol))?;
    let base = Base {
        network: Network::Ipv4,
        transport,
        l3,
        l4: l3 + header_len,
    };
    if ip.is_fragment() {
        return Err(base.addresses(Malformed::Ip4Fragment));
    }
    if header_len != ipv4::HEADER_LEN {
        return Err(base.flow(frame, Malformed::Ip4Options));
    }
    if !ip.is_checksum_right() {
        return Err(base.flow(frame, Malformed::Ip4Checksum));
    }
    let is_reserved = ip.fragment_word() & ipv4::RESERVED != 0;
    if usize::from(ip.total_len()) != frame.len() - l3 || is_reserved {
        return Err(base.flow(frame, Malformed::Ip4Length));
    }
    parse_transport(frame, base)
}

#[inline(always)]
fn parse_ipv6(frame: &[u8], l3: usize) -> Result<Layout, Unfit> {
    let ip = Ipv6::at(frame, l3).ok_or(unknown(Malformed::Ip6Header))?;
    if ip.version() != 6 {
        return Err(unknown(Malformed::Ip6Header));
    }
    let upper = ipv6::walk_extensions(frame, l3, ip.next_header()).map_err(|reason| Unfit {
        reason,
        known: Known::Addresses {
            network: Network::Ipv6,
            l3: offset(l3),
        },
    })?;
    let transport =
        Transport::from_protocol(upper.protocol).ok_or(unknown(Malformed::Ip6Protocol))?;
    let base = Base {
        network: Network::Ipv6,
        transport,
        l3,
        l4: upper.l4,
    };
    if usize::from(ip.payload_len()) != frame.len() - l3 - ipv6::HEADER_LEN {
        return Err(base.flow(frame, Malformed::Ip6Length));
    }
    parse_transport(frame, base)
}

#[inline(always)]
fn parse_transport(frame: &[u8], base: Base) -> Result<Layout, Unfit> {
    let l4_len = frame.len().saturating_sub(base.l4);
    match base.transport {
        Transport::Tcp => match Tcp::at(frame, base.l4).map(Tcp::header_len) {
            Some(len) if (tcp::HEADER_LEN..=l4_len).contains(&len) => {
                Ok(base.layout(len, l4_len - len))
            }
            _ => Err(base.flow(frame, Malformed::TcpHeader)),
        },
        Transport::Udp => match Udp::at(frame, base.l4).map(|udp| usize::from(udp.len())) {
            Some(len) if len == l4_len && len > udp::HEADER_LEN => {
                Ok(base.layout(udp::HEADER_LEN, len - udp::HEADER_LEN))
            }
            _ => Err(base.flow(frame, Malformed::UdpLength)),
        },
    }
}

/// What is known once the transport protocol has been found.
#[derive(Clone, Copy)]
struct Base {
    network: Network,
    transport: Transport,
    l3: usize,
    l4: usize,
}

impl Base {
    #[inline(always)]
    fn layout(self, header_len: usize, payload_len: usize) -> Layout {
        Layout::new(
            self.network,
            self.transport,
            offset(self.l3),
            offset(self.l4),
            offset(self.l4 + header_len),
            narrow(payload_len),
        )
    }

    #[cold]
    fn addresses(self, reason: Malformed) -> Unfit {
        Unfit {
            reason,
            known: Known::Addresses {
                network: self.network,
                l3: offset(self.l3),
            },
        }
    }

    /// Rule ORD-2: the flow if the four port bytes are present, else the address pair.
    #[cold]
    fn flow(self, frame: &[u8], reason: Malformed) -> Unfit {
        if array_at::<4>(frame, self.l4).is_none() {
            return self.addresses(reason);
        }
        Unfit {
            reason,
            known: Known::Flow(self.layout(0, 0)),
        }
    }
}

const fn unknown(reason: Malformed) -> Unfit {
    Unfit {
        reason,
        known: Known::Nothing,
    }
}

/// A length that an IP length field of 16 bits has been found equal to.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "at most 64 KiB")]
const fn narrow(bytes: usize) -> u32 {
    bytes as u32
}

/// Headers end below 17 KiB: 22 bytes of link header, 60 of IPv4 or 40 of IPv6 with eight
/// extension headers of 2 KiB, 60 of transport.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "at most 17 KiB")]
const fn offset(bytes: usize) -> u16 {
    bytes as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::sample::{Sample, TIMESTAMPS};

    fn offsets(sample: &Sample) -> (u16, u16, u16, u32) {
        let layout = parse(&sample.bytes()).unwrap();
        assert_eq!(
            (layout.network(), layout.transport()),
            (sample.network, sample.transport)
        );
        (
            layout.l3(),
            layout.l4(),
            layout.payload(),
            layout.payload_len(),
        )
    }

    fn refused(frame: &[u8]) -> (Malformed, Known) {
        let unfit = parse(frame).unwrap_err();
        (unfit.reason, unfit.known)
    }

    #[test]
    fn f16_headers_end_where_they_should() {
        let mut sample = Sample::tcp4();
        assert_eq!(offsets(&sample), (14, 34, 54, 100));
        sample.options = TIMESTAMPS.to_vec();
        assert_eq!(offsets(&sample), (14, 34, 66, 100));
        sample.network = Network::Ipv6;
        assert_eq!(offsets(&sample), (14, 54, 86, 100));
        sample.tags = vec![(0x8100, 5)];
        assert_eq!(offsets(&sample), (18, 58, 90, 100));
        sample.tags = vec![(0x88a8, 5), (0x8100, 6)];
        assert_eq!(offsets(&sample), (22, 62, 94, 100));
        sample.extensions = vec![(60, vec![0; 6]), (43, vec![0; 14])];
        assert_eq!(offsets(&sample), (22, 86, 118, 100));
        assert_eq!(offsets(&Sample::udp4()), (14, 34, 42, 100));
    }

    #[test]
    fn f09_other_protocols_concern_no_flow() {
        let of_type = |ethertype: u16, len: usize| {
            let mut frame = vec![0; len];
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frame
        };
        for ethertype in [0x0806, 0x8035, 0x88cc, 0x8847, 0x888e, 0x6003, 38] {
            assert_eq!(
                refused(&of_type(ethertype, 60)),
                (Malformed::NotIp, Known::Nothing)
            );
        }
        assert_eq!(
            refused(&of_type(0x0800, 14)),
            (Malformed::Ip4Header, Known::Nothing)
        );
        assert_eq!(
            refused(&of_type(0x86dd, 53)),
            (Malformed::Ip6Header, Known::Nothing)
        );
        for protocol in [1, 2, 47, 50, 89, 132] {
            let mut frame = Sample::tcp4().bytes();
            frame[23] = protocol;
            assert_eq!(refused(&frame), (Malformed::Ip4Protocol, Known::Nothing));
            let mut frame = Sample::tcp6().bytes();
            frame[20] = protocol;
            assert_eq!(refused(&frame), (Malformed::Ip6Protocol, Known::Nothing));
        }
    }

    #[test]
    fn f04_fragments_are_known_by_address_only() {
        let mut first = Sample::tcp4();
        first.mf = true;
        let mut later = Sample::udp4();
        later.fragment_offset = 185;
        for fragment in [first, later] {
            let (reason, known) = refused(&fragment.bytes());
            assert_eq!(reason, Malformed::Ip4Fragment);
            let network = Network::Ipv4;
            assert_eq!(known, Known::Addresses { network, l3: 14 });
        }
        let mut fragment = Sample::tcp6();
        fragment.extensions = vec![(44, vec![0, 0, 0, 0, 0, 1])];
        let (reason, known) = refused(&fragment.bytes());
        assert_eq!(reason, Malformed::Ip6Fragment);
        let network = Network::Ipv6;
        assert_eq!(known, Known::Addresses { network, l3: 14 });
    }

    #[test]
    fn f06_ports_behind_ip_options_are_found() {
        let mut sample = Sample::tcp4();
        sample.ip_options = vec![1; 40];
        let (reason, known) = refused(&sample.bytes());
        assert_eq!(reason, Malformed::Ip4Options);
        assert!(
            matches!(known, Known::Flow(layout) if layout.l4() == 74),
            "{known:?}"
        );
        // Without the ports the address pair is left.
        assert!(matches!(
            refused(&sample.bytes()[..77]),
            (Malformed::Ip4Options, Known::Addresses { .. })
        ));
    }

    #[test]
    fn f03_bytes_behind_the_packet_are_a_length_fault() {
        let mut sample = Sample::tcp4().payload_len(2);
        sample.padding = 4;
        assert_eq!(refused(&sample.bytes()).0, Malformed::Ip4Length);
        sample.network = Network::Ipv6;
        assert_eq!(refused(&sample.bytes()).0, Malformed::Ip6Length);
        sample.transport = Transport::Udp;
        assert_eq!(refused(&sample.bytes()).0, Malformed::Ip6Length);
    }

    #[test]
    fn f02_a_length_of_zero_is_a_length_fault() {
        let mut frame = Sample::tcp6().bytes();
        frame[18..20].fill(0);
        assert_eq!(refused(&frame).0, Malformed::Ip6Length);
        frame.resize(80_000, 0);
        assert_eq!(refused(&frame).0, Malformed::Ip6Length);
        let mut frame = Sample::tcp4().bytes();
        frame[16..18].fill(0);
        crate::wire::ipv4::rewrite(&mut frame, 14, 0, 0);
        assert_eq!(refused(&frame).0, Malformed::Ip4Length);
    }

    #[test]
    fn the_reserved_bit_and_a_wrong_sum_have_their_reasons() {
        let mut frame = Sample::tcp4().bytes();
        frame[24] ^= 1;
        assert_eq!(refused(&frame).0, Malformed::Ip4Checksum);
        let mut frame = Sample::tcp4().bytes();
        frame[20] |= 0x80;
        crate::wire::ipv4::rewrite(&mut frame, 14, 140, 0);
        assert_eq!(refused(&frame).0, Malformed::Ip4Length);
    }

    #[test]
    fn f07_lying_transport_headers_keep_their_flow() {
        for nibble in (0..5).chain([15]) {
            let mut frame = Sample::tcp4().payload_len(3).bytes();
            frame[46] = nibble << 4;
            let (reason, known) = refused(&frame);
            assert_eq!(reason, Malformed::TcpHeader);
            assert!(matches!(known, Known::Flow(_)));
        }
        for len in [0, 7, 8, 107, 109, 65535_u16] {
            let mut frame = Sample::udp4().bytes();
            frame[38..40].copy_from_slice(&len.to_be_bytes());
            let (reason, known) = refused(&frame);
            assert_eq!(reason, Malformed::UdpLength, "{len}");
            assert!(matches!(known, Known::Flow(_)));
        }
        let empty = Sample::udp4().payload_len(0).bytes();
        assert_eq!(refused(&empty).0, Malformed::UdpLength);
    }

    #[test]
    fn f07_a_frame_cut_anywhere_is_refused() {
        let mut sample = Sample::tcp6();
        sample.tags = vec![(0x8100, 1)];
        sample.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0])];
        for sample in [sample, Sample::tcp4(), Sample::udp4()] {
            let frame = sample.bytes();
            for len in 0..frame.len() {
                assert!(parse(&frame[..len]).is_err(), "{len} of {sample:?}");
            }
        }
    }

    /// What a layout claims must lie in the frame, and known offsets must allow the reads that
    /// they promise.
    fn check_claims(frame: &[u8]) {
        match parse(frame) {
            Ok(layout) => {
                let payload = usize::from(layout.payload());
                assert!(layout.l3() < layout.l4() && layout.l4() < layout.payload());
                assert_eq!(payload + layout.payload_len() as usize, frame.len());
            }
            Err(Unfit { known, .. }) => match known {
                Known::Nothing => {}
                Known::Addresses { network, l3 } => {
                    let len = match network {
                        Network::Ipv4 => 20,
                        Network::Ipv6 => 40,
                    };
                    assert!(usize::from(l3) + len <= frame.len());
                }
                Known::Flow(layout) => assert!(usize::from(layout.l4()) + 4 <= frame.len()),
            },
        }
    }

    proptest! {
        #[test]
        fn f07_no_byte_sequence_makes_the_parser_lie(
            frame in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            check_claims(&frame);
        }

        #[test]
        fn f07_no_change_of_a_sound_frame_makes_the_parser_lie(
            is_v6: bool,
            is_udp: bool,
            tags in 0_usize..4,
            extensions in 0_usize..10,
            changes in proptest::collection::vec((0_usize..160, any::<u8>()), 0..4),
            cut in 0_usize..400,
        ) {
            let network = if is_v6 { Network::Ipv6 } else { Network::Ipv4 };
            let transport = if is_udp { Transport::Udp } else { Transport::Tcp };
            let mut sample = Sample::new(network, transport);
            sample.tags = vec![(0x8100, 7); tags];
            sample.extensions = vec![(60, vec![0; 6]); extensions];
            let mut frame = sample.bytes();
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            check_claims(&frame);
            check_claims(frame.get(..cut).unwrap_or(&frame));
        }
    }
}
