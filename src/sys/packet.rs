//! Packet sockets: binding, and each of their options as a function.
//!
//! Source: packet(7); `net/packet/af_packet.c`, `packet_setsockopt`.
#![allow(
    unsafe_code,
    reason = "socket options and addresses are untyped pointers"
)]

use std::ffi::{c_int, c_ushort, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::packet_ring::SLOTS_PER_BLOCK;

/// Bytes of the virtio-net header that packet sockets use, the one without `num_buffers`, in the
/// byte order of the host. Source: `struct virtio_net_hdr`.
pub const PACKET_VNET_HDR_LEN: usize = 10;

/// `PACKET_MR_UNICAST`: frames to one more address.
const MR_UNICAST: c_ushort = 3;

/// Which frames a socket makes its interface receive, beside those to the interface itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// All.
    Promiscuous,
    /// All multicast.
    AllMulticast,
    /// Those to this address.
    Unicast([u8; 6]),
}

/// What the kernel counted since it was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Frames that matched, dropped ones included.
    pub packets: u32,
    /// Frames for which the ring had no slot.
    pub drops: u32,
}

/// Opens a packet socket for whole Ethernet frames that receives nothing until it is bound.
///
/// # Errors
/// `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` without packet sockets in the kernel.
pub fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes three integers and gives a descriptor or -1.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    check(fd)?;
    // SAFETY: the kernel just gave this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds to the interface `index`, to receive every protocol or nothing.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn bind_packet(fd: BorrowedFd<'_>, index: u32, is_receiving: bool) -> io::Result<()> {
    let protocol = if is_receiving { ETH_P_ALL } else { 0 };
    let address = libc::sockaddr_ll {
        sll_protocol: protocol.to_be(),
        sll_ifindex: index.cast_signed(),
        ..UNBOUND
    };
    // SAFETY: `address` is a link-layer address of the length that is given.
    let rc = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            len_of::<libc::sockaddr_ll>(),
        )
    };
    check(rc)
}

/// The interface that the socket is bound to; `None` once that is gone, whatever took its index.
///
/// # Errors
/// The kernel's error.
pub fn bound_index(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut address = UNBOUND;
    let mut len = len_of::<libc::sockaddr_ll>();
    let to: *mut libc::sockaddr_ll = &raw mut address;
    // SAFETY: the kernel writes at most `len` bytes to `address`, which has as many and is made of
    // integers that may have any value.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), to.cast(), &raw mut len) };
    check(rc)?;
    Ok(u32::try_from(address.sll_ifindex).ok())
}

const UNBOUND: libc::sockaddr_ll = libc::sockaddr_ll {
    sll_family: AF_PACKET,
    sll_protocol: 0,
    sll_ifindex: 0,
    sll_hatype: 0,
    sll_pkttype: 0,
    sll_halen: 0,
    sll_addr: [0; 8],
};

/// `ETH_P_ALL`, which the libc crate has as an `int`.
const ETH_P_ALL: u16 = 0x0003;
/// `AF_PACKET` as it stands in an address.
const AF_PACKET: u16 = 17;

/// Chooses rings of fixed slots (`TPACKET_V2`).
///
/// # Errors
/// The kernel's error.
pub fn set_fixed_slots(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::PACKET_VERSION, &1)
}

/// Has the kernel put a virtio-net header of [`PACKET_VNET_HDR_LEN`] bytes before each frame, and
/// take one before each that is sent.
///
/// # Errors
/// The kernel's error.
pub fn set_vnet_hdr(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::PACKET_VNET_HDR, &1)
}

/// Leaves `bytes` more in each slot in front of the frame.
///
/// # Errors
/// The kernel's error.
pub fn set_reserve(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set(fd, libc::PACKET_RESERVE, &int(bytes)?)
}

/// Queues frames that are longer than a slot on the socket as well, whole.
///
/// # Errors
/// The kernel's error.
pub fn set_long_frames_queued(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::PACKET_COPY_THRESH, &1)
}

/// Does not receive what the host or another socket sends on the interface. Kernels before 4.20
/// cannot.
///
/// # Errors
/// The kernel's error.
pub fn ignore_outgoing(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::PACKET_IGNORE_OUTGOING, &1)
}

/// Sends past the interface's queueing discipline.
///
/// # Errors
/// The kernel's error.
pub fn bypass_qdisc(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::PACKET_QDISC_BYPASS, &1)
}

/// Has the interface `index` receive more than it would, as long as the socket is there.
///
/// # Errors
/// The kernel's error.
pub fn add_membership(fd: BorrowedFd<'_>, index: u32, membership: Membership) -> io::Result<()> {
    let promiscuous = u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or_default();
    let all_multicast = u16::try_from(libc::PACKET_MR_ALLMULTI).unwrap_or_default();
    let (mr_type, address) = match membership {
        Membership::Promiscuous => (promiscuous, [0; 6]),
        Membership::AllMulticast => (all_multicast, [0; 6]),
        Membership::Unicast(address) => (MR_UNICAST, address),
    };
    let mut mr_address = [0; 8];
    mr_address[..6].copy_from_slice(&address);
    let request = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type,
        mr_alen: 6,
        mr_address,
    };
    set(fd, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Joins the group `id` of sockets among which frames are spread by flow, or makes one with an id
/// that nobody has. Returns the id.
///
/// # Errors
/// `EINVAL` if the group is of another interface, or the interface is down and the kernel is
/// older than 6.7.
pub fn join_fanout(fd: BorrowedFd<'_>, id: Option<u16>) -> io::Result<u16> {
    let unique = match id {
        Some(_) => 0,
        None => libc::PACKET_FANOUT_FLAG_UNIQUEID,
    };
    let request = u32::from(id.unwrap_or(0));
    let join = |flags: u32| set(fd, libc::PACKET_FANOUT, &(request | (flags << 16)));
    let ignoring = libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let hash = libc::PACKET_FANOUT_HASH | unique;
    // Kernels before 5.11 do not know that flag; then outgoing frames are told by their type.
    join(hash | ignoring).or_else(|_| join(hash))?;
    let mut joined = 0u32;
    get(fd, libc::PACKET_FANOUT, &mut joined)?;
    #[allow(clippy::cast_possible_truncation, reason = "the id is the lower half")]
    Ok(joined as u16)
}

/// Drops every frame for which `program` gives 0 before it takes a slot.
///
/// # Errors
/// `EINVAL` for a program that the kernel does not accept.
pub fn attach_filter(fd: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    set_at(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Takes the counters, which begin at 0 again.
///
/// # Errors
/// The kernel's error.
pub fn take_counts(fd: BorrowedFd<'_>) -> io::Result<PacketCounts> {
    let mut counts = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    get(fd, libc::PACKET_STATISTICS, &mut counts)?;
    Ok(PacketCounts {
        packets: counts.tp_packets,
        drops: counts.tp_drops,
    })
}

/// Gives the socket a receive ring.
pub(super) fn set_rx_ring(fd: BorrowedFd<'_>, slots: usize, slot_len: usize) -> io::Result<()> {
    let number = |value: usize| u32::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
    let request = libc::tpacket_req {
        tp_block_size: number(SLOTS_PER_BLOCK * slot_len)?,
        tp_block_nr: number(slots / SLOTS_PER_BLOCK)?,
        tp_frame_size: number(slot_len)?,
        tp_frame_nr: number(slots)?,
    };
    set(fd, libc::PACKET_RX_RING, &request)
}

fn set<T>(fd: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    set_at(fd, libc::SOL_PACKET, option, value)
}

fn set_at<T>(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let value: *const T = value;
    let value: *const c_void = value.cast();
    // SAFETY: the kernel reads one `T`, which `value` is; callers give the type of the option.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len_of::<T>()) };
    check(rc)
}

fn get<T>(fd: BorrowedFd<'_>, option: c_int, value: &mut T) -> io::Result<()> {
    let value: *mut T = value;
    let mut len = len_of::<T>();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which has as many and is made of
    // integers that may have any value; callers give the type of the option.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            value.cast(),
            &raw mut len,
        )
    };
    check(rc)
}

fn len_of<T>() -> libc::socklen_t {
    // The few types used here have some bytes each.
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn int(value: usize) -> io::Result<c_int> {
    c_int::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
