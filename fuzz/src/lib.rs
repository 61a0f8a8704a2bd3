//! The bodies of the fuzz targets, with what they share with the tests of the main package.

pub mod bodies;
#[path = "../../tests/support/mod.rs"]
pub mod support;
