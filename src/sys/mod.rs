//! Every unsafe line of the program, behind safe functions on owned types.

pub mod clock;
mod epoll;
mod guest;
pub mod ifreq;
mod inherit;
mod iov;

pub use self::epoll::{Batch, EpollSet, Interest, Ready};
pub use guest::GuestSlice;
pub use inherit::take_inherited;
pub use iov::{PARTS_MAX, write_parts};
