//! The device configuration space.
//!
//! Source: virtio 1.2, 5.1.4 "Device configuration layout", `struct virtio_net_config`.

/// `VIRTIO_NET_S_LINK_UP`.
const LINK_UP: u16 = 1;

/// What the guest can read about its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigSpace {
    /// MAC address of the guest's side.
    pub mac: [u8; 6],
    /// Whether the link is up.
    pub is_link_up: bool,
    /// Queue pairs that are served, at least 1.
    pub max_queue_pairs: u16,
    /// Largest MTU in bytes, 0 where none was configured.
    pub mtu: u16,
}

impl ConfigSpace {
    /// Bytes of the space, up to and including the fields for hash reports.
    pub const LEN: usize = 24;

    /// The whole space in its wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let status = if self.is_link_up { LINK_UP } else { 0 };
        let mut bytes = [0; Self::LEN];
        bytes[0..6].copy_from_slice(&self.mac);
        bytes[6..8].copy_from_slice(&status.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.max_queue_pairs.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.mtu.to_le_bytes());
        // Speed and duplex are not known; both have all bits set then.
        bytes[12..17].fill(0xff);
        bytes
    }

    /// `len` bytes from `offset` on, `None` if that is not all inside.
    #[must_use]
    pub fn read(&self, offset: u32, len: u32) -> Option<Vec<u8>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        self.encode().get(start..end).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f55_any_range_inside_reads_and_none_beyond() {
        let config = ConfigSpace {
            mac: [2, 3, 4, 5, 6, 7],
            is_link_up: true,
            max_queue_pairs: 0x0102,
            mtu: 9000,
        };
        let reference: [u8; ConfigSpace::LEN] = [
            2, 3, 4, 5, 6, 7, 1, 0, 2, 1, 0x28, 0x23, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0,
            0, 0,
        ];
        for offset in 0..=60_u32 {
            for len in 0..=60_u32 {
                let expected = reference.get(offset as usize..(offset + len) as usize);
                assert_eq!(config.read(offset, len).as_deref(), expected);
            }
        }
        assert_eq!(config.read(u32::MAX, u32::MAX), None);
    }

    #[test]
    fn a_link_that_is_down_has_no_status_bit() {
        assert_eq!(ConfigSpace::default().encode()[6..8], [0, 0]);
    }
}
