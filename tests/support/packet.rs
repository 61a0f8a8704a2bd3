//! Frames for tests: `tcp4(A, B).seq(101).flags(PSH | ACK).payload(100)`.
//!
//! Everything not named is valid: lengths, checksums, addresses. The headers are written here by
//! hand and not by `wire`, so that a mistake there does not hide behind itself.

use std::net::{Ipv4Addr, Ipv6Addr};

use vhost_user_gro::wire::RxMeta;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, VnetHdr};

pub const FIN: u16 = 0x001;
pub const SYN: u16 = 0x002;
pub const RST: u16 = 0x004;
pub const PSH: u16 = 0x008;
pub const ACK: u16 = 0x010;
pub const URG: u16 = 0x020;
pub const ECE: u16 = 0x040;
pub const CWR: u16 = 0x080;
/// The ninth flag: accurate ECN, formerly NS.
pub const AE: u16 = 0x100;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    pub mac: [u8; 6],
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    pub port: u16,
}

/// The sender of most frames.
pub const A: Host = Host {
    mac: [2, 0, 0, 0, 0, 1],
    v4: Ipv4Addr::new(192, 0, 2, 1),
    v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    port: 40000,
};

/// The receiver of most frames.
pub const B: Host = Host {
    mac: [2, 0, 0, 0, 0, 2],
    v4: Ipv4Addr::new(198, 51, 100, 2),
    v6: Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2),
    port: 8000,
};

impl Host {
    /// The same host with another port.
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    V4,
    V6,
}

/// What a checksum field contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    Right,
    Wrong,
    /// 0, which means "none" for UDP.
    Zero,
    /// The pseudo-header sum only, with `NEEDS_CSUM` from the host.
    Partial,
}

/// A frame to be built. Fields that its protocols do not have are ignored.
#[derive(Clone, Debug)]
pub struct Packet {
    from: Host,
    to: Host,
    vlan: Vec<(u16, u16)>,
    ip: Ip,
    protocol: u8,
    ttl: u8,
    tos: u8,
    id: u16,
    df: bool,
    mf: bool,
    reserved_bit: bool,
    fragment_offset: u16,
    ip_options: Vec<u8>,
    ip_csum: Checksum,
    flow_label: u32,
    extensions: Vec<(u8, Vec<u8>)>,
    total_length_delta: i32,
    padding: usize,
    seq: u32,
    ack: u32,
    flags: u16,
    window: u16,
    urgent: u16,
    options: Vec<u8>,
    data_offset: Option<u8>,
    udp_length: Option<u16>,
    csum: Checksum,
    payload: usize,
    host_gso_size: Option<u16>,
    merge_mark: u64,
}

pub fn tcp4(from: Host, to: Host) -> Packet {
    Packet::new(from, to, Ip::V4, TCP)
}

pub fn tcp6(from: Host, to: Host) -> Packet {
    Packet::new(from, to, Ip::V6, TCP)
}

pub fn udp4(from: Host, to: Host) -> Packet {
    Packet::new(from, to, Ip::V4, UDP)
}

pub fn udp6(from: Host, to: Host) -> Packet {
    Packet::new(from, to, Ip::V6, UDP)
}

/// Setters named after the fields.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $kind:ty,)*) => {
        $($(#[$doc])* pub fn $field(mut self, $field: $kind) -> Self {
            self.$field = $field;
            self
        })*
    };
}

impl Packet {
    /// A packet of any protocol; one other than TCP and UDP has its payload behind the IP header.
    pub fn new(from: Host, to: Host, ip: Ip, protocol: u8) -> Self {
        Self {
            from,
            to,
            vlan: Vec::new(),
            ip,
            protocol,
            ttl: 64,
            tos: 0,
            id: 0,
            df: true,
            mf: false,
            reserved_bit: false,
            fragment_offset: 0,
            ip_options: Vec::new(),
            ip_csum: Checksum::Right,
            flow_label: 0,
            extensions: Vec::new(),
            total_length_delta: 0,
            padding: 0,
            seq: 1,
            ack: 1,
            flags: ACK,
            window: 65535,
            urgent: 0,
            options: Vec::new(),
            data_offset: None,
            udp_length: None,
            csum: Checksum::Right,
            payload: 0,
            host_gso_size: None,
            merge_mark: 0,
        }
    }

    setters! {
        /// Tags as (TPID, TCI), outermost first.
        vlan: Vec<(u16, u16)>,
        /// Hop limit for IPv6.
        ttl: u8,
        /// Traffic class for IPv6.
        tos: u8,
        id: u16,
        df: bool,
        mf: bool,
        reserved_bit: bool,
        /// In units of 8 bytes.
        fragment_offset: u16,
        ip_options: Vec<u8>,
        ip_csum: Checksum,
        flow_label: u32,
        /// Type, and all bytes behind next header and length (behind the reserved byte for a
        /// fragment header).
        extensions: Vec<(u8, Vec<u8>)>,
        /// Added to the IPv4 total length or the IPv6 payload length.
        total_length_delta: i32,
        /// Zero bytes behind the IP packet.
        padding: usize,
        /// For all protocols it also is the offset in the stream of payload bytes.
        seq: u32,
        ack: u32,
        flags: u16,
        window: u16,
        urgent: u16,
        options: Vec<u8>,
        /// In words; follows from the options if not set.
        data_offset: Option<u8>,
        udp_length: Option<u16>,
        csum: Checksum,
        payload: usize,
        /// The frame was merged by the host, with this segment size.
        host_gso_size: Option<u16>,
        merge_mark: u64,
    }

    pub fn bad_csum(self) -> Self {
        self.csum(Checksum::Wrong)
    }

    pub fn partial_csum(self) -> Self {
        self.csum(Checksum::Partial)
    }

    /// The whole frame.
    pub fn build(&self) -> Built {
        let segment = self.segment();
        let header_len = segment.len() - self.payload;
        let mut bytes = self.ethernet();
        match self.ip {
            Ip::V4 => bytes.extend(self.ipv4(segment.len())),
            Ip::V6 => bytes.extend(self.ipv6(segment.len())),
        }
        let l4 = bytes.len();
        bytes.extend(segment);
        bytes.resize(bytes.len() + self.padding, 0);
        let payload = l4 + header_len;
        Built {
            bytes,
            meta: RxMeta {
                vnet: self.host_header(l4, payload),
                merge_mark: self.merge_mark,
            },
            l4,
            payload,
            payload_len: self.payload,
            csum: self.csum,
            protocol: self.protocol,
        }
    }

    fn ethernet(&self) -> Vec<u8> {
        let mut bytes = [self.to.mac, self.from.mac].concat();
        for (tpid, tci) in &self.vlan {
            bytes.extend(tpid.to_be_bytes());
            bytes.extend(tci.to_be_bytes());
        }
        bytes.extend(match self.ip {
            Ip::V4 => [0x08, 0x00],
            Ip::V6 => [0x86, 0xdd],
        });
        bytes
    }

    fn ipv4(&self, segment_len: usize) -> Vec<u8> {
        let header_len = 20 + self.ip_options.len();
        assert!(header_len.is_multiple_of(4) && header_len <= 60);
        let bits = u16::from(self.reserved_bit) << 15
            | u16::from(self.df) << 14
            | u16::from(self.mf) << 13
            | self.fragment_offset;
        let mut bytes = vec![0x40 | low_byte(header_len / 4), self.tos];
        bytes.extend(self.length_field(header_len + segment_len));
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(bits.to_be_bytes());
        bytes.extend([self.ttl, self.protocol, 0, 0]);
        bytes.extend(self.from.v4.octets());
        bytes.extend(self.to.v4.octets());
        bytes.extend(&self.ip_options);
        let field = match self.ip_csum {
            Checksum::Wrong => !sum(&[&bytes]) ^ 0x1234,
            _ => !sum(&[&bytes]),
        };
        bytes[10..12].copy_from_slice(&field.to_be_bytes());
        bytes
    }

    fn ipv6(&self, segment_len: usize) -> Vec<u8> {
        let types = self.extensions.iter().map(|(kind, _)| *kind);
        let mut next = types.chain([self.protocol]);
        let first = next.next().expect("there is a protocol");
        let mut chain = Vec::new();
        for ((kind, rest), next) in self.extensions.iter().zip(next) {
            let len = rest.len() + 2;
            chain.push(next);
            chain.push(match *kind {
                FRAGMENT => 0,
                AUTHENTICATION => low_byte(len / 4 - 2),
                _ => low_byte(len / 8 - 1),
            });
            chain.extend(rest);
        }
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
        let mut bytes = word.to_be_bytes().to_vec();
        bytes.extend(self.length_field(chain.len() + segment_len));
        bytes.extend([first, self.ttl]);
        bytes.extend(self.from.v6.octets());
        bytes.extend(self.to.v6.octets());
        bytes.extend(chain);
        bytes
    }

    fn length_field(&self, len: usize) -> [u8; 2] {
        let len = i32::try_from(len).expect("a test frame is small") + self.total_length_delta;
        u16::try_from(len).expect("fits the field").to_be_bytes()
    }

    /// L4 header and payload.
    fn segment(&self) -> Vec<u8> {
        let (mut bytes, csum_at) = match self.protocol {
            TCP => (self.tcp(), 16),
            UDP => (self.udp(), 6),
            _ => (Vec::new(), usize::MAX),
        };
        bytes.extend((0..self.payload).map(|i| self.payload_byte(i)));
        let Some(field) = bytes.get(csum_at..).and_then(|rest| rest.get(..2)) else {
            return bytes;
        };
        assert_eq!(field, [0, 0]);
        let pseudo = self.pseudo_header(bytes.len());
        let right = match !sum(&[&pseudo, &bytes]) {
            0 if self.protocol == UDP => 0xffff,
            right => right,
        };
        let field = match self.csum {
            Checksum::Right => right,
            Checksum::Wrong => match right ^ 0x1234 {
                0 => 0x4321,
                wrong => wrong,
            },
            Checksum::Zero => 0,
            Checksum::Partial => sum(&[&pseudo]),
        };
        bytes[csum_at..csum_at + 2].copy_from_slice(&field.to_be_bytes());
        bytes
    }

    fn tcp(&self) -> Vec<u8> {
        let words = low_byte((20 + self.options.len()) / 4);
        let data_offset = u16::from(self.data_offset.unwrap_or(words));
        let mut bytes = self.ports();
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend((data_offset << 12 | self.flags).to_be_bytes());
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(&self.options);
        bytes
    }

    fn udp(&self) -> Vec<u8> {
        let right = u16::try_from(8 + self.payload).expect("fits the field");
        let mut bytes = self.ports();
        bytes.extend(self.udp_length.unwrap_or(right).to_be_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    fn ports(&self) -> Vec<u8> {
        [self.from.port.to_be_bytes(), self.to.port.to_be_bytes()].concat()
    }

    fn pseudo_header(&self, segment_len: usize) -> Vec<u8> {
        let mut bytes = match self.ip {
            Ip::V4 => [self.from.v4.octets(), self.to.v4.octets()].concat(),
            Ip::V6 => [self.from.v6.octets(), self.to.v6.octets()].concat(),
        };
        bytes.extend([0, self.protocol]);
        bytes.extend(
            u32::try_from(segment_len)
                .expect("a test frame is small")
                .to_be_bytes(),
        );
        bytes
    }

    /// Byte `i` of the payload: a function of flow and stream offset that repeats nowhere near.
    fn payload_byte(&self, i: usize) -> u8 {
        let i = u32::try_from(i).expect("a test frame is small");
        let offset = u64::from(self.seq.wrapping_add(i));
        let flow = u64::from(self.from.port) << 48 | u64::from(self.to.port) << 32;
        (flow | offset)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_be_bytes()[0]
    }

    fn host_header(&self, l4: usize, payload: usize) -> VnetHdr {
        let field = |len: usize| u16::try_from(len).expect("fits the field");
        let mut vnet = VnetHdr::default();
        if self.csum == Checksum::Partial {
            vnet.flags = F_NEEDS_CSUM;
            vnet.csum_start = field(l4);
            vnet.csum_offset = if self.protocol == UDP { 6 } else { 16 };
        }
        if let Some(gso_size) = self.host_gso_size {
            vnet.gso_type = match self.ip {
                Ip::V4 => GSO_TCPV4,
                Ip::V6 => GSO_TCPV6,
            };
            vnet.gso_size = gso_size;
            vnet.hdr_len = field(payload);
        }
        vnet
    }
}

/// A built frame.
#[derive(Clone, Debug)]
pub struct Built {
    pub bytes: Vec<u8>,
    pub meta: RxMeta,
    /// Where the L4 header starts.
    pub l4: usize,
    /// Where the L4 payload starts.
    pub payload: usize,
    /// Payload bytes; Ethernet padding is not among them.
    pub payload_len: usize,
    pub csum: Checksum,
    pub protocol: u8,
}

impl Built {
    /// The L4 payload without padding.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.payload..self.payload + self.payload_len]
    }
}

/// Sum of 16 bit words in ones' complement over parts of which all but the last are even.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut total: u32 = 0;
    for word in parts.iter().flat_map(|part| part.chunks(2)) {
        total += u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    u16::try_from(total).expect("is folded after every step")
}

fn low_byte(value: usize) -> u8 {
    u8::try_from(value).expect("fits the field")
}
