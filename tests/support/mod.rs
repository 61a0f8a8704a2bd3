//! What the tests of the receive path share: frames, a receive context with an invented clock,
//! and a second opinion on what it delivers.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test target uses another part of it"
)]

pub mod case;
pub mod check;
pub mod context;
pub mod cut;
pub mod invariants;
pub mod packet;
