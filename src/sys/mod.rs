//! Every unsafe line of the program, behind safe functions on owned types.

pub mod bpf;
pub mod clock;
mod epoll;
pub mod ethtool;
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
mod prefetch;
mod ring_area;
mod umem;
mod watched;
mod xdp_ring;
mod xdp_socket;

pub use self::epoll::{Batch, EpollSet, Interest, Ready};
pub use frame::{Frame, FrameBuffers};
pub use guest::{GuestMap, GuestSlice};
pub use inherit::take_inherited;
pub use iov::{PARTS_MAX, write_parts};
pub use mmsg::{MESSAGES_MAX, send_messages};
pub use netdev::{NetDevice, net_device};
pub use packet_ring::{PacketRing, SLOT_STATUS_LEN, SLOTS_PER_BLOCK, SlotState};
pub use placement::{Placement, PlacementError, Policy};
pub use prefetch::Purpose;
pub use ring_area::{DESCRIPTOR_LEN, Descriptor, RingArea};
pub use umem::{Census, KERNEL_HEADROOM, UMEM_HEADROOM, Umem};
pub use watched::WatchedFd;
pub use xdp_socket::{Invalid, XdpShape, XdpSocket, xdp_socket};
