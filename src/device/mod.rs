//! virtio-net as the guest sees it: rings, descriptor chains, features, configuration space.
//!
//! A [`SplitRing`] moves positions; [`chain`] turns a head into guest ranges; [`RxQueue`] writes
//! packets into the guest's buffers and [`TxQueue`] reads frames out of them. Nothing here knows
//! where frames come from or go to, waits, logs or owns a descriptor: the data thread calls,
//! publishes once per batch and then signals if [`SplitRing::needs_notification`] says so.
//!
//! Buffers are used in the order in which they were made available, always. That is what
//! `VIRTIO_F_IN_ORDER` promises, and it lets a ring be resumed by one number.
//!
//! # Faults of the guest
//! A bad *chain* goes back with length 0 and is counted; traffic goes on. A bad *ring*
//! ([`QueueFault`]) can not be served any further; it stops until the guest sets it up anew.
//!
//! # Limits
//! Split rings only. Receive needs no memory beyond what the largest packet asks for once;
//! transmit has a bulk of frames in hand.

pub mod chain;
mod config_space;
mod features;
mod look_ahead;
mod notify;
mod ring;
mod rx_queue;
mod stats;
mod tx_check;
mod tx_queue;

#[cfg(test)]
mod driver_model;
#[cfg(test)]
mod rig;

pub use config_space::ConfigSpace;
pub use features::{Features, Offer, Offloads};
pub use ring::{QueueFault, RingConfig, RingFault, SplitRing};
pub use rx_queue::{Fill, RxQueue};
pub use stats::{NotifyStats, RxQueueStats, TxQueueStats};
pub use tx_check::TxDrop;
pub use tx_queue::{Pieces, Taken, Tx, TxFrame, TxQueue};
