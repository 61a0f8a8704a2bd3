//! From a set-up to a running ring.

use std::rc::Rc;

use super::handle::{PairSetup, RingSetup};
use super::signal::report_broken;
use crate::device::{Features, RingConfig, RingFault, SplitRing};
use crate::sys::GuestMap;
use crate::uplink::Offloads;

/// What all rings of a set-up have in common.
pub(super) struct Start {
    features: Features,
    map: Option<Rc<GuestMap>>,
}

impl Start {
    pub(super) fn new(setup: &PairSetup) -> Self {
        let map = |memory| Rc::new(GuestMap::new(memory));
        Self {
            features: Features::from_bits(setup.features),
            map: setup.memory.clone().map(map),
        }
    }

    /// Starts a ring. `old` is the ring of the former set-up and `position` where it stood.
    ///
    /// # Errors
    /// The ring cannot be served, which the front-end was told.
    pub(super) fn ring(
        &self,
        ring: Option<&RingSetup>,
        old: Option<&RingSetup>,
        position: Option<u16>,
    ) -> Result<Option<SplitRing>, RingFault> {
        let (Some(ring), Some(map)) = (ring, self.map.as_ref()) else {
            return Ok(None);
        };
        let next_avail = resume_at(ring, old, position);
        let config = self.config(ring, next_avail);
        SplitRing::new(config, Rc::clone(map))
            .map(Some)
            .inspect_err(|_| report_broken(ring))
    }

    fn config(&self, ring: &RingSetup, next_avail: u16) -> RingConfig {
        RingConfig {
            size: ring.size,
            desc: ring.desc_table,
            avail: ring.avail_ring,
            used: ring.used_ring,
            next_avail,
            event_idx: self.features.contains(Features::EVENT_IDX),
            indirect: self.features.contains(Features::INDIRECT_DESC),
        }
    }
}

/// A ring that goes on keeps its position; one that was started anew says where it starts.
fn resume_at(ring: &RingSetup, old: Option<&RingSetup>, position: Option<u16>) -> u16 {
    match (old, position) {
        (Some(old), Some(position)) if old.epoch == ring.epoch => position,
        _ => ring.next_avail,
    }
}

/// What the guest accepts, as the uplink wants to hear it (rule TX-6).
pub(super) fn offloads(features: Features) -> Offloads {
    let guest = features.guest_offloads();
    Offloads {
        csum: guest.csum,
        tso4: guest.tso4,
        tso6: guest.tso6,
        ecn: guest.ecn,
        uso: guest.uso,
    }
}
