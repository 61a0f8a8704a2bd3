//! Queue pairs between a driver model and an uplink, turn by turn with an invented clock; and the
//! hand-shake with a real data thread. Tests named `fNN` guard against a fault of
//! `docs/field-faults.md`.
#![cfg(feature = "daemon")]
#![allow(
    clippy::unwrap_used,
    reason = "what helps a test is not seen as a test"
)]

mod active;
mod af_packet;
mod allocation;
mod bad_input;
mod batching;
mod buffers;
mod bulk;
mod conservation;
#[path = "../support/cut.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "each test target uses another part of it"
)]
mod cut;
#[path = "../../src/device/driver_model.rs"]
mod driver_model;
mod features;
mod finish;
mod flush;
mod limit;
mod logs;
#[path = "../support/netns.rs"]
mod netns;
mod order;
#[path = "../support/packet.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "each test target uses another part of it"
)]
mod packet;
mod recording;
mod rig;
mod rings;
mod shared;
mod steer;
mod stop;
mod stream;
mod thread;
mod trace;
mod unfinished;
mod unreliable;
mod uplink_faults;
mod uplink_recovers;
