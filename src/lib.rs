//! Host side of a virtio-net device over vhost-user that coalesces inbound traffic with GRO.
#![cfg_attr(not(any(feature = "daemon", test)), no_std)]

extern crate alloc;

pub mod gro;
pub mod gso;
pub mod napi;
pub mod time;
pub mod wire;

#[cfg(feature = "daemon")]
pub mod app;
#[cfg(feature = "daemon")]
pub mod backend;
#[cfg(feature = "daemon")]
pub mod device;
#[cfg(feature = "daemon")]
pub mod sys;
#[cfg(feature = "daemon")]
pub mod uplink;
#[cfg(feature = "daemon")]
pub mod worker;
