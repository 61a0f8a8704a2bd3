//! A second opinion on what was delivered: takes packets apart with `etherparse`, and cuts a
//! merged one into the segments that a guest or a host would make of it (rule TX-7).

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use vhost_user_gro::wire::VnetHdr;

use super::packet::{CWR, FIN, PSH};

/// Where the headers of a whole TCP or UDP frame lie, as offsets from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    pub is_ipv4: bool,
    pub is_tcp: bool,
    pub l3: usize,
    pub l4: usize,
    pub payload: usize,
}

impl Headers {
    /// Takes the frame apart. Says what is wrong with a frame that is not TCP or UDP, is a
    /// fragment, or has lengths that do not add up to its own.
    pub fn of(bytes: &[u8]) -> Result<Self, String> {
        let packet = SlicedPacket::from_ethernet(bytes).map_err(|error| error.to_string())?;
        let (is_ipv4, l3_len, segment) = match packet.net {
            Some(NetSlice::Ipv4(ip)) => (true, ip.header().slice().len(), ip.payload().payload),
            Some(NetSlice::Ipv6(ip)) => (
                false,
                40 + ip.extensions().slice().len(),
                ip.payload().payload,
            ),
            _ => return Err("not an IP packet".into()),
        };
        let (is_tcp, payload) = match packet.transport {
            Some(TransportSlice::Tcp(tcp)) => (true, tcp.payload()),
            Some(TransportSlice::Udp(udp)) => (false, udp.payload()),
            _ => return Err("no TCP or UDP header".into()),
        };
        let l2_len = 14 + 4 * packet.link_exts.len();
        if l2_len + l3_len + segment.len() != bytes.len() {
            return Err("the IP length is not that of the frame".into());
        }
        let l4 = bytes.len() - segment.len();
        let headers = Self {
            is_ipv4,
            is_tcp,
            l3: l2_len,
            l4,
            payload: bytes.len() - payload.len(),
        };
        if !is_tcp && headers.payload != l4 + 8 {
            return Err("the UDP length is not that of the frame".into());
        }
        Ok(headers)
    }

    /// Where the L4 checksum lies behind the start of its header.
    pub fn csum_offset(self) -> usize {
        if self.is_tcp { 16 } else { 6 }
    }

    /// What the IPv4 header checksum must be.
    pub fn ipv4_checksum(self, bytes: &[u8]) -> u16 {
        let header = &bytes[self.l3..self.l4];
        Sum16BitWords::new()
            .add_slice(&header[..10])
            .add_slice(&header[12..])
            .ones_complement()
            .to_be()
    }

    /// The sum that stands in the field of a partial checksum: not complemented.
    pub fn pseudo_sum(self, bytes: &[u8]) -> u16 {
        !self.pseudo(bytes).ones_complement().to_be()
    }

    /// What a complete L4 checksum must be.
    pub fn checksum(self, bytes: &[u8]) -> u16 {
        let at = self.l4 + self.csum_offset();
        let sum = self
            .pseudo(bytes)
            .add_slice(&bytes[self.l4..at])
            .add_slice(&bytes[at + 2..]);
        match sum.ones_complement().to_be() {
            0 if !self.is_tcp => 0xffff,
            checksum => checksum,
        }
    }

    fn pseudo(self, bytes: &[u8]) -> Sum16BitWords {
        let addresses = if self.is_ipv4 {
            &bytes[self.l3 + 12..self.l3 + 20]
        } else {
            &bytes[self.l3 + 8..self.l3 + 40]
        };
        let len = u32::try_from(bytes.len() - self.l4).expect("a frame is small");
        Sum16BitWords::new()
            .add_slice(addresses)
            .add_2bytes([0, if self.is_tcp { 6 } else { 17 }])
            .add_4bytes(len.to_be_bytes())
    }
}

/// Whether the frame is whole TCP or UDP with a complete and right L4 checksum.
pub fn has_right_checksum(bytes: &[u8]) -> bool {
    Headers::of(bytes).is_ok_and(|headers| {
        let field = word(bytes, headers.l4 + headers.csum_offset());
        let right = headers.checksum(bytes);
        field == right || (headers.is_tcp && (field, right) == (0xffff, 0))
    })
}

/// Cuts a merged packet into its segments.
///
/// The packet must be right by itself: lengths, IPv4 checksum, pseudo-header sum.
pub fn cut(vnet: &VnetHdr, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let headers = Headers::of(bytes)?;
    if headers.is_ipv4 {
        let right = headers.ipv4_checksum(bytes);
        let found = word(bytes, headers.l3 + 10);
        if found != right {
            return Err(format!("IPv4 checksum {found:04x}, not {right:04x}"));
        }
    }
    let right = headers.pseudo_sum(bytes);
    let found = word(bytes, headers.l4 + headers.csum_offset());
    if found != right {
        return Err(format!("L4 checksum field {found:04x}, not {right:04x}"));
    }
    let gso_size = usize::from(vnet.gso_size);
    if gso_size == 0 {
        return Err("gso_size is 0".into());
    }
    let (head, payload) = bytes.split_at(headers.payload);
    let last = payload.len().div_ceil(gso_size) - 1;
    let pieces = payload.chunks(gso_size).enumerate();
    Ok(pieces
        .map(|(i, piece)| {
            let mut segment = [head, piece].concat();
            finish_segment(&mut segment, headers, i, i == last, i * gso_size);
            segment
        })
        .collect())
}

/// Brings the copied headers of segment `i` up to date.
fn finish_segment(bytes: &mut [u8], headers: Headers, i: usize, is_last: bool, offset: usize) {
    let len = bytes.len();
    let Headers { l3, l4, .. } = headers;
    if headers.is_ipv4 {
        put(bytes, l3 + 2, len - l3);
        let id = usize::from(word(bytes, l3 + 4)) + i;
        put(bytes, l3 + 4, id & 0xffff);
        let checksum = headers.ipv4_checksum(bytes);
        put(bytes, l3 + 10, checksum.into());
    } else {
        put(bytes, l3 + 4, len - l3 - 40);
    }
    if headers.is_tcp {
        let field: [u8; 4] = bytes[l4 + 4..l4 + 8].try_into().expect("four bytes");
        let offset = u32::try_from(offset).expect("a frame is small");
        let seq = u32::from_be_bytes(field).wrapping_add(offset);
        bytes[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
        let mut flags = word(bytes, l4 + 12);
        if !is_last {
            flags &= !(FIN | PSH);
        }
        if i > 0 {
            flags &= !CWR;
        }
        put(bytes, l4 + 12, flags.into());
    } else {
        put(bytes, l4 + 4, len - l4);
    }
    let checksum = headers.checksum(bytes);
    put(bytes, l4 + headers.csum_offset(), checksum.into());
}

/// The big-endian word at an offset.
pub fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("fits the field");
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
