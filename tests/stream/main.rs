//! The stream uplink against a peer that the test plays: over a socket pair, a path, a port.
#![cfg(feature = "daemon")]
#![allow(
    clippy::unwrap_used,
    reason = "what helps a test is not seen as a test"
)]

mod framing;
mod peers;
mod rig;
