//! The device as the framework asks for it.

use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::VhostUserBackend;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use super::pairs::Pairs;
use super::relay::QueueNumUnit;
use super::vring::Vring;

/// What is offered to every front-end.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Features of the device, as in the virtio specification. The bit for protocol features is
    /// added to them.
    pub features: u64,
    /// Most entries of a ring, a power of two up to 32768.
    pub ring_size_max: u16,
    /// What the answer to `GET_QUEUE_NUM` counts.
    pub queue_num_unit: QueueNumUnit,
    /// The configuration space, if front-ends may read it from here. QEMU never does for a
    /// network device and warns when it is offered.
    pub config_space: Option<Vec<u8>>,
}

impl Offer {
    pub(super) fn virtio_features(&self) -> u64 {
        self.features | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// A fixed list: what the relay and the framework together do right.
    pub(super) fn protocol_features(&self) -> VhostUserProtocolFeatures {
        use VhostUserProtocolFeatures as Feature;

        let mut features = Feature::MQ
            | Feature::RARP
            | Feature::REPLY_ACK
            | Feature::MTU
            | Feature::RESET_DEVICE
            | Feature::CONFIGURE_MEM_SLOTS
            | Feature::STATUS;
        if self.config_space.is_some() {
            features |= Feature::CONFIG;
        }
        features
    }
}

/// The device of one session.
pub(super) struct Device {
    offer: Arc<Offer>,
    pairs: Arc<Pairs>,
}

impl Device {
    pub(super) fn new(offer: Arc<Offer>, pairs: Arc<Pairs>) -> Self {
        Self { offer, pairs }
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        self.pairs.ring_count()
    }

    fn max_queue_size(&self) -> usize {
        self.offer.ring_size_max.into()
    }

    fn features(&self) -> u64 {
        self.offer.virtio_features()
    }

    fn acked_features(&self, features: u64) {
        let transport = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.pairs.set_features(features & !transport);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        self.offer.protocol_features()
    }

    fn reset_device(&self) {
        self.pairs.reset();
    }

    /// The feature is looked up among the acked ones.
    fn set_event_idx(&self, _is_enabled: bool) {}

    /// Beyond the end nothing is returned, which the front-end is told as an error.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let space = self.offer.config_space.as_deref().unwrap_or_default();
        let (offset, size) = (offset as usize, size as usize);
        let end = offset.saturating_add(size);
        space
            .get(offset..end)
            .map(<[u8]>::to_vec)
            .unwrap_or_default()
    }

    fn update_memory(&self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        self.pairs.set_memory(memory.memory().into_inner());
        Ok(())
    }

    /// No worker of the framework: data threads of ours serve the rings.
    fn queues_per_thread(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Called by workers of the framework only.
    fn handle_event(
        &self,
        _event: u16,
        _set: EventSet,
        _vrings: &[Vring],
        _thread: usize,
    ) -> io::Result<()> {
        Ok(())
    }
}
