//! What the engine may merge and how far: kernel names, defaults and units.

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
            hash_mode: HashMode::Flow,
        }
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
