//! Every unsafe line of the program, behind safe functions on owned types.

pub mod clock;
mod epoll;
mod frame;
mod guest;
pub mod ifreq;
mod inherit;
mod iov;
mod mmsg;
mod netdev;
pub mod packet;
mod packet_ring;
mod placement;
mod ring_area;

pub use self::epoll::{Batch, EpollSet, Interest, Ready};
pub use frame::{Frame, FrameBuffers};
pub use guest::{GuestMap, GuestSlice};
pub use inherit::take_inherited;
pub use iov::{PARTS_MAX, write_parts};
pub use mmsg::{MESSAGES_MAX, send_messages};
pub use netdev::{NetDevice, net_device};
pub use packet_ring::{PacketRing, SLOT_STATUS_LEN, SLOTS_PER_BLOCK, SlotState};
pub use placement::{Placement, PlacementError, Policy};
pub use ring_area::{DESCRIPTOR_LEN, Descriptor, RingArea};
