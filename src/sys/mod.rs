//! Every unsafe line of the program, behind safe functions on owned types.

mod epoll;
mod guest;

pub use self::epoll::{Batch, EpollSet, Interest, Ready};
pub use guest::GuestSlice;
