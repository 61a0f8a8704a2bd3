//! Which flow a frame belongs to (rule FLOW-1), and a cheap hash of that.

use crate::wire::ethernet::{HEADER_LEN, MACS_LEN, TAG_LEN};
use crate::wire::{Layout, Network, array_at};

/// TPID and the 12 bits of the VLAN identifier; priority and DEI are no part of the identity.
const VLAN_IDENTITY: u32 = 0xffff_0fff;

/// VLAN identities, IP version and both addresses: what is known of a fragment's flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressPair {
    addresses: [u64; 4],
    /// Identity of the outer tag in the high half, of the inner in the low half, 0 for none. The
    /// four spare bits above the inner identifier hold the IP version.
    link: u64,
}

impl AddressPair {
    #[inline(always)]
    pub(super) fn read(frame: &[u8], network: Network, l3: u16) -> Option<Self> {
        let l3 = usize::from(l3);
        let tags = if l3 == HEADER_LEN {
            0
        } else {
            tag_identities(frame, l3)
        };
        match network {
            Network::Ipv4 => {
                let raw = array_at::<8>(frame, l3 + 12)?;
                Some(Self {
                    addresses: [u64::from_le_bytes(*raw), 0, 0, 0],
                    link: tags | 4 << 12,
                })
            }
            Network::Ipv6 => {
                let (words, _) = array_at::<32>(frame, l3 + 8)?.as_chunks::<8>();
                let mut addresses = [0; 4];
                for (to, from) in addresses.iter_mut().zip(words) {
                    *to = u64::from_le_bytes(*from);
                }
                Some(Self {
                    addresses,
                    link: tags | 6 << 12,
                })
            }
        }
    }

    /// Adds the pair to a hash, in multiplications that do not wait for each other.
    #[inline(always)]
    const fn hash_onto(&self, seed: u64) -> u64 {
        let [a, b, c, d] = self.addresses;
        let hash = fold(a ^ SALT[0], seed ^ self.link ^ SALT[1]);
        // Empty for IPv4.
        if b | c | d == 0 {
            return hash;
        }
        hash ^ fold(b ^ SALT[2], c ^ d.rotate_left(32) ^ SALT[3])
    }
}

/// Words are compared without branches; the derived comparison would call `memcmp`.
impl PartialEq for AddressPair {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let [a, b, c, d] = self.addresses;
        let [e, f, g, h] = other.addresses;
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) | (self.link ^ other.link) == 0
    }
}

impl Eq for AddressPair {}

/// Identities of the tags between the MAC addresses and the network header at `l3`.
fn tag_identities(frame: &[u8], l3: usize) -> u64 {
    let tag = |at: usize| {
        if at + TAG_LEN + 2 > l3 {
            return 0;
        }
        let raw = array_at(frame, at).copied().unwrap_or_default();
        u64::from(u32::from_be_bytes(raw) & VLAN_IDENTITY)
    };
    tag(MACS_LEN) << 32 | tag(MACS_LEN + TAG_LEN)
}

/// Identity of a flow. Two frames merge only if theirs are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    pair: AddressPair,
    /// Both ports and the transport protocol.
    ports: u64,
}

impl FlowKey {
    /// Reads the key of a frame whose ports are present.
    #[inline(always)]
    pub(super) fn read(frame: &[u8], layout: Layout) -> Option<Self> {
        let raw = array_at::<4>(frame, usize::from(layout.l4()))?;
        let protocol = u64::from(layout.transport().protocol());
        Some(Self {
            pair: AddressPair::read(frame, layout.network(), layout.l3())?,
            ports: u64::from(u32::from_le_bytes(*raw)) | protocol << 32,
        })
    }

    /// Whether the flow runs between these hosts in this direction.
    pub(super) fn is_between(&self, pair: &AddressPair) -> bool {
        self.pair == *pair
    }

    /// Hashes the key; equal keys have equal hashes on every machine.
    #[inline(always)]
    pub(super) const fn hash(&self) -> u64 {
        let hash = self.pair.hash_onto(self.ports.rotate_left(24));
        // The highest bits of a product depend on all bits; they go where the bucket is read.
        hash.wrapping_mul(SPREAD).rotate_left(8)
    }
}

/// Bits of the golden ratio's fractional part.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bits of the fractional part of pi: arbitrary, without pattern.
const SALT: [u64; 4] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
];

/// Multiplies to 128 bits and folds the halves, so that every bit of the input counts.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves are taken on purpose"
    )]
    {
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::wire::layout;
    use crate::wire::sample::Sample;

    fn key(sample: &Sample) -> FlowKey {
        let frame = sample.bytes();
        FlowKey::read(&frame, layout::parse(&frame).unwrap()).unwrap()
    }

    fn changed(sample: &Sample, change: impl FnOnce(&mut Sample)) -> FlowKey {
        let mut sample = sample.clone();
        change(&mut sample);
        key(&sample)
    }

    #[test]
    fn f05_what_is_part_of_the_key_and_what_is_not() {
        for sample in [Sample::tcp4(), Sample::tcp6()] {
            let same = key(&sample);
            assert_ne!(same, changed(&sample, |s| s.host = 9));
            assert_ne!(same, changed(&sample, |s| s.source_port = 9));
            assert_ne!(same, changed(&sample, |s| s.destination_port = 9));
            assert_ne!(same, changed(&sample, |s| s.tags = vec![(0x8100, 0)]));
            assert_eq!(same, changed(&sample, |s| s.macs[0] = 4));
            assert_eq!(same, changed(&sample, |s| s.flow_label = 4));
            assert_eq!(same, changed(&sample, |s| s.tos = 4));
            assert_eq!(same, changed(&sample, |s| s.seq = 4));
        }
        let as_udp = |s: &mut Sample| s.transport = crate::wire::Transport::Udp;
        assert_ne!(key(&Sample::tcp4()), changed(&Sample::tcp4(), as_udp));
    }

    #[test]
    fn f05_versions_are_told_apart_even_if_addresses_look_alike() {
        let v4 = Sample::tcp4().bytes();
        // Source address as both of the other frame, destination unspecified.
        let mut v6 = Sample::tcp6().bytes();
        v6[22..54].fill(0);
        v6[22..30].copy_from_slice(&v4[26..34]);
        let pair = |frame: &[u8], network| AddressPair::read(frame, network, 14).unwrap();
        assert_ne!(pair(&v4, Network::Ipv4), pair(&v6, Network::Ipv6));
    }

    #[test]
    fn f05_address_pairs_that_differ_anywhere_are_not_equal() {
        let pair = |[a, b, c, d, link]: [u64; 5]| AddressPair {
            addresses: [a, b, c, d],
            link,
        };
        // One difference, or the same one at two places.
        for (first, second) in (0..5).flat_map(|first| (0..5).map(move |second| (first, second))) {
            for bit in 0..64 {
                let mut words = [0x0123_4567_89ab_cdef; 5];
                words[first] ^= 1 << bit;
                if second != first {
                    words[second] ^= 1 << bit;
                }
                assert_ne!(pair(words), pair([0x0123_4567_89ab_cdef; 5]));
            }
        }
    }

    #[test]
    fn f08_tags_are_told_apart_by_identity_but_not_by_priority() {
        let tagged = |tags: &[(u16, u16)]| changed(&Sample::tcp4(), |s| s.tags = tags.to_vec());
        let all = [
            tagged(&[]),
            tagged(&[(0x8100, 0)]),
            tagged(&[(0x8100, 10)]),
            tagged(&[(0x8100, 20)]),
            tagged(&[(0x88a8, 10)]),
            tagged(&[(0x88a8, 10), (0x8100, 20)]),
            tagged(&[(0x88a8, 10), (0x8100, 21)]),
            tagged(&[(0x8100, 20), (0x88a8, 10)]),
        ];
        for (at, key) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == key), Some(at));
        }
        assert_eq!(tagged(&[(0x8100, 0xf00a)]), tagged(&[(0x8100, 10)]));
    }

    #[test]
    fn every_bit_of_a_key_counts_for_its_hash() {
        let hash = |[a, b, c, d, ports, link]: [u64; 6]| {
            let addresses = [a, b, c, d];
            let pair = AddressPair { addresses, link };
            FlowKey { pair, ports }.hash()
        };
        // Words of which many are zero, as in addresses.
        let digit = |number: u64, at: usize| number >> (2 * at) & 3;
        let few = (0..1 << 10).map(|number| hash(core::array::from_fn(|at| digit(number, at))));
        assert_eq!(few.collect::<BTreeSet<_>>().len(), 1 << 10);
        let base = [0x0123_4567_89ab_cdef; 6];
        for bit in 0..6 * 64 {
            let mut words = base;
            words[bit / 64] ^= 1 << (bit % 64);
            assert_ne!(hash(words), hash(base), "{bit}");
        }
    }

    #[test]
    fn neighbouring_flows_spread_over_buckets_and_tags() {
        for sample in [Sample::tcp4(), Sample::tcp6()] {
            let hashes: Vec<_> = (0..1024)
                .map(|port| changed(&sample, |s| s.source_port = 32768 + port).hash())
                .collect();
            let tags: BTreeSet<_> = hashes.iter().map(|hash| hash >> 32).collect();
            assert!(tags.len() > 1020, "{} tags", tags.len());
            for bucket in 0..8 {
                let share = hashes.iter().filter(|hash| *hash % 8 == bucket).count();
                assert!((96..=160).contains(&share), "{share} of 1024 in one bucket");
            }
        }
    }

    #[test]
    fn neighbouring_hosts_spread_over_buckets() {
        let layout = |sample: &Sample| layout::parse(&sample.bytes()).unwrap();
        for (sample, last_bytes) in [(Sample::tcp4(), [29, 33]), (Sample::tcp6(), [37, 53])] {
            for (at, step) in last_bytes.into_iter().flat_map(|at| [(at, 1), (at, 8)]) {
                let mut seen = [0; 8];
                for host in (0..=255).step_by(step) {
                    let mut frame = sample.bytes();
                    frame[at] = host;
                    let key = FlowKey::read(&frame, layout(&sample)).unwrap();
                    seen[usize::try_from(key.hash() % 8).unwrap()] += 1;
                }
                let most = 256 / step / 2;
                assert!(seen.iter().all(|share| *share <= most), "{step}: {seen:?}");
            }
        }
    }
}
