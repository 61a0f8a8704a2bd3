//! From the guest to the host: how many frames go together, and how much may be on its way.
//!
//! The guest's transmit ring is a queue of packets, the uplink a driver's queue. Frames are taken in
//! *bulks*: the uplink gets all of one with a single submission, and the guest gets all of its
//! buffers back with one publication and one notification. A large bulk costs less for each frame;
//! a small one keeps a frame that comes next from waiting behind it. So a bulk is short ([`Bulk`]):
//! a few frames, no more bytes than the uplink is known to take, and nothing behind a super-frame.
//!
//! How many bytes that are is learned where the uplink says later what has left it ([`Dql`]): as
//! few as keep it busy. One that is done when the call returns has nothing to learn from, and has
//! the same room every time ([`TxConfig::tx_sync_bytes`]).
//!
//! Frames are not seen here, only their lengths; nobody here sends, waits or knows the time.
//!
//! Source: rules TX-1 to TX-4 and DQL-1 to DQL-6; Linux `net/sched/sch_generic.c`,
//! `lib/dynamic_queue_limits.c`.

mod bulk;
mod config;
mod dql;

pub use bulk::{Bulk, BulkEnd};
pub use config::TxConfig;
pub use dql::Dql;
