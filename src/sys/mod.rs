//! Every unsafe line of the program, behind safe functions on owned types.

mod guest;

pub use guest::GuestSlice;
