//! What the kernel says of the interfaces of this network namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// Source: `RTMGRP_LINK`, `include/uapi/linux/rtnetlink.h`.
const LINK_EVENTS: u32 = 1;
/// Source: as above.
const RTM_DELLINK: u16 = 17;
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

    /// Takes what has been said so far; says whether an interface may have been deleted.
    pub(super) fn take(&self) -> bool {
        let mut has_deletion = false;
        // Length and type of a message; the rest is cut off.
        let mut head = [0; 6];
        for _ in 0..EVENTS_MAX {
            match recv(&self.socket, &mut head, RecvFlags::DONTWAIT) {
                Ok(_) => {
                    let [.., low, high] = head;
                    has_deletion |= u16::from_ne_bytes([low, high]) == RTM_DELLINK;
                }
                // An overrun is an error that is gone when it was read: any may be missing.
                Err(Errno::NOBUFS) => has_deletion = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        has_deletion
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
