//! Frames for tests. Every header is built by `etherparse`, so that nothing of ours vouches for
//! itself. The defaults are a valid TCP segment of 100 bytes; a test names what it is about.

use std::net::Ipv6Addr;

use etherparse::{
    IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader, UdpHeader,
};

use super::vnet_hdr::F_NEEDS_CSUM;
use super::{Network, Transport, VnetHdr, tcp};

/// ACK, which every segment in these tests has.
pub(crate) const ACK: u8 = 0x10;

/// TCP options as Linux sends them: two NOPs and a timestamp.
pub(crate) const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

/// A frame by field.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) macs: [u8; 12],
    /// Outermost first: TPID and TCI.
    pub(crate) tags: Vec<(u16, u16)>,
    pub(crate) network: Network,
    pub(crate) transport: Transport,
    /// Last byte of the source address.
    pub(crate) host: u8,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// TOS or traffic class.
    pub(crate) tos: u8,
    pub(crate) id: u16,
    pub(crate) df: bool,
    pub(crate) mf: bool,
    /// In units of 8 bytes.
    pub(crate) fragment_offset: u16,
    pub(crate) ip_options: Vec<u8>,
    pub(crate) flow_label: u32,
    /// IPv6 extension headers: type and all bytes behind next header and length.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent_pointer: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// Zero bytes behind the packet.
    pub(crate) padding: usize,
}

impl Sample {
    pub(crate) fn new(network: Network, transport: Transport) -> Self {
        Self {
            macs: [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1],
            tags: Vec::new(),
            network,
            transport,
            host: 1,
            source_port: 40000,
            destination_port: 8000,
            ttl: 64,
            tos: 0,
            id: 0,
            df: true,
            mf: false,
            fragment_offset: 0,
            ip_options: Vec::new(),
            flow_label: 0,
            extensions: Vec::new(),
            seq: 1_000_000,
            ack: 1,
            flags: ACK,
            window: 65535,
            urgent_pointer: 0,
            options: Vec::new(),
            payload: bytes(100, 1),
            padding: 0,
        }
    }

    pub(crate) fn tcp4() -> Self {
        Self::new(Network::Ipv4, Transport::Tcp)
    }

    pub(crate) fn tcp6() -> Self {
        Self::new(Network::Ipv6, Transport::Tcp)
    }

    pub(crate) fn udp4() -> Self {
        Self::new(Network::Ipv4, Transport::Udp)
    }

    /// With this many bytes of payload that depend on where in the stream they are.
    pub(crate) fn payload_len(mut self, len: usize) -> Self {
        self.payload = bytes(len, self.seq);
        self
    }

    /// The segment that follows this one in its stream, of the same length.
    pub(crate) fn next(&self) -> Self {
        let len = self.payload.len();
        Self {
            seq: self.seq.wrapping_add(u32::try_from(len).unwrap()),
            id: self.id.wrapping_add(1),
            ..self.clone()
        }
        .payload_len(len)
    }

    /// `count` segments in order, this one first.
    pub(crate) fn stream(&self, count: usize) -> Vec<Self> {
        std::iter::successors(Some(self.clone()), |last| Some(last.next()))
            .take(count)
            .collect()
    }

    /// The whole frame.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let transport = self.transport_bytes();
        let (ethertype, network) = match self.network {
            Network::Ipv4 => (0x0800_u16, self.ipv4(transport.len()).to_bytes().to_vec()),
            Network::Ipv6 => (0x86dd, self.ipv6(transport.len())),
        };
        let mut frame = self.macs.to_vec();
        for (tpid, tci) in &self.tags {
            frame.extend(tpid.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(network);
        frame.extend(transport);
        frame.extend(std::iter::repeat_n(0, self.padding));
        frame
    }

    /// The whole frame with only the pseudo-header sum in its checksum field, and the header
    /// that says so.
    pub(crate) fn partial(&self) -> (Vec<u8>, VnetHdr) {
        let mut frame = self.bytes();
        let (l4, field) = self.checksum_place();
        let mut covered = frame[l4..].to_vec();
        let sum_at = field - l4;
        let stored = [covered[sum_at], covered[sum_at + 1]];
        covered[sum_at..sum_at + 2].fill(0);
        // Stored checksum = complement of pseudo-header and transport part.
        let transport = plain_sum(&covered);
        let pseudo = plain_sum(
            &[
                (!u16::from_be_bytes(stored)).to_be_bytes(),
                (!transport).to_be_bytes(),
            ]
            .concat(),
        );
        frame[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        let vnet = VnetHdr {
            flags: F_NEEDS_CSUM,
            csum_start: u16::try_from(l4).unwrap(),
            csum_offset: u16::try_from(field - l4).unwrap(),
            ..VnetHdr::default()
        };
        (frame, vnet)
    }

    /// Offsets of the transport header and of the checksum field.
    pub(crate) fn checksum_place(&self) -> (usize, usize) {
        let extensions: usize = self.extensions.iter().map(|(_, rest)| rest.len() + 2).sum();
        let l4 = 14
            + 4 * self.tags.len()
            + match self.network {
                Network::Ipv4 => 20 + self.ip_options.len(),
                Network::Ipv6 => 40 + extensions,
            };
        (l4, l4 + usize::from(self.transport.checksum_offset()))
    }

    fn ipv4(&self, payload_len: usize) -> Ipv4Header {
        let mut ip = Ipv4Header::new(
            u16::try_from(payload_len).unwrap(),
            self.ttl,
            IpNumber(self.transport.protocol()),
            [192, 0, 2, self.host],
            [198, 51, 100, 2],
        )
        .unwrap();
        ip.options = self.ip_options.as_slice().try_into().unwrap();
        ip.total_len = u16::try_from(ip.header_len() + payload_len).unwrap();
        ip.dscp = (self.tos >> 2).try_into().unwrap();
        ip.ecn = (self.tos & 3).try_into().unwrap();
        ip.identification = self.id;
        ip.dont_fragment = self.df;
        ip.more_fragments = self.mf;
        ip.fragment_offset = IpFragOffset::try_new(self.fragment_offset).unwrap();
        ip.header_checksum = ip.calc_header_checksum();
        ip
    }

    fn ipv6(&self, payload_len: usize) -> Vec<u8> {
        let last = IpNumber(self.transport.protocol());
        let mut extensions = Vec::new();
        for (at, (_, rest)) in self.extensions.iter().enumerate() {
            let next = self
                .extensions
                .get(at + 1)
                .map_or(last.0, |(kind, _)| *kind);
            extensions.push(next);
            extensions.push(u8::try_from((rest.len() + 2) / 8 - 1).unwrap());
            extensions.extend(rest);
        }
        let (source, destination) = self.addresses6();
        let fixed = Ipv6Header {
            traffic_class: self.tos,
            flow_label: Ipv6FlowLabel::try_new(self.flow_label).unwrap(),
            payload_length: u16::try_from(extensions.len() + payload_len).unwrap(),
            next_header: self
                .extensions
                .first()
                .map_or(last, |(kind, _)| IpNumber(*kind)),
            hop_limit: self.ttl,
            source,
            destination,
        };
        [fixed.to_bytes().as_slice(), &extensions].concat()
    }

    fn addresses6(&self) -> ([u8; 16], [u8; 16]) {
        let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(self.host));
        let destination = Ipv6Addr::new(0x2001, 0xdb8, 1, 0xf00d, 0, 0x1234, 0, 2);
        (source.octets(), destination.octets())
    }

    fn transport_bytes(&self) -> Vec<u8> {
        match self.transport {
            Transport::Tcp => self.tcp_bytes(),
            Transport::Udp => self.udp_bytes(),
        }
    }

    fn tcp_bytes(&self) -> Vec<u8> {
        let mut header = TcpHeader::new(
            self.source_port,
            self.destination_port,
            self.seq,
            self.window,
        );
        header.acknowledgment_number = self.ack;
        header.urgent_pointer = self.urgent_pointer;
        header.fin = self.flags & tcp::FIN != 0;
        header.syn = self.flags & tcp::SYN != 0;
        header.rst = self.flags & tcp::RST != 0;
        header.psh = self.flags & tcp::PSH != 0;
        header.ack = self.flags & ACK != 0;
        header.urg = self.flags & tcp::URG != 0;
        header.ece = self.flags & 0x40 != 0;
        header.cwr = self.flags & tcp::CWR != 0;
        header.set_options_raw(&self.options).unwrap();
        header.checksum = match self.network {
            Network::Ipv4 => header.calc_checksum_ipv4(&self.ipv4(0), &self.payload),
            Network::Ipv6 => {
                let (source, destination) = self.addresses6();
                header.calc_checksum_ipv6_raw(source, destination, &self.payload)
            }
        }
        .unwrap();
        [header.to_bytes().as_slice(), &self.payload].concat()
    }

    fn udp_bytes(&self) -> Vec<u8> {
        let mut header = UdpHeader {
            source_port: self.source_port,
            destination_port: self.destination_port,
            length: u16::try_from(8 + self.payload.len()).unwrap(),
            checksum: 0,
        };
        header.checksum = match self.network {
            Network::Ipv4 => header.calc_checksum_ipv4(&self.ipv4(0), &self.payload),
            Network::Ipv6 => {
                let (source, destination) = self.addresses6();
                header.calc_checksum_ipv6_raw(source, destination, &self.payload)
            }
        }
        .unwrap();
        [header.to_bytes().as_slice(), &self.payload].concat()
    }
}

/// Payload in which no two places look alike.
fn bytes(len: usize, from: u32) -> Vec<u8> {
    std::iter::successors(Some(from), |at| Some(at.wrapping_add(1)))
        .take(len)
        .map(|at| at.wrapping_mul(0x9e37_79b1).to_be_bytes()[0])
        .collect()
}

/// The one's complement sum, word by word, as RFC 1071 writes it down.
pub(crate) fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}
