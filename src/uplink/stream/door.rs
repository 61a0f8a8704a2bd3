//! The descriptor that says when somebody knocks while a peer is served.
//!
//! It stays the same, as [`UplinkQueue::events`](crate::uplink::UplinkQueue::events) asks, and is
//! quiet while nobody is served: the listener is then waited for by itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An epoll set with the listener in it, or nothing.
#[derive(Debug)]
pub(super) struct Door {
    set: OwnedFd,
    /// Whether anybody was refused since the last peer was taken.
    has_refused: bool,
}

impl Door {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            set: epoll::create(CreateFlags::CLOEXEC)?,
            has_refused: false,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// A peer is served from now on: who knocks at `listener` is reported.
    pub(super) fn watch(&mut self, listener: BorrowedFd<'_>) -> io::Result<()> {
        self.has_refused = false;
        let (data, flags) = (EventData::new_u64(0), EventFlags::IN);
        Ok(epoll::add(&self.set, listener, data, flags)?)
    }

    /// Nothing is reported any more.
    pub(super) fn leave(&self, listener: BorrowedFd<'_>) {
        // It may have been left before.
        let _ = epoll::delete(&self.set, listener);
    }

    /// Whether this refusal is the first beside the peer that is served.
    pub(super) const fn is_first(&mut self) -> bool {
        !core::mem::replace(&mut self.has_refused, true)
    }
}
