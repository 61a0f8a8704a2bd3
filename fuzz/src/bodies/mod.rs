//! What is fuzzed. Each body takes any bytes, does with them what their format says, and panics if
//! a promise is broken.
//!
//! `fuzz_targets` gives them to libFuzzer; `tests/fuzz_bodies.rs` runs the same bodies on a stable
//! toolchain for a bounded number of inputs. The formats are made such that most bytes mean
//! something, and that [`seeds`] can write them.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "libFuzzer's targets and the test use different parts"
)]
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a body tells what it found"
)]

pub mod captured;
pub mod chain;
#[path = "../../../src/device/driver_model.rs"]
mod driver_model;
pub mod engine;
mod input;
pub mod layout;
pub mod seeds;
pub mod tx_frame;

/// A body: its name and what runs it.
pub type Body = (&'static str, fn(&[u8]));

/// All of them.
pub const ALL: [Body; 4] = [
    ("layout", layout::run),
    ("engine", engine::run),
    ("tx_frame", tx_frame::run),
    ("chain", chain::run),
];
