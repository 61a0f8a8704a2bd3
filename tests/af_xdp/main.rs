//! Frames through an interface that is attached to by XDP. Needs root.
#![cfg(feature = "daemon")]
#![allow(
    clippy::unwrap_used,
    reason = "what helps a test is not seen as a test"
)]

mod again;
mod attach;
mod frames;
#[path = "../support/host_frames.rs"]
mod host_frames;
mod interface;
#[path = "../support/netns.rs"]
mod netns;
mod rig;
mod rings;
