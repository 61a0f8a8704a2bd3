//! The ioctls of tun/tap devices, one function each, on `struct ifreq` and plain integers.
//!
//! Source: `include/uapi/linux/if_tun.h`; behaviour in `drivers/net/tun.c`, `__tun_chr_ioctl`.
#![allow(unsafe_code, reason = "ioctl takes untyped pointers")]

use std::ffi::{c_int, c_short, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::Ioctl;

/// `IFF_TAP`: Ethernet frames, not IP packets.
pub const IFF_TAP: u16 = 0x0002;
/// `IFF_MULTI_QUEUE`: the device may have several queues.
pub const IFF_MULTI_QUEUE: u16 = 0x0100;
/// `IFF_ATTACH_QUEUE`: the queue shall be one of its device's again.
pub const IFF_ATTACH_QUEUE: u16 = 0x0200;
/// `IFF_DETACH_QUEUE`: the queue shall get no frames, or gets none.
pub const IFF_DETACH_QUEUE: u16 = 0x0400;
/// `IFF_PERSIST`: the device outlives its descriptors; only ever reported.
pub const IFF_PERSIST: u16 = 0x0800;
/// `IFF_NO_PI`: no four bytes of protocol information before the frame. Among reported flags it
/// means that or that no filter is attached; see [`tun_has_packet_info`].
pub const IFF_NO_PI: u16 = 0x1000;
/// `IFF_VNET_HDR`: a virtio-net header before every frame.
pub const IFF_VNET_HDR: u16 = 0x4000;

/// `TUN_F_CSUM`: partial checksums are taken.
pub const TUN_F_CSUM: u32 = 0x01;
/// `TUN_F_TSO4`.
pub const TUN_F_TSO4: u32 = 0x02;
/// `TUN_F_TSO6`.
pub const TUN_F_TSO6: u32 = 0x04;
/// `TUN_F_TSO_ECN`: TSO frames may carry CWR.
pub const TUN_F_TSO_ECN: u32 = 0x08;
/// `TUN_F_USO4`.
pub const TUN_F_USO4: u32 = 0x20;
/// `TUN_F_USO6`.
pub const TUN_F_USO6: u32 = 0x40;

/// The filter that keeps up to 4 GiB of every frame.
/// Source: `include/uapi/linux/bpf_common.h`, `BPF_RET | BPF_K`.
const PASS_ALL: libc::sock_filter = libc::sock_filter {
    code: 0x06,
    jt: 0,
    jf: 0,
    k: u32::MAX,
};

/// Longest interface name in bytes. Source: `IFNAMSIZ`, less the terminating zero.
pub const IF_NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// An interface's name and its `IFF_*` flags as the tun driver reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunIface {
    /// Name of the interface.
    pub name: String,
    /// `IFF_*` flags of the device.
    pub flags: u16,
}

/// Attaches `fd` to the device `name`, which is created if it does not exist (`TUNSETIFF`).
/// Returns the name that the kernel gave it.
///
/// # Errors
/// `InvalidInput` for a name that is too long, else the kernel's error.
pub fn tun_set_iff(fd: BorrowedFd<'_>, name: &str, flags: u16) -> io::Result<String> {
    let mut ifr = ifreq(name, flags)?;
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `ifr` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut ifr) };
    check(rc)?;
    Ok(iface_name(&ifr))
}

/// Asks which device `fd` is attached to (`TUNGETIFF`).
///
/// # Errors
/// `ENOTTY` for something that is no tun descriptor, `EBADFD` for one that is not attached.
pub fn tun_get_iff(fd: BorrowedFd<'_>) -> io::Result<TunIface> {
    let mut ifr = ifreq("", 0)?;
    // SAFETY: TUNGETIFF writes one `struct ifreq`, which `ifr` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut ifr) };
    check(rc)?;
    // SAFETY: the union was initialised by `ifreq`, and the driver answers in this member.
    let flags = unsafe { ifr.ifr_ifru.ifru_flags };
    Ok(TunIface {
        name: iface_name(&ifr),
        flags: flags.cast_unsigned(),
    })
}

/// Sets the size of the virtio-net header in bytes (`TUNSETVNETHDRSZ`).
///
/// # Errors
/// `EINVAL` for a size below 10 bytes.
pub fn tun_set_vnet_hdr_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = c_int::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    write_int(fd, libc::TUNSETVNETHDRSZ, len)
}

/// Reads the size of the virtio-net header in bytes (`TUNGETVNETHDRSZ`).
///
/// # Errors
/// The kernel's error.
pub fn tun_vnet_hdr_len(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let len = read_int(fd, libc::TUNGETVNETHDRSZ)?;
    usize::try_from(len).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Makes the virtio-net header little endian whatever the host is (`TUNSETVNETLE`).
///
/// # Errors
/// The kernel's error.
pub fn tun_set_vnet_le(fd: BorrowedFd<'_>) -> io::Result<()> {
    write_int(fd, libc::TUNSETVNETLE, 1)
}

/// Whether the virtio-net header is little endian (`TUNGETVNETLE`).
///
/// # Errors
/// The kernel's error.
pub fn tun_is_vnet_le(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(read_int(fd, libc::TUNGETVNETLE)? != 0)
}

/// Sets which `TUN_F_*` offloads the reader of the device accepts (`TUNSETOFFLOAD`). The mask
/// belongs to the device, not to the descriptor, and outlives both if the device is persistent.
///
/// # Errors
/// `EINVAL` for an unknown bit or a combination the kernel does not support.
pub fn tun_set_offload(fd: BorrowedFd<'_>, mask: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(mask)) };
    check(rc)
}

/// Makes the device outlive its descriptors, or not (`TUNSETPERSIST`).
///
/// # Errors
/// The kernel's error.
pub fn tun_set_persist(fd: BorrowedFd<'_>, is_persistent: bool) -> io::Result<()> {
    let arg = c_ulong::from(is_persistent);
    // SAFETY: TUNSETPERSIST takes its argument by value.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST, arg) };
    check(rc)
}

/// Puts a queue of a multi-queue device into the set that the device spreads frames over, or takes
/// it out (`TUNSETQUEUE`). It needs no privilege but what a security module asks for.
///
/// A queue outside is empty to a reader and still sends; what waited in it is lost. It stays bound
/// to the device, and learns of its end like any other. Taking it out waits for every CPU to let
/// go of it, some ten milliseconds.
///
/// Source: `drivers/net/tun.c`, `tun_set_queue`, `__tun_detach`, `tun_disable_queue`.
///
/// # Errors
/// `EINVAL` if the queue is there already, is of a single-queue device, or has lost its device.
pub fn tun_set_queue(fd: BorrowedFd<'_>, is_attached: bool) -> io::Result<()> {
    let flags = if is_attached {
        IFF_ATTACH_QUEUE
    } else {
        IFF_DETACH_QUEUE
    };
    let mut ifr = ifreq("", flags)?;
    // SAFETY: TUNSETQUEUE reads one `struct ifreq`, which `ifr` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETQUEUE, &raw mut ifr) };
    check(rc)
}

/// Whether four bytes of protocol information come before every frame, that is, whether the device
/// was opened without [`IFF_NO_PI`]; `None` if that cannot be found out.
///
/// The kernel reports a queue without socket filter by the same bit as `IFF_NO_PI`
/// (`IFF_NOFILTER`). So a filter that passes everything is attached for the time of the question. A
/// device that has, or once had, a filter of somebody else's is left alone.
///
/// Source: `drivers/net/tun.c`, `__tun_chr_ioctl` (`TUNGETIFF`, `TUNATTACHFILTER`).
///
/// # Errors
/// The kernel's error.
pub fn tun_has_packet_info(fd: BorrowedFd<'_>) -> io::Result<Option<bool>> {
    let has_packet_info = || Ok(tun_get_iff(fd)?.flags & IFF_NO_PI == 0);
    if has_packet_info()? {
        return Ok(Some(true));
    }
    if had_filter(fd)? {
        return Ok(None);
    }
    attach_filter(fd, [PASS_ALL])?;
    let answer = has_packet_info();
    detach_filter(fd)?;
    answer.map(Some)
}

/// Whether a filter was ever attached (`TUNGETFILTER`). The driver does not forget the last one.
fn had_filter(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut program = filter(&mut []);
    // SAFETY: TUNGETFILTER writes one `struct sock_fprog`, which `program` is. The address in it is
    // one of whoever attached the filter and is not used.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETFILTER, &raw mut program) };
    check(rc)?;
    Ok(program.len != 0)
}

/// Attaches a filter of one instruction, or none, to all queues of a tap (`TUNATTACHFILTER`).
fn attach_filter<const N: usize>(
    fd: BorrowedFd<'_>,
    mut instructions: [libc::sock_filter; N],
) -> io::Result<()> {
    let program = filter(&mut instructions);
    // SAFETY: TUNATTACHFILTER reads one `struct sock_fprog` and as many instructions as that says,
    // all of which outlive the call; the kernel keeps a copy.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNATTACHFILTER, &raw const program) };
    check(rc)
}

/// Removes the filter from all queues of a tap (`TUNDETACHFILTER`), and its traces.
fn detach_filter(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TUNDETACHFILTER does not look at its argument.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNDETACHFILTER, c_ulong::MIN) };
    check(rc)?;
    // An empty filter is refused, but first it takes the place of ours in the driver's memory; so
    // the next one who asks does not take ours for somebody else's.
    let _ = attach_filter(fd, []);
    Ok(())
}

fn filter(instructions: &mut [libc::sock_filter]) -> libc::sock_fprog {
    libc::sock_fprog {
        // The callers have one instruction at most.
        len: u16::try_from(instructions.len()).unwrap_or(0),
        filter: instructions.as_mut_ptr(),
    }
}

pub(super) fn ifreq(name: &str, flags: u16) -> io::Result<libc::ifreq> {
    if name.len() > IF_NAME_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let mut ifr_ifru = libc::__c_anonymous_ifr_ifru {
        // The longest member first, so that no byte of the union stays unset.
        ifru_map: libc::__c_anonymous_ifru_map {
            mem_start: 0,
            mem_end: 0,
            base_addr: 0,
            irq: 0,
            dma: 0,
            port: 0,
        },
    };
    ifr_ifru.ifru_flags = c_short::from_ne_bytes(flags.to_ne_bytes());
    Ok(libc::ifreq { ifr_name, ifr_ifru })
}

fn iface_name(ifr: &libc::ifreq) -> String {
    let bytes: Vec<u8> = ifr
        .ifr_name
        .iter()
        .take_while(|&&c| c != 0)
        .flat_map(|c| c.to_ne_bytes())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn write_int(fd: BorrowedFd<'_>, request: Ioctl, value: c_int) -> io::Result<()> {
    // SAFETY: the requests given here read one C int, which `value` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const value) };
    check(rc)
}

fn read_int(fd: BorrowedFd<'_>, request: Ioctl) -> io::Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: the requests given here write one C int, which `value` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
    check(rc)?;
    Ok(value)
}

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn constants_agree_with_the_kernel_headers() {
        assert_eq!(i32::from(IFF_TAP), libc::IFF_TAP);
        assert_eq!(i32::from(IFF_MULTI_QUEUE), libc::IFF_MULTI_QUEUE);
        assert_eq!(i32::from(IFF_ATTACH_QUEUE), libc::IFF_ATTACH_QUEUE);
        assert_eq!(i32::from(IFF_DETACH_QUEUE), libc::IFF_DETACH_QUEUE);
        assert_eq!(i32::from(IFF_PERSIST), libc::IFF_PERSIST);
        assert_eq!(i32::from(IFF_NO_PI), libc::IFF_NO_PI);
        assert_eq!(i32::from(IFF_VNET_HDR), libc::IFF_VNET_HDR);
        assert_eq!(TUN_F_CSUM, libc::TUN_F_CSUM);
        assert_eq!(TUN_F_TSO4, libc::TUN_F_TSO4);
        assert_eq!(TUN_F_TSO6, libc::TUN_F_TSO6);
        assert_eq!(TUN_F_TSO_ECN, libc::TUN_F_TSO_ECN);
        assert_eq!(TUN_F_USO4, libc::TUN_F_USO4);
        assert_eq!(TUN_F_USO6, libc::TUN_F_USO6);
    }

    #[test]
    fn a_name_survives_the_way_through_ifreq() {
        let ifr = ifreq("tap-nine.15char", 0).unwrap();
        assert_eq!(iface_name(&ifr), "tap-nine.15char");
        let err = ifreq("sixteen-letters!", 0).err().unwrap();
        assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn something_that_is_no_tun_descriptor_is_an_error() {
        let null = File::open("/dev/null").unwrap();
        let err = tun_get_iff(null.as_fd()).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::ENOTTY));
    }
}
