//! The layout of a frame that carries a segmentation type: what its virtio-net header claims,
//! checked against its bytes.

use super::ipv4::Ipv4;
use super::ipv6::{self, Ipv6};
use super::layout::{Layout, Network, Transport};
use super::tcp::{self, Tcp};
use super::vnet_hdr::{F_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VnetHdr};
use super::{ethernet, udp};

/// Why a segmentation header does not fit its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoFault {
    /// A type without `NEEDS_CSUM`.
    NoPartialChecksum,
    /// A type other than TCP over IPv4 or IPv6, or UDP.
    UnknownType,
    /// `gso_size` is 0 or 65535, or the frame is too long for its length fields.
    Size,
    /// `csum_start` or `csum_offset` is not that of the transport header.
    ChecksumPlace,
    /// EtherType or protocol contradict the type.
    Protocol,
    /// The headers are not all in the first bytes of the frame.
    Truncated,
}

impl core::fmt::Display for GsoFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NoPartialChecksum => "a segmentation type without a partial checksum",
            Self::UnknownType => "unknown segmentation type",
            Self::Size => "impossible segment size",
            Self::ChecksumPlace => "checksum offsets that are not those of the transport header",
            Self::Protocol => "protocols that contradict the segmentation type",
            Self::Truncated => "headers that do not lie in the first bytes",
        })
    }
}

impl core::error::Error for GsoFault {}

/// A frame that is to be cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoLayout {
    /// Where its headers are.
    pub layout: Layout,
    /// Payload bytes of every segment but the last.
    pub gso_size: u16,
    /// Number of segments, at least 1.
    pub segs: u32,
}

impl GsoLayout {
    /// Checks header and frame against each other. IPv4 options and IPv6 extension headers are
    /// allowed; what the IP length fields say is not looked at, they are rewritten anyway.
    ///
    /// `head` holds at least all headers, `frame_len` is the length of the whole frame in bytes.
    ///
    /// # Errors
    /// The first thing that does not fit.
    ///
    /// Source: `__virtio_net_hdr_to_skb`, `include/linux/virtio_net.h`, and rules TX-5 and 7.4.
    pub fn parse(head: &[u8], frame_len: usize, vnet: &VnetHdr) -> Result<Self, GsoFault> {
        if vnet.flags & F_NEEDS_CSUM == 0 {
            return Err(GsoFault::NoPartialChecksum);
        }
        if matches!(vnet.gso_size, 0 | u16::MAX) {
            return Err(GsoFault::Size);
        }
        let layout = headers(head, frame_len, vnet)?;
        if vnet.csum_start != layout.l4()
            || vnet.csum_offset != layout.transport().checksum_offset()
        {
            return Err(GsoFault::ChecksumPlace);
        }
        // The transport length goes into the pseudo-header sum as 16 bits.
        if frame_len - usize::from(layout.l4()) > usize::from(u16::MAX) {
            return Err(GsoFault::Size);
        }
        let gso = Self {
            layout,
            gso_size: vnet.gso_size,
            segs: layout
                .payload_len()
                .div_ceil(u32::from(vnet.gso_size))
                .max(1),
        };
        // So does the IP length of each segment into its header.
        let not_counted = match layout.network() {
            Network::Ipv4 => 0,
            Network::Ipv6 => super::ipv6::HEADER_LEN,
        };
        let ip_len = gso.segment_len() - usize::from(layout.l3()) - not_counted;
        if ip_len > usize::from(u16::MAX) {
            return Err(GsoFault::Size);
        }
        Ok(gso)
    }

    /// Where the payload of segment `index` lies in the payload of the whole frame: offset and
    /// length in bytes. `None` behind the last segment.
    #[must_use]
    pub fn payload_range(&self, index: u32) -> Option<(usize, usize)> {
        if index >= self.segs {
            return None;
        }
        let size = usize::from(self.gso_size);
        let start = index as usize * size;
        Some((start, size.min(self.layout.payload_len() as usize - start)))
    }

    /// Length in bytes of the longest segment with its headers.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        let payload = u32::from(self.gso_size).min(self.layout.payload_len());
        usize::from(self.layout.payload()) + payload as usize
    }
}

fn headers(head: &[u8], frame_len: usize, vnet: &VnetHdr) -> Result<Layout, GsoFault> {
    let link = ethernet::walk(head).map_err(|_| GsoFault::Protocol)?;
    let network = match link.ethertype {
        ethernet::TYPE_IPV4 => Network::Ipv4,
        ethernet::TYPE_IPV6 => Network::Ipv6,
        _ => return Err(GsoFault::Protocol),
    };
    let (protocol, l4) = upper(head, network, link.l3)?;
    let transport = transport(vnet.gso_type, network)?;
    if protocol != transport.protocol() {
        return Err(GsoFault::Protocol);
    }
    let header_len = match transport {
        Transport::Tcp => Tcp::at(head, l4).map(Tcp::header_len),
        Transport::Udp => Some(udp::HEADER_LEN),
    };
    let payload = match header_len {
        Some(len) if len >= udp::HEADER_LEN => l4 + len,
        _ => return Err(GsoFault::Truncated),
    };
    if transport == Transport::Tcp && payload < l4 + tcp::HEADER_LEN {
        return Err(GsoFault::Protocol);
    }
    if payload > head.len() || head.len() > frame_len {
        return Err(GsoFault::Truncated);
    }
    let narrow = |bytes: usize| u16::try_from(bytes).map_err(|_| GsoFault::Size);
    let payload_len = frame_len - payload;
    if payload_len > Layout::MAX_PAYLOAD_LEN {
        return Err(GsoFault::Size);
    }
    Ok(Layout::new(
        network,
        transport,
        narrow(link.l3)?,
        narrow(l4)?,
        narrow(payload)?,
        u32::try_from(payload_len).map_err(|_| GsoFault::Size)?,
    ))
}

/// Protocol number behind the network header, and its offset.
fn upper(head: &[u8], network: Network, l3: usize) -> Result<(u8, usize), GsoFault> {
    match network {
        Network::Ipv4 => {
            let ip = Ipv4::at(head, l3).ok_or(GsoFault::Truncated)?;
            if ip.version() != 4 || ip.header_len() < super::ipv4::HEADER_LEN || ip.is_fragment() {
                return Err(GsoFault::Protocol);
            }
            Ok((ip.protocol(), l3 + ip.header_len()))
        }
        Network::Ipv6 => {
            let ip = Ipv6::at(head, l3).ok_or(GsoFault::Truncated)?;
            if ip.version() != 6 {
                return Err(GsoFault::Protocol);
            }
            let upper = ipv6::walk_extensions(head, l3, ip.next_header())
                .map_err(|_| GsoFault::Protocol)?;
            Ok((upper.protocol, upper.l4))
        }
    }
}

/// The transport that a segmentation type means. CWR, and with it the ECN bit, is TCP's alone.
fn transport(gso_type: u8, network: Network) -> Result<Transport, GsoFault> {
    match (gso_type & !GSO_ECN, network) {
        (GSO_TCPV4, Network::Ipv4) | (GSO_TCPV6, Network::Ipv6) => Ok(Transport::Tcp),
        (GSO_UDP_L4, _) if gso_type & GSO_ECN == 0 => Ok(Transport::Udp),
        (GSO_TCPV4 | GSO_TCPV6, _) => Err(GsoFault::Protocol),
        _ => Err(GsoFault::UnknownType),
    }
}
