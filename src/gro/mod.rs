//! GRO: merges frames of one TCP flow into super-frames. Pure: no descriptor, clock, log or lock.

mod config;
mod packet;

pub use config::{GroConfig, GroTypes, HashMode};
pub use packet::{FrameBytes, GroPacket, Piece};
