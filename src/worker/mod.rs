//! Data threads: the only place where device, uplink, GRO and NAPI meet.

mod handle;

pub use handle::{PairControl, PairSetup, Positions, RingSetup};
