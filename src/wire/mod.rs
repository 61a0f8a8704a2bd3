//! Bytes on the wire and their meaning: headers, checksums, frame layout. Pure.
//!
//! Two levels. [`layout::parse`] goes over a frame once and checks every length; what it returns
//! are offsets and protocol kinds. The views of [`ipv4`], [`ipv6`], [`tcp`] and [`udp`] are then
//! made from those offsets; a view borrows an array of fixed size, so its accessors cannot fail.
//! Nothing here trusts a length field: a frame may be cut anywhere and may lie about itself.
//!
//! A frame that is not fit for merging is not an error. [`layout::Unfit`] names the check that
//! failed and says how much of the flow's identity could be read all the same, because held
//! frames of that flow have to leave first.

pub mod checksum;
pub mod ethernet;
pub mod flow_hash;
pub mod gso_layout;
pub mod ipv4;
pub mod ipv6;
pub mod layout;
#[cfg(test)]
pub(crate) mod sample;
pub mod tcp;
pub mod udp;
pub mod vnet_hdr;

pub use flow_hash::{FlowHash, HashScope};
pub use gso_layout::{GsoFault, GsoLayout};
pub use layout::{Layout, Network, Transport};
pub use vnet_hdr::{RxMeta, VnetHdr};

/// The check that a frame failed on its way through the layout parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its Ethernet header with tags (ETH-2).
    LinkTruncated,
    /// More than two VLAN tags (VLAN-3).
    TooManyTags,
    /// Neither IPv4 nor IPv6 (ETH-2).
    NotIp,
    /// No sound IPv4 header: version, presence or header length (IP4-5).
    Ip4Header,
    /// IPv4, but neither TCP nor UDP (IP4-1).
    Ip4Protocol,
    /// A fragment of an IPv4 packet (IP4-3).
    Ip4Fragment,
    /// IPv4 with options (IP4-2).
    Ip4Options,
    /// Wrong IPv4 header checksum (IP4-4).
    Ip4Checksum,
    /// IPv4 total length differs from the bytes present, or the reserved bit is set (IP4-6).
    Ip4Length,
    /// No sound IPv6 header: version or presence (IP6-1).
    Ip6Header,
    /// IPv6, but neither TCP nor UDP behind the allowed extension headers (IP6-1).
    Ip6Protocol,
    /// IPv6 extension headers run out of the frame or are more than eight (IP6-3).
    Ip6Chain,
    /// IPv6 with a fragment or authentication header (IP6-4).
    Ip6Fragment,
    /// IPv6 payload length differs from the bytes present (IP6-2).
    Ip6Length,
    /// TCP header incomplete or its data offset impossible (TCP-0).
    TcpHeader,
    /// UDP length differs from the bytes present, or the datagram is empty (UDP-3).
    UdpLength,
}

impl Malformed {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 16] = [
        Self::LinkTruncated,
        Self::TooManyTags,
        Self::NotIp,
        Self::Ip4Header,
        Self::Ip4Protocol,
        Self::Ip4Fragment,
        Self::Ip4Options,
        Self::Ip4Checksum,
        Self::Ip4Length,
        Self::Ip6Header,
        Self::Ip6Protocol,
        Self::Ip6Chain,
        Self::Ip6Fragment,
        Self::Ip6Length,
        Self::TcpHeader,
        Self::UdpLength,
    ];

    /// A stable name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinkTruncated => "link_truncated",
            Self::TooManyTags => "too_many_tags",
            Self::NotIp => "not_ip",
            Self::Ip4Header => "ip4_header",
            Self::Ip4Protocol => "ip4_protocol",
            Self::Ip4Fragment => "ip4_fragment",
            Self::Ip4Options => "ip4_options",
            Self::Ip4Checksum => "ip4_checksum",
            Self::Ip4Length => "ip4_length",
            Self::Ip6Header => "ip6_header",
            Self::Ip6Protocol => "ip6_protocol",
            Self::Ip6Chain => "ip6_chain",
            Self::Ip6Fragment => "ip6_fragment",
            Self::Ip6Length => "ip6_length",
            Self::TcpHeader => "tcp_header",
            Self::UdpLength => "udp_length",
        }
    }
}

/// Reads a big-endian 16-bit field of a header.
pub(crate) const fn be16<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

/// Reads a big-endian 32-bit field of a header.
pub(crate) const fn be32<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Borrows `N` bytes of `frame` from `offset` on.
pub(crate) fn array_at<const N: usize>(frame: &[u8], offset: usize) -> Option<&[u8; N]> {
    frame.get(offset..)?.first_chunk()
}

/// Borrows `N` bytes of `frame` from `offset` on, to be written.
pub(crate) fn array_at_mut<const N: usize>(
    frame: &mut [u8],
    offset: usize,
) -> Option<&mut [u8; N]> {
    frame.get_mut(offset..)?.first_chunk_mut()
}
