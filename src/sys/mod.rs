//! Every unsafe line of the program, behind safe functions on owned types.

pub mod clock;
mod epoll;
mod guest;
pub mod ifreq;
mod inherit;
mod iov;
mod ring_area;

pub use self::epoll::{Batch, EpollSet, Interest, Ready};
pub use guest::{GuestMap, GuestSlice};
pub use inherit::take_inherited;
pub use iov::{PARTS_MAX, write_parts};
pub use ring_area::{DESCRIPTOR_LEN, Descriptor, RingArea};
