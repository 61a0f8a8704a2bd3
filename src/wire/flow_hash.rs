//! The flow hash of virtio-net: Toeplitz over addresses and ports.
//!
//! Frames of one flow have one hash, whatever else is in them. What is hashed are the bytes as they
//! stand in the headers: source address, destination address and, for TCP and UDP, source port and
//! destination port. Fragments have no ports, so all packets of a flow that is sometimes cut into
//! fragments stay together by their addresses only ([`HashScope::Addresses`]).
//!
//! Source: virtio 1.2, 5.1.6.4.3 "Hash calculation for incoming packets".

use super::ipv4::{self, Ipv4};
use super::ipv6::{self, Ipv6};
use super::{array_at, ethernet, tcp, udp};

/// Bytes of a key: those of the longest input and of one hash.
pub const KEY_LEN: usize = INPUT_MAX + 4;
/// Both addresses of IPv6 and both ports.
const INPUT_MAX: usize = 36;

/// The key that everybody uses to check a hash against.
///
/// Source: "Verifying the RSS Hash Calculation", Microsoft's documentation of RSS.
pub const KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// What the hash of a frame is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashScope {
    /// Addresses and, where they can be read, ports (rule THR-2).
    #[default]
    Flow,
    /// Addresses alone, so that fragments stay with the rest of their flow.
    Addresses,
}

/// A key, expanded: what each half of each byte of the input adds to the hash.
#[derive(Clone, Debug)]
pub struct FlowHash([[u32; 16]; 2 * INPUT_MAX]);

impl Default for FlowHash {
    fn default() -> Self {
        Self::new(&KEY)
    }
}

impl FlowHash {
    /// Expands `key`.
    #[must_use]
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let mut halves = [[0; 16]; 2 * INPUT_MAX];
        for (nth, half) in halves.iter_mut().enumerate() {
            for (value, entry) in half.iter_mut().enumerate() {
                let bits = (0..4).filter(|bit| value >> (3 - bit) & 1 == 1);
                *entry = bits.fold(0, |hash, bit| hash ^ window(key, 4 * nth + bit));
            }
        }
        Self(halves)
    }

    /// The hash of a frame; `None` if it has no addresses, being neither IPv4 nor IPv6.
    #[must_use]
    pub fn of_frame(&self, frame: &[u8], scope: HashScope) -> Option<u32> {
        let link = ethernet::walk(frame).ok()?;
        match link.ethertype {
            ethernet::TYPE_IPV4 => self.of_ipv4(frame, link.l3, scope),
            ethernet::TYPE_IPV6 => self.of_ipv6(frame, link.l3, scope),
            _ => None,
        }
    }

    fn of_ipv4(&self, frame: &[u8], l3: usize, scope: HashScope) -> Option<u32> {
        let ip = Ipv4::at(frame, l3)?;
        if ip.version() != 4 || ip.header_len() < ipv4::HEADER_LEN {
            return None;
        }
        let addresses = array_at::<8>(frame, l3 + 12)?;
        let ports = || {
            (!ip.is_fragment() && has_ports(ip.protocol()))
                .then(|| array_at::<4>(frame, l3 + ip.header_len()))?
        };
        Some(self.of(addresses, scope, ports))
    }

    fn of_ipv6(&self, frame: &[u8], l3: usize, scope: HashScope) -> Option<u32> {
        let ip = Ipv6::at(frame, l3)?;
        if ip.version() != 6 {
            return None;
        }
        let ports = || {
            let upper = ipv6::walk_extensions(frame, l3, ip.next_header()).ok()?;
            has_ports(upper.protocol).then(|| array_at::<4>(frame, upper.l4))?
        };
        Some(self.of(ip.addresses(), scope, ports))
    }

    fn of<'a>(
        &self,
        addresses: &[u8],
        scope: HashScope,
        ports: impl FnOnce() -> Option<&'a [u8; 4]>,
    ) -> u32 {
        let hash = self.add(0, 0, addresses);
        match scope {
            HashScope::Flow => ports().map_or(hash, |ports| self.add(hash, addresses.len(), ports)),
            HashScope::Addresses => hash,
        }
    }

    /// Adds `bytes` that stand at `at` in the input. What is beyond the longest input counts for
    /// nothing.
    #[inline]
    fn add(&self, hash: u32, at: usize, bytes: &[u8]) -> u32 {
        let (halves, _) = self.0.as_chunks::<2>();
        let rest = halves.get(at..).unwrap_or_default();
        bytes
            .iter()
            .zip(rest)
            .fold(hash, |hash, (byte, [high, low])| {
                hash ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)]
            })
    }
}

/// 32 bits of the key from bit `at` on.
fn window(key: &[u8; KEY_LEN], at: usize) -> u32 {
    let bit = |nth: usize| u32::from(key[nth / 8] >> (7 - nth % 8) & 1);
    (at..at + 32).fold(0, |window, nth| window << 1 | bit(nth))
}

const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, tcp::PROTOCOL | udp::PROTOCOL)
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use alloc::vec::Vec;

    use super::*;
    use crate::wire::sample::Sample;

    /// Source, its port, destination, its port, hash of the addresses, hash of all.
    type Vector<'a> = (&'a str, u16, &'a str, u16, u32, u32);

    /// Source: "Verifying the RSS Hash Calculation", Microsoft's documentation of RSS.
    const IPV4: [Vector<'static>; 5] = [
        (
            "66.9.149.187",
            2794,
            "161.142.100.80",
            1766,
            0x323e_8fc2,
            0x51cc_c178,
        ),
        (
            "199.92.111.2",
            14230,
            "65.69.140.83",
            4739,
            0xd718_262a,
            0xc626_b0ea,
        ),
        (
            "24.19.198.95",
            12898,
            "12.22.207.184",
            38024,
            0xd2d0_a5de,
            0x5c2b_394a,
        ),
        (
            "38.27.205.30",
            48228,
            "209.142.163.6",
            2217,
            0x8298_9176,
            0xafc7_327f,
        ),
        (
            "153.39.163.191",
            44251,
            "202.188.127.2",
            1303,
            0x5d18_09c5,
            0x10e8_28a2,
        ),
    ];
    /// As above.
    const IPV6: [Vector<'static>; 3] = [
        (
            "3ffe:2501:200:1fff::7",
            2794,
            "3ffe:2501:200:3::1",
            1766,
            0x2cc1_8cd5,
            0x4020_7d3d,
        ),
        (
            "3ffe:501:8::260:97ff:fe40:efab",
            14230,
            "ff02::1",
            4739,
            0x0f0c_461c,
            0xdde5_1bbf,
        ),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn check(frame: &[u8], addresses: u32, all: u32) {
        let hash = FlowHash::default();
        assert_eq!(hash.of_frame(frame, HashScope::Addresses), Some(addresses));
        assert_eq!(hash.of_frame(frame, HashScope::Flow), Some(all));
    }

    fn ports(frame: &mut [u8], at: usize, source: u16, destination: u16) {
        frame[at..at + 2].copy_from_slice(&source.to_be_bytes());
        frame[at + 2..at + 4].copy_from_slice(&destination.to_be_bytes());
    }

    #[test]
    fn the_vectors_of_ipv4() {
        for (source, source_port, destination, destination_port, addresses, all) in IPV4 {
            let mut frame = Sample::tcp4().bytes();
            let octets = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
            frame[26..30].copy_from_slice(&octets(source));
            frame[30..34].copy_from_slice(&octets(destination));
            ports(&mut frame, 34, source_port, destination_port);
            check(&frame, addresses, all);
            // A fragment has no ports, nor has another protocol.
            frame[20] |= 0x20;
            check(&frame, addresses, addresses);
            frame[20] &= 0xdf;
            frame[23] = 1;
            check(&frame, addresses, addresses);
        }
    }

    #[test]
    fn the_vectors_of_ipv6() {
        for (source, source_port, destination, destination_port, addresses, all) in IPV6 {
            let mut frame = Sample::tcp6().bytes();
            let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
            frame[22..38].copy_from_slice(&octets(source));
            frame[38..54].copy_from_slice(&octets(destination));
            ports(&mut frame, 54, source_port, destination_port);
            check(&frame, addresses, all);
            frame[20] = 58;
            check(&frame, addresses, addresses);
        }
    }

    #[test]
    fn f05_frames_of_a_flow_have_one_hash_and_other_flows_another() {
        let hash = |sample: &Sample| {
            FlowHash::default()
                .of_frame(&sample.bytes(), HashScope::Flow)
                .unwrap()
        };
        for sample in [Sample::tcp4(), Sample::tcp6()] {
            let changed = |change: &dyn Fn(&mut Sample)| {
                let mut sample = sample.clone();
                change(&mut sample);
                hash(&sample)
            };
            let same = hash(&sample);
            assert_eq!(same, changed(&|s| s.seq = 99));
            assert_eq!(same, changed(&|s| s.tos = 4));
            assert_eq!(same, changed(&|s| s.macs[0] = 4));
            assert_eq!(same, changed(&|s| s.tags = vec_of_tags()));
            assert_ne!(same, changed(&|s| s.source_port = 9));
            assert_ne!(same, changed(&|s| s.host = 9));
        }
    }

    fn vec_of_tags() -> Vec<(u16, u16)> {
        [(0x88a8, 5), (0x8100, 6)].to_vec()
    }

    #[test]
    fn a_cut_frame_is_hashed_as_far_as_it_goes() {
        for sample in [Sample::tcp4(), Sample::tcp6()] {
            let frame = sample.bytes();
            let hash = FlowHash::default();
            let of = |frame: &[u8], scope| hash.of_frame(frame, scope);
            let by_addresses = of(&frame, HashScope::Addresses);
            let l4 = if frame[12] == 8 { 34 } else { 54 };
            for len in 0..frame.len() {
                let expected = match len {
                    _ if len < l4 => None,
                    _ if len < l4 + 4 => by_addresses,
                    _ => of(&frame, HashScope::Flow),
                };
                assert_eq!(of(&frame[..len], HashScope::Flow), expected, "{len}");
            }
        }
        let arp = [&[0; 12][..], &[8, 6], &[0; 46]].concat();
        assert_eq!(FlowHash::default().of_frame(&arp, HashScope::Flow), None);
    }

    #[test]
    fn neighbouring_flows_spread_over_any_number_of_workers() {
        let hash = FlowHash::default();
        for workers in 2..=8 {
            let mut shares = [0; 8];
            for port in 0..1024 {
                let mut sample = Sample::tcp4();
                sample.source_port = 32768 + port;
                let hash = hash.of_frame(&sample.bytes(), HashScope::Flow).unwrap();
                shares[hash as usize % workers] += 1;
            }
            let even = 1024 / workers;
            for share in &shares[..workers] {
                assert!(
                    (even / 2..=2 * even).contains(share),
                    "{workers}: {shares:?}"
                );
            }
        }
    }
}
