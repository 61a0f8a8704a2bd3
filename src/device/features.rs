//! The device's feature bits: what is offered, and what an acked set means.
//!
//! Offered is only what is coded. Never offered, with the reason:
//! - `GUEST_UFO`, `HOST_UFO`: IP fragments instead of datagrams (rules OUT-8, TX-9).
//! - `CTRL_GUEST_OFFLOADS`, `NOTF_COAL`, `VQ_NOTF_COAL`: their commands end in the front-end and
//!   do not reach us (rule FEAT-5).
//! - `HASH_REPORT`, `RSC_EXT`, UDP tunnel offloads: need another header.
//! - `RING_PACKED`, `ACCESS_PLATFORM`, `RING_RESET`: not coded.
//!
//! Source: virtio 1.2, 5.1.3 "Feature bits", 6 "Reserved Feature Bits".

use std::ops::BitOr;

use crate::gro::GroTypes;
use crate::wire::vnet_hdr::VNET_HDR_LEN;

/// Bytes of the legacy header, which has no `num_buffers`.
const LEGACY_HDR_LEN: usize = 10;

/// A set of feature bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

impl Features {
    /// The device takes frames with partial checksums.
    pub const CSUM: Self = Self::bit(0);
    /// The guest takes frames with partial or verified checksums.
    pub const GUEST_CSUM: Self = Self::bit(1);
    /// The configuration space holds the largest MTU.
    pub const MTU: Self = Self::bit(3);
    /// The configuration space holds the MAC address.
    pub const MAC: Self = Self::bit(5);
    /// The guest takes TCP over IPv4 super-frames.
    pub const GUEST_TSO4: Self = Self::bit(7);
    /// The guest takes TCP over IPv6 super-frames.
    pub const GUEST_TSO6: Self = Self::bit(8);
    /// The guest takes TCP super-frames with CWR on the first segment.
    pub const GUEST_ECN: Self = Self::bit(9);
    /// The device takes TCP over IPv4 super-frames.
    pub const HOST_TSO4: Self = Self::bit(11);
    /// The device takes TCP over IPv6 super-frames.
    pub const HOST_TSO6: Self = Self::bit(12);
    /// The device takes TCP super-frames with CWR on the first segment.
    pub const HOST_ECN: Self = Self::bit(13);
    /// A received packet may be spread over several buffers.
    pub const MRG_RXBUF: Self = Self::bit(15);
    /// The configuration space holds the link status.
    pub const STATUS: Self = Self::bit(16);
    /// Several queue pairs.
    pub const MQ: Self = Self::bit(22);
    /// Chains may have an indirect table.
    pub const INDIRECT_DESC: Self = Self::bit(28);
    /// Both sides say at which index they want to be notified.
    pub const EVENT_IDX: Self = Self::bit(29);
    /// The modern device: little endian, header of 12 bytes.
    pub const VERSION_1: Self = Self::bit(32);
    /// Buffers are used in the order in which they were made available.
    pub const IN_ORDER: Self = Self::bit(35);
    /// The guest takes UDP over IPv4 super-frames.
    pub const GUEST_USO4: Self = Self::bit(54);
    /// The guest takes UDP over IPv6 super-frames.
    pub const GUEST_USO6: Self = Self::bit(55);
    /// The device takes UDP super-frames over either IP version.
    pub const HOST_USO: Self = Self::bit(56);

    const fn bit(bit: u32) -> Self {
        Self(1 << bit)
    }

    /// A set from its bits as they stand in a message, known to us or not.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits as they stand in a message.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of `other` is in the set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// `other` if `condition` holds, else nothing.
    const fn when(condition: bool, other: Self) -> Self {
        if condition { other } else { Self(0) }
    }

    /// Bytes of the virtio-net header on both queues of this session.
    #[must_use]
    pub const fn hdr_len(self) -> usize {
        if self.contains(Self::VERSION_1) || self.contains(Self::MRG_RXBUF) {
            VNET_HDR_LEN
        } else {
            LEGACY_HDR_LEN
        }
    }

    /// What may be merged for a guest that acked this set (rules FEAT-1, FEAT-2).
    #[must_use]
    pub const fn gro_types(self) -> GroTypes {
        let guest = self.guest_offloads();
        GroTypes {
            csum: guest.csum,
            tcp4: guest.tso4,
            tcp6: guest.tso6,
            ecn: guest.ecn,
            udp4: self.contains(Self::GUEST_CSUM) && self.contains(Self::GUEST_USO4),
            udp6: self.contains(Self::GUEST_CSUM) && self.contains(Self::GUEST_USO6),
        }
    }

    /// What a guest that acked this set accepts on receive (rule TX-6). Everything needs
    /// `GUEST_CSUM`; UDP segmentation counts for both IP versions or not at all.
    #[must_use]
    pub const fn guest_offloads(self) -> Offloads {
        let csum = self.contains(Self::GUEST_CSUM);
        let tso4 = csum && self.contains(Self::GUEST_TSO4);
        let tso6 = csum && self.contains(Self::GUEST_TSO6);
        Offloads {
            csum,
            tso4,
            tso6,
            ecn: (tso4 || tso6) && self.contains(Self::GUEST_ECN),
            uso: csum && self.contains(Self::GUEST_USO4) && self.contains(Self::GUEST_USO6),
        }
    }

    /// What a guest that acked this set may ask of us on transmit (rule TX-5).
    #[must_use]
    pub const fn host_offloads(self) -> Offloads {
        Offloads {
            csum: self.contains(Self::CSUM),
            tso4: self.contains(Self::HOST_TSO4),
            tso6: self.contains(Self::HOST_TSO6),
            ecn: self.contains(Self::HOST_ECN),
            uso: self.contains(Self::HOST_USO),
        }
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Offloads of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one flag for each offload that is negotiated by itself"
)]
pub struct Offloads {
    /// Partial checksums.
    pub csum: bool,
    /// TCP over IPv4 segmentation.
    pub tso4: bool,
    /// TCP over IPv6 segmentation.
    pub tso6: bool,
    /// Segmentation of frames with CWR.
    pub ecn: bool,
    /// UDP segmentation, both IP versions.
    pub uso: bool,
}

/// What this device can do, from which the offered set follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent abilities of the set-up"
)]
pub struct Offer {
    /// What the uplink, or software in front of it, takes over on transmit.
    pub host: Offloads,
    /// Whether UDP super-frames can be produced.
    pub guest_uso: bool,
    /// Whether more than one queue pair is served.
    pub multiqueue: bool,
    /// Whether an MTU was configured.
    pub mtu: bool,
    /// Whether front-ends read the configuration space from us; else the front-end itself offers
    /// `MAC` and `STATUS`.
    pub config_space: bool,
}

impl Offer {
    /// The features to offer. The vhost-user bit 30 is the business of the protocol side.
    #[must_use]
    pub fn features(&self) -> Features {
        let ring = Features::VERSION_1
            | Features::EVENT_IDX
            | Features::INDIRECT_DESC
            | Features::IN_ORDER;
        let guest = Features::MRG_RXBUF
            | Features::GUEST_CSUM
            | Features::GUEST_TSO4
            | Features::GUEST_TSO6
            | Features::GUEST_ECN
            | Features::when(self.guest_uso, Features::GUEST_USO4 | Features::GUEST_USO6);
        // A guest may only be offered segmentation together with checksums.
        let csum = self.host.csum;
        let tso = self.host.tso4 || self.host.tso6;
        let host = Features::when(csum, Features::CSUM)
            | Features::when(csum && self.host.tso4, Features::HOST_TSO4)
            | Features::when(csum && self.host.tso6, Features::HOST_TSO6)
            | Features::when(csum && tso && self.host.ecn, Features::HOST_ECN)
            | Features::when(csum && self.host.uso, Features::HOST_USO);
        let config = Features::when(self.mtu, Features::MTU)
            | Features::when(self.multiqueue, Features::MQ)
            | Features::when(self.config_space, Features::MAC | Features::STATUS);
        ring | guest | host | config
    }
}

#[cfg(test)]
mod tests {
    use virtio_bindings::{virtio_config, virtio_net, virtio_ring};

    use super::super::rig::all_features;
    use super::*;

    /// Each bit with its number in the kernel's headers.
    const NUMBERS: [(Features, u32); 20] = [
        (Features::CSUM, virtio_net::VIRTIO_NET_F_CSUM),
        (Features::GUEST_CSUM, virtio_net::VIRTIO_NET_F_GUEST_CSUM),
        (Features::MTU, virtio_net::VIRTIO_NET_F_MTU),
        (Features::MAC, virtio_net::VIRTIO_NET_F_MAC),
        (Features::GUEST_TSO4, virtio_net::VIRTIO_NET_F_GUEST_TSO4),
        (Features::GUEST_TSO6, virtio_net::VIRTIO_NET_F_GUEST_TSO6),
        (Features::GUEST_ECN, virtio_net::VIRTIO_NET_F_GUEST_ECN),
        (Features::HOST_TSO4, virtio_net::VIRTIO_NET_F_HOST_TSO4),
        (Features::HOST_TSO6, virtio_net::VIRTIO_NET_F_HOST_TSO6),
        (Features::HOST_ECN, virtio_net::VIRTIO_NET_F_HOST_ECN),
        (Features::MRG_RXBUF, virtio_net::VIRTIO_NET_F_MRG_RXBUF),
        (Features::STATUS, virtio_net::VIRTIO_NET_F_STATUS),
        (Features::MQ, virtio_net::VIRTIO_NET_F_MQ),
        (
            Features::INDIRECT_DESC,
            virtio_ring::VIRTIO_RING_F_INDIRECT_DESC,
        ),
        (Features::EVENT_IDX, virtio_ring::VIRTIO_RING_F_EVENT_IDX),
        (Features::VERSION_1, virtio_config::VIRTIO_F_VERSION_1),
        (Features::IN_ORDER, virtio_config::VIRTIO_F_IN_ORDER),
        (Features::GUEST_USO4, virtio_net::VIRTIO_NET_F_GUEST_USO4),
        (Features::GUEST_USO6, virtio_net::VIRTIO_NET_F_GUEST_USO6),
        (Features::HOST_USO, virtio_net::VIRTIO_NET_F_HOST_USO),
    ];

    #[test]
    fn numbers_agree_with_the_kernel_headers() {
        for (feature, number) in NUMBERS {
            assert_eq!(feature.bits(), 1 << number);
        }
    }

    /// Commands of the control queue end in the front-end and never come here. What they would
    /// switch off would go on being used.
    #[test]
    fn f34_what_could_be_switched_off_behind_our_back_is_not_offered() {
        for number in [
            virtio_net::VIRTIO_NET_F_CTRL_GUEST_OFFLOADS,
            virtio_net::VIRTIO_NET_F_NOTF_COAL,
            virtio_net::VIRTIO_NET_F_VQ_NOTF_COAL,
        ] {
            assert_eq!(all_features().bits() & 1 << number, 0, "bit {number}");
        }
    }

    #[test]
    fn f35_a_device_that_can_do_all_offers_exactly_the_documented_bits() {
        let documented = NUMBERS
            .iter()
            .fold(0, |bits, (feature, _)| bits | feature.bits());
        assert_eq!(all_features().bits(), documented);
    }

    #[test]
    fn f35_a_device_that_can_do_nothing_on_transmit_offers_only_ring_and_receive() {
        let least = Offer::default().features();
        let expected = Features::VERSION_1
            | Features::EVENT_IDX
            | Features::INDIRECT_DESC
            | Features::IN_ORDER
            | Features::MRG_RXBUF
            | Features::GUEST_CSUM
            | Features::GUEST_TSO4
            | Features::GUEST_TSO6
            | Features::GUEST_ECN;
        assert_eq!(least, expected);
    }

    #[test]
    fn segmentation_on_transmit_is_never_offered_without_checksums() {
        let host = Offloads {
            csum: false,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        };
        let offer = Offer {
            host,
            ..Offer::default()
        };
        assert_eq!(offer.features().host_offloads(), Offloads::default());
    }

    #[test]
    fn f33_every_subset_of_acked_bits_allows_only_what_it_holds() {
        let bits = [
            Features::GUEST_CSUM,
            Features::GUEST_TSO4,
            Features::GUEST_TSO6,
            Features::GUEST_ECN,
            Features::GUEST_USO4,
            Features::GUEST_USO6,
        ];
        for subset in 0..1 << bits.len() {
            let has = |nth: usize| subset & (1 << nth) != 0;
            let acked = (0..bits.len())
                .filter(|&nth| has(nth))
                .fold(Features::default(), |acked, nth| acked | bits[nth]);
            let csum = has(0);
            let expected = GroTypes {
                csum,
                tcp4: csum && has(1),
                tcp6: csum && has(2),
                ecn: csum && (has(1) || has(2)) && has(3),
                udp4: csum && has(4),
                udp6: csum && has(5),
            };
            assert_eq!(acked.gro_types(), expected);
            let offloads = Offloads {
                csum,
                tso4: expected.tcp4,
                tso6: expected.tcp6,
                ecn: expected.ecn,
                uso: expected.udp4 && expected.udp6,
            };
            assert_eq!(acked.guest_offloads(), offloads);
        }
    }

    #[test]
    fn f31_the_header_is_short_only_for_a_legacy_guest_without_mergeable_buffers() {
        assert_eq!(Features::default().hdr_len(), 10);
        assert_eq!(Features::MRG_RXBUF.hdr_len(), 12);
        assert_eq!(Features::VERSION_1.hdr_len(), 12);
        assert_eq!((Features::VERSION_1 | Features::MRG_RXBUF).hdr_len(), 12);
    }
}
