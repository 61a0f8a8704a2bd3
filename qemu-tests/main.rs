//! placeholder
mod harness;
fn main() {}
