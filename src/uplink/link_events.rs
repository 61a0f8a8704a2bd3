//! What the kernel says of the interfaces of this network namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// Source: `RTMGRP_LINK`, `include/uapi/linux/rtnetlink.h`.
const LINK_EVENTS: u32 = 1;
/// Events read at a time; what is left makes the socket readable again.
const EVENTS_MAX: usize = 64;

/// A socket that is readable when some interface has changed. What did is looked up, not read
/// from the messages.
#[derive(Debug)]
pub(super) struct LinkEvents {
    socket: OwnedFd,
}

impl LinkEvents {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is `NETLINK_ROUTE`.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINK_EVENTS))?;
        Ok(Self { socket })
    }

    /// Forgets what has been said so far.
    pub(super) fn take(&self) {
        // Cut messages will do: nobody looks at them.
        let mut message = [0; 16];
        for _ in 0..EVENTS_MAX {
            // An overrun is an error that is gone when it was read, and says no less.
            match recv(&self.socket, &mut message, RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(_) => break,
            }
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
