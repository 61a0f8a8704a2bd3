//! The daemon's entry.
fn main() {}
