//! Host side of a virtio-net device over vhost-user that merges inbound traffic with GRO.
//!
//! The crate is a daemon and, inside it, an engine that others can use. Read it in this order.
//!
//! # Pure modules
//! Always built, `no_std` with `alloc`, no dependency: what `default-features = false` leaves. They
//! are the public API.
//!
//! [`time`] is an instant in nanoseconds that somebody else read.
//!
//! [`wire`] turns bytes into typed headers and back, sums checksums, and finds the layout of a
//! frame in one pass.
//!
//! [`gro`] merges: frames go in, packets come out of one ordered list. It holds one packet for each
//! flow and says why each of them ended.
//!
//! [`gso`] is the inverse: it cuts a packet into the frames that went in.
//!
//! [`napi`] says when to poll, what to flush, and when to listen to the source again.
//!
//! [`tx`] says how many frames from the guest go together, and how many bytes may be on their way.
//!
//! # The daemon
//! Everything else is behind the default feature `daemon`. These modules are public so that the
//! program, tests and benches reach them; they may change in any release.
//!
//! [`sys`] holds every unsafe line behind safe functions: guest memory, rings, epoll, tap ioctls,
//! and the clock.
//!
//! [`device`] is virtio-net as the guest sees it: rings, descriptor chains, features.
//!
//! [`uplink`] is the host's side: where frames come from and go to.
//!
//! [`worker`] runs one data thread for each queue pair, the only place where all of the above meet.
//!
//! [`backend`] speaks vhost-user with the front-end and hands each change to the data threads.
//!
//! [`app`] is the program around it: command line, configuration, logs, signals.
#![cfg_attr(not(any(feature = "daemon", test)), no_std)]

extern crate alloc;

pub mod gro;
pub mod gso;
pub mod napi;
pub mod time;
pub mod tx;
pub mod wire;

#[cfg(feature = "daemon")]
pub mod app;
#[cfg(feature = "daemon")]
pub mod backend;
#[cfg(feature = "daemon")]
pub mod device;
#[cfg(feature = "daemon")]
pub mod pcapng;
#[cfg(feature = "daemon")]
pub mod socket_file;
#[cfg(feature = "daemon")]
pub mod sys;
#[cfg(feature = "daemon")]
pub mod uplink;
#[cfg(feature = "daemon")]
pub mod values;
#[cfg(feature = "daemon")]
pub mod worker;
