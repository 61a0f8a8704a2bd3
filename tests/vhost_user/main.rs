//! The backend in dialogue with a front-end, with recorders in place of data threads.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dialogue;
mod endpoints;
mod faults;
mod front_end;
mod memory;
mod recorder;
mod rings;
mod served;
mod transcripts;
