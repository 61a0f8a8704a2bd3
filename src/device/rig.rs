//! Puts the device's side on a driver model, for the tests of this module.

use std::rc::Rc;
use std::sync::Arc;

use super::driver_model::{DESC, Driver};
use super::{Features, RingConfig, RxQueue, SplitRing, TxQueue};
use crate::sys::GuestMap;

/// Everything this device can offer.
pub(super) fn all_features() -> Features {
    let host = super::Offloads {
        csum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
    };
    let offer = super::Offer {
        host,
        guest_uso: true,
        multiqueue: true,
        mtu: true,
        config_space: true,
    };
    offer.features()
}

/// The ring that `driver` set up before it posted anything.
pub(super) fn config(driver: &Driver, features: Features) -> RingConfig {
    RingConfig {
        size: driver.size,
        desc: DESC,
        avail: driver.avail(),
        used: driver.used(),
        next_avail: driver.used_idx(),
        event_idx: features.contains(Features::EVENT_IDX),
        indirect: features.contains(Features::INDIRECT_DESC),
    }
}

pub(super) fn map(driver: &Driver) -> Rc<GuestMap> {
    Rc::new(GuestMap::new(Arc::clone(&driver.memory)))
}

pub(super) fn ring(driver: &Driver, features: Features) -> SplitRing {
    SplitRing::new(config(driver, features), map(driver)).unwrap()
}

pub(super) fn rx(driver: &Driver, features: Features) -> RxQueue {
    RxQueue::new(ring(driver, features), features)
}

pub(super) fn tx(driver: &Driver, features: Features) -> TxQueue {
    TxQueue::new(ring(driver, features), features, 7)
}
