//! What the kernel says of a network interface, by its name.
//!
//! Source: netdevice(7).
#![allow(unsafe_code, reason = "ioctl takes untyped pointers")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::Ioctl;

use super::ifreq::ifreq;

/// State and kind of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetDevice {
    /// It was brought up and its link works (`IFF_UP` and `IFF_RUNNING`).
    pub is_running: bool,
    /// It carries Ethernet frames (`ARPHRD_ETHER`).
    pub is_ethernet: bool,
    /// Longest packet behind the Ethernet header, in bytes.
    pub mtu: usize,
}

/// Asks for an interface through any socket of the same network namespace.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn net_device(fd: BorrowedFd<'_>, name: &str) -> io::Result<NetDevice> {
    let mut ifr = ifreq(name, 0)?;
    ask(fd, libc::SIOCGIFFLAGS, &mut ifr)?;
    // SAFETY: the union was initialised by `ifreq`, and the kernel answers in this member.
    let flags = c_int::from(unsafe { ifr.ifr_ifru.ifru_flags });
    ask(fd, libc::SIOCGIFMTU, &mut ifr)?;
    // SAFETY: as above.
    let mtu = unsafe { ifr.ifr_ifru.ifru_mtu };
    ask(fd, libc::SIOCGIFHWADDR, &mut ifr)?;
    // SAFETY: as above.
    let address = unsafe { ifr.ifr_ifru.ifru_hwaddr };
    let running = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(NetDevice {
        is_running: flags & running == running,
        is_ethernet: address.sa_family == libc::ARPHRD_ETHER,
        mtu: usize::try_from(mtu).unwrap_or(0),
    })
}

fn ask(fd: BorrowedFd<'_>, request: Ioctl, ifr: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the requests given here read the name of one `struct ifreq` and write its union.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut *ifr) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
