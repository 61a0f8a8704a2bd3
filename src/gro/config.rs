//! What the engine may merge and how far: kernel names, defaults and units.

use crate::wire::{Network, Transport};

/// Tunables of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroConfig {
    /// Whether anything is merged at all. Default on.
    pub enabled: bool,
    /// Segments in the receive list that cause it to be handed over, 1 to 1024. Default 8.
    ///
    /// Source: `gro_normal_batch`, `net/core/hotdata.c`.
    pub gro_normal_batch: u32,
    /// Largest packet in bytes behind the Ethernet header, 1500 to 65535. Default 65535.
    ///
    /// Source: `gro_max_size`, but inclusive.
    pub gro_max_size: u32,
    /// Most segments in one TCP packet, 2 to 65535. Default 65535.
    pub gro_max_segs: u32,
    /// Whether datagrams are merged for guests that take them. Default on.
    pub udp_gro: bool,
    /// Destination ports whose datagrams are never merged. Default 4789, 8472 and 6081, those of
    /// VXLAN and GENEVE.
    pub udp_exclude_ports: PortSet,
    /// Which hash picks the bucket.
    pub hash_mode: HashMode,
}

/// Which hash picks the bucket of a flow (rule ENG-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashMode {
    /// A hash of the flow key.
    #[default]
    Flow,
    /// Bucket 0 for all; for tests.
    Zero,
    /// The low bits of `RxMeta::merge_mark`, which then is no merge condition; for tests.
    Given,
}

impl Default for GroConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            gro_normal_batch: 8,
            gro_max_size: 65535,
            gro_max_segs: 65535,
            udp_gro: true,
            udp_exclude_ports: PortSet::TUNNELS,
            hash_mode: HashMode::Flow,
        }
    }
}

impl GroConfig {
    /// The size limit, in bytes behind the Ethernet header; never above 65535 (LIM-1).
    pub(super) const fn size_limit(&self) -> usize {
        if self.gro_max_size > MAX_SIZE {
            MAX_SIZE as usize
        } else {
            self.gro_max_size as usize
        }
    }
}

/// Largest packet that length fields can say, in bytes behind the Ethernet header.
const MAX_SIZE: u32 = 65535;

/// A small set of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet {
    ports: [u16; Self::CAPACITY],
    len: usize,
}

impl PortSet {
    /// Most ports in a set.
    pub const CAPACITY: usize = 16;
    /// No port.
    pub const EMPTY: Self = Self {
        ports: [0; Self::CAPACITY],
        len: 0,
    };
    /// Ports of VXLAN (4789, and 8472 from before its standard) and GENEVE (6081).
    pub const TUNNELS: Self = {
        let mut set = Self::EMPTY;
        set.ports[0] = 4789;
        set.ports[1] = 8472;
        set.ports[2] = 6081;
        set.len = 3;
        set
    };

    /// Makes a set; `None` if there are more than [`Self::CAPACITY`].
    #[must_use]
    pub fn new(ports: &[u16]) -> Option<Self> {
        let mut set = Self::EMPTY;
        set.ports.get_mut(..ports.len())?.copy_from_slice(ports);
        set.len = ports.len();
        Some(set)
    }

    /// The ports.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        self.ports.get(..self.len).unwrap_or_default()
    }

    /// Whether a port is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, port: u16) -> bool {
        self.as_slice().contains(&port)
    }
}

/// What this guest accepts, from its acked features (rules FEAT-1, FEAT-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one flag for each feature bit of the device"
)]
pub struct GroTypes {
    /// `VIRTIO_NET_F_GUEST_CSUM`: partial and verified checksums may be marked.
    pub csum: bool,
    /// `VIRTIO_NET_F_GUEST_TSO4`.
    pub tcp4: bool,
    /// `VIRTIO_NET_F_GUEST_TSO6`.
    pub tcp6: bool,
    /// `VIRTIO_NET_F_GUEST_ECN`.
    pub ecn: bool,
    /// `VIRTIO_NET_F_GUEST_USO4`.
    pub udp4: bool,
    /// `VIRTIO_NET_F_GUEST_USO6`.
    pub udp6: bool,
}

impl GroTypes {
    /// Whether merged packets of this kind may be made (FEAT-1, FEAT-2).
    pub(super) const fn accepts(self, network: Network, transport: Transport) -> bool {
        self.csum
            && match (transport, network) {
                (Transport::Tcp, Network::Ipv4) => self.tcp4,
                (Transport::Tcp, Network::Ipv6) => self.tcp6,
                (Transport::Udp, Network::Ipv4) => self.udp4,
                (Transport::Udp, Network::Ipv6) => self.udp6,
            }
    }
}

/// The kinds of frames that may merge: what the guest accepts and the configuration allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) fn new(config: &GroConfig, types: GroTypes) -> Self {
        let mut kinds = Self::default();
        for network in [Network::Ipv4, Network::Ipv6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                let is_switched_on = match transport {
                    Transport::Tcp => config.enabled,
                    Transport::Udp => config.enabled && config.udp_gro,
                };
                if is_switched_on && types.accepts(network, transport) {
                    kinds.0 |= Self::bit(network, transport);
                }
            }
        }
        kinds
    }

    #[inline]
    pub(super) const fn any(self) -> bool {
        self.0 != 0
    }

    #[inline]
    pub(super) const fn contains(self, network: Network, transport: Transport) -> bool {
        self.0 & Self::bit(network, transport) != 0
    }

    #[inline]
    const fn bit(network: Network, transport: Transport) -> u8 {
        1 << (network as u8 * 2 + transport as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_set_holds_what_it_was_made_of() {
        let set = PortSet::new(&[0, 53]).unwrap();
        assert!(set.contains(0) && set.contains(53) && !set.contains(4789));
        assert!(!PortSet::EMPTY.contains(0));
        assert!(PortSet::TUNNELS.contains(6081));
        assert_eq!(PortSet::new(&[1; PortSet::CAPACITY + 1]), None);
    }

    #[test]
    fn nothing_is_merged_without_guest_csum() {
        let mut types = GroTypes {
            tcp4: true,
            udp6: true,
            ..GroTypes::default()
        };
        let config = GroConfig::default();
        assert!(!Kinds::new(&config, types).any());
        types.csum = true;
        let kinds = Kinds::new(&config, types);
        assert!(kinds.contains(Network::Ipv4, Transport::Tcp));
        assert!(kinds.contains(Network::Ipv6, Transport::Udp));
        assert!(!kinds.contains(Network::Ipv6, Transport::Tcp));
        assert!(!kinds.contains(Network::Ipv4, Transport::Udp));
    }
}
