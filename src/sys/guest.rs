//! Guest memory by host address: every region translated once, looked up without a lock.
//!
//! A guest may write its memory at any time, so no reference is ever made to it: bytes move
//! through [`GuestSlice`], index fields by atomic loads and stores.
#![allow(unsafe_code, reason = "guest memory is only reachable by raw pointers")]

/// A range of guest memory, valid as long as the borrow of the map it came from.
pub type GuestSlice<'a> = vm_memory::VolatileSlice<'a>;
