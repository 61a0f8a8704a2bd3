//! What a driver says of itself: its queues, and what it does to frames on their way up.
//!
//! Source: `include/uapi/linux/ethtool.h`; `net/ethtool/ioctl.c`.
#![allow(unsafe_code, reason = "ioctl takes untyped pointers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::ifreq::ifreq;

/// `SIOCETHTOOL`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_FLAGS: u32 = 0x25;
const GET_GRO: u32 = 0x2b;
const GET_CHANNELS: u32 = 0x3c;
const FLAG_RX_VLAN: u32 = 1 << 8;

/// Receive queues in use; `None` where the driver does not say.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn receive_queues(fd: BorrowedFd<'_>, name: &str) -> io::Result<Option<usize>> {
    /// Most queues, and those in use: receive, transmit, other, combined.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        used: [u32; 4],
    }
    let mut channels = Channels {
        command: GET_CHANNELS,
        ..Channels::default()
    };
    let is_known = ask(fd, name, &mut channels)?;
    let [receive, _, _, combined] = channels.used;
    Ok(is_known.then_some(receive as usize + combined as usize))
}

/// Whether the tag of a frame is taken out of it.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn takes_tags_out(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    Ok(value(fd, name, GET_FLAGS)? & FLAG_RX_VLAN != 0)
}

/// Whether frames are merged on their way up.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn merges(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    Ok(value(fd, name, GET_GRO)? != 0)
}

/// Whether it is one end of a veth pair.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn is_veth(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    /// The name of the driver, and much else.
    #[repr(C)]
    struct Driver {
        command: u32,
        name: [u8; 32],
        rest: [u8; 160],
    }
    let mut driver = Driver {
        command: GET_DRIVER,
        name: [0; 32],
        rest: [0; 160],
    };
    ask(fd, name, &mut driver)?;
    Ok(driver.name.starts_with(b"veth\0"))
}

/// 0 where the driver does not say.
fn value(fd: BorrowedFd<'_>, name: &str, command: u32) -> io::Result<u32> {
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let mut value = Value { command, data: 0 };
    ask(fd, name, &mut value)?;
    Ok(value.data)
}

/// `false` where the driver does not say.
fn ask<T>(fd: BorrowedFd<'_>, name: &str, request: &mut T) -> io::Result<bool> {
    let mut ifr = ifreq(name, 0)?;
    ifr.ifr_ifru.ifru_data = (&raw mut *request).cast();
    // SAFETY: the kernel reads the name in `ifr`, and reads and writes as many bytes of the request
    // as its command says, which it has; callers give the type of the command.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL, &raw mut ifr) };
    if rc == 0 {
        return Ok(true);
    }
    let err = io::Error::last_os_error();
    if err.raw_os_error() == Some(libc::EOPNOTSUPP) {
        return Ok(false);
    }
    Err(err)
}
