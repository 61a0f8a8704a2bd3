//! `struct virtio_net_hdr_v1`: what travels in front of every frame on a virtqueue and on a tap.
//!
//! Encoded and decoded field by field, little endian, so no byte order or padding of ours leaks.
//! Source: virtio 1.2, 5.1.6 "Device Operation".

/// Size of the header on a ring with `VIRTIO_F_VERSION_1`, in bytes.
pub const VNET_HDR_LEN: usize = 12;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum from `csum_start` on is still to be completed.
pub const F_NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`: the checksum was verified.
pub const F_DATA_VALID: u8 = 2;
/// `VIRTIO_NET_HDR_F_UDP_TUNNEL_CSUM`: so is that of the outer header of a tunnel. Never offered.
pub const F_UDP_TUNNEL_CSUM: u8 = 8;
/// `VIRTIO_NET_HDR_GSO_NONE`: not a GSO frame.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP` (UFO), never offered and never produced.
pub const GSO_UDP: u8 = 3;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4` (USO).
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: bit beside the type, CWR is set on the first segment.
pub const GSO_ECN: u8 = 0x80;

/// The virtio-net header, by field.
///
/// # Units
/// All lengths and offsets are bytes from the start of the Ethernet frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHdr {
    /// `F_NEEDS_CSUM`, `F_DATA_VALID` or 0.
    pub flags: u8,
    /// One of the `GSO_*` types, with `GSO_ECN` beside it where allowed.
    pub gso_type: u8,
    /// Length of all headers through L4; 0 where unused.
    pub hdr_len: u16,
    /// Payload bytes of every segment but the last.
    pub gso_size: u16,
    /// Where checksumming starts.
    pub csum_start: u16,
    /// Where, behind `csum_start`, the checksum is stored.
    pub csum_offset: u16,
    /// Receive buffers used for the frame; written when the ring is filled.
    pub num_buffers: u16,
}

impl VnetHdr {
    /// A frame of which nothing is said.
    pub const PLAIN: Self = Self {
        flags: 0,
        gso_type: GSO_NONE,
        hdr_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
        num_buffers: 0,
    };

    /// Reads the fields from their wire form.
    #[must_use]
    pub fn decode(bytes: &[u8; VNET_HDR_LEN]) -> Self {
        let le = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: le(2),
            gso_size: le(4),
            csum_start: le(6),
            csum_offset: le(8),
            num_buffers: le(10),
        }
    }

    /// Writes the fields in their wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; VNET_HDR_LEN] {
        let mut bytes = [0; VNET_HDR_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.num_buffers.to_le_bytes());
        bytes
    }

    /// Whether the frame carries a segmentation type.
    #[must_use]
    pub const fn is_gso(&self) -> bool {
        self.gso_type & !GSO_ECN != GSO_NONE
    }
}

/// What a host uplink says about one received frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMeta {
    /// Header from the host; all zero where the uplink has none (checksums unknown).
    pub vnet: VnetHdr,
    /// Everything that must be equal for two frames to merge (rule META-1): source port, mark.
    /// Timestamps and counters never belong here.
    pub merge_mark: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_in_spec_order() {
        let hdr = VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 1,
        };
        // Worked value of rules section 7.3.
        assert_eq!(
            hdr.encode(),
            [1, 1, 0x42, 0, 0xa8, 5, 0x22, 0, 0x10, 0, 1, 0]
        );
        assert_eq!(VnetHdr::decode(&hdr.encode()), hdr);
    }

    #[test]
    #[cfg(feature = "daemon")]
    fn constants_agree_with_the_kernel_headers() {
        use virtio_bindings::virtio_net as kernel;
        assert_eq!(u32::from(F_NEEDS_CSUM), kernel::VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_eq!(u32::from(F_DATA_VALID), kernel::VIRTIO_NET_HDR_F_DATA_VALID);
        assert_eq!(u32::from(GSO_TCPV4), kernel::VIRTIO_NET_HDR_GSO_TCPV4);
        assert_eq!(u32::from(GSO_UDP), kernel::VIRTIO_NET_HDR_GSO_UDP);
        assert_eq!(u32::from(GSO_TCPV6), kernel::VIRTIO_NET_HDR_GSO_TCPV6);
        assert_eq!(u32::from(GSO_UDP_L4), kernel::VIRTIO_NET_HDR_GSO_UDP_L4);
        assert_eq!(u32::from(GSO_ECN), kernel::VIRTIO_NET_HDR_GSO_ECN);
    }
}
