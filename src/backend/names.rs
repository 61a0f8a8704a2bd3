//! Names of feature bits, for the log.

/// Bits that a network device or its transport can have.
/// Source: virtio 1.2, 5.1.3 and 6; virtio 1.3 for 54 to 56.
const NAMES: [(u32, &str); 37] = [
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (2, "CTRL_GUEST_OFFLOADS"),
    (3, "MTU"),
    (5, "MAC"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (9, "GUEST_ECN"),
    (10, "GUEST_UFO"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
    (13, "HOST_ECN"),
    (14, "HOST_UFO"),
    (15, "MRG_RXBUF"),
    (16, "STATUS"),
    (17, "CTRL_VQ"),
    (18, "CTRL_RX"),
    (19, "CTRL_VLAN"),
    (21, "GUEST_ANNOUNCE"),
    (22, "MQ"),
    (23, "CTRL_MAC_ADDR"),
    (26, "LOG_ALL"),
    (27, "ANY_LAYOUT"),
    (28, "INDIRECT_DESC"),
    (29, "EVENT_IDX"),
    (30, "PROTOCOL_FEATURES"),
    (32, "VERSION_1"),
    (33, "ACCESS_PLATFORM"),
    (34, "RING_PACKED"),
    (35, "IN_ORDER"),
    (36, "ORDER_PLATFORM"),
    (40, "RING_RESET"),
    (54, "GUEST_USO4"),
    (55, "GUEST_USO6"),
    (56, "HOST_USO"),
    (57, "HASH_REPORT"),
    (60, "RSS"),
];

/// The names of a set of bits; a bit without one is given by its number.
pub(super) fn feature_names(bits: u64) -> String {
    let name = |bit: u32| {
        let known = NAMES.iter().find(|(number, _)| *number == bit);
        known.map_or_else(|| format!("bit {bit}"), |(_, name)| (*name).to_owned())
    };
    let names: Vec<String> = (0..64)
        .filter(|bit| bits >> bit & 1 != 0)
        .map(name)
        .collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_the_names_of_the_specification() {
        use virtio_bindings::virtio_net as net;

        assert_eq!(feature_names(1 << net::VIRTIO_NET_F_MRG_RXBUF), "MRG_RXBUF");
        assert_eq!(
            feature_names(1 << net::VIRTIO_NET_F_GUEST_USO6),
            "GUEST_USO6"
        );
        assert_eq!(
            feature_names(1 << net::VIRTIO_NET_F_CTRL_MAC_ADDR),
            "CTRL_MAC_ADDR"
        );
        assert_eq!(
            feature_names(1 << 32 | 1 << 63 | 1),
            "CSUM VERSION_1 bit 63"
        );
        assert_eq!(feature_names(0), "none");
    }
}
