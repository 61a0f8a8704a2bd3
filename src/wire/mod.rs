//! Bytes on the wire and their meaning: headers, checksums, frame layout. Pure.

pub mod vnet_hdr;

pub use vnet_hdr::{RxMeta, VnetHdr};
