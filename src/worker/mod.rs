//! Data threads: the only place where device, uplink, GRO and NAPI meet.
//!
//! There is one thread for each queue pair, or one for several of them. It lives as long as the
//! daemon, owns a queue of the uplink for each of its pairs, and serves whatever guest the protocol
//! side sets up ([`PairControl::apply`]). All state of a pair belongs to its thread: there is no
//! lock, and nothing that two threads share.
//!
//! - `handle`: what the protocol side says to a thread;
//! - `mailbox`: how it gets there;
//! - `thread`: the loop, its place, and what becomes of a panic;
//! - `pair_set`: the pairs of a thread, `run_queue`: whose turn it is;
//! - `waiter`: the epoll set with masking;
//! - `pair`: two directions and one uplink queue, started and stopped together;
//! - `receive`, `deliver`: uplink, engine, poll model, ring;
//! - `mtu`: what is too long for the guest;
//! - `transmit`: ring, checks, uplink; `finish` does what the uplink cannot, `sender` and `room`
//!   know how much it takes;
//! - `host`: the uplink queue and its link, `ring`: how a ring starts, `signal`: what is said of it;
//! - `trace`: what passes, as a capture;
//! - `stats`: what is counted, `complaint`: how often it is warned.

mod complaint;
mod deliver;
mod finish;
mod handle;
mod host;
mod mailbox;
mod mtu;
mod pair;
mod pair_set;
mod receive;
mod ring;
mod room;
mod run_queue;
mod sender;
mod signal;
mod stats;
mod thread;
mod trace;
mod transmit;
mod waiter;

pub use handle::{PairControl, PairSetup, Positions, RingSetup};
pub use pair::{PairConfig, QueuePair};
pub use pair_set::{PairSet, Seat};
pub use stats::{BulksEnded, PairStats, ReceiveStats, Refused, TransmitStats};
pub use thread::{DataThread, LinkReport, SpawnError, ThreadConfig};
pub use trace::{Draft, Trace, TraceStats, Tracer};
