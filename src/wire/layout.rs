//! One pass over a frame: where its headers are, and whether it may take part in merging.

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

/// Where the headers of a frame are.
///
/// # Units
/// Offsets are bytes from the start of the Ethernet frame, VLAN tags included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Internet protocol.
    pub network: Network,
    /// Transport protocol.
    pub transport: Transport,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the transport header.
    pub l4: u16,
    /// Offset of the transport payload, which is also the length of all headers.
    pub payload: u16,
    /// Bytes of transport payload.
    pub payload_len: u32,
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
#[inline]
pub fn parse(frame: &[u8]) -> Result<Layout, Unfit> {
    let link = ethernet::walk(frame).map_err(unknown)?;
    match link.ethertype {
        ethernet::TYPE_IPV4 => parse_ipv4(frame, link.l3),
        ethernet::TYPE_IPV6 => parse_ipv6(frame, link.l3),
        _ => Err(unknown(Malformed::NotIp)),
    }
}

#[inline]
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

#[inline]
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

#[inline]
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
    #[inline]
    fn layout(self, header_len: usize, payload_len: usize) -> Layout {
        Layout {
            network: self.network,
            transport: self.transport,
            l3: offset(self.l3),
            l4: offset(self.l4),
            payload: offset(self.l4 + header_len),
            payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
        }
    }

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

/// Headers end below 17 KiB: 22 bytes of link header, 60 of IPv4 or 40 of IPv6 with eight
/// extension headers of 2 KiB, 60 of transport.
#[inline]
fn offset(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
