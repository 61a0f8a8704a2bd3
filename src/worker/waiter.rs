//! What a data thread waits for: named descriptors, masked and unmasked, and one deadline.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys::{Batch, EpollSet, Interest};

/// The descriptors of a data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A request is waiting.
    Inbox,
    /// The guest added receive buffers.
    RxKick,
    /// The guest added frames to send.
    TxKick,
    /// The uplink has frames, room, or an error.
    Uplink,
}

impl From<u64> for Token {
    fn from(value: u64) -> Self {
        match value {
            0 => Self::Inbox,
            1 => Self::RxKick,
            2 => Self::TxKick,
            _ => Self::Uplink,
        }
    }
}

impl Token {
    const fn value(self) -> u64 {
        match self {
            Self::Inbox => 0,
            Self::RxKick => 1,
            Self::TxKick => 2,
            Self::Uplink => 3,
        }
    }
}

/// The epoll set of a data thread.
///
/// Masking changes the set only when the wish changes, so a masked uplink that stays masked costs
/// no system call.
#[derive(Debug)]
pub(super) struct Waiter {
    set: EpollSet,
    uplink: Option<Interest>,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            set: EpollSet::new()?,
            uplink: None,
        })
    }

    pub(super) fn add_inbox(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.set.add(fd, Token::Inbox.value(), Interest::Read)
    }

    /// Starts to watch a kick.
    ///
    /// Every write to it is an edge of its own, so the counter never has to be read: the ring
    /// itself says what there is to do.
    pub(super) fn add_kick(&self, token: Token, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.set.add(fd, token.value(), Interest::ReadEdge)
    }

    pub(super) fn remove_kick(&self, fd: BorrowedFd<'_>) {
        // A descriptor that could not be added is not in the set.
        let _ = self.set.remove(fd);
    }

    /// Says what is to be reported of the uplink. Errors are reported even when it is masked.
    pub(super) fn watch_uplink(&mut self, fd: BorrowedFd<'_>, wish: Interest) -> io::Result<()> {
        match self.uplink {
            Some(current) if current == wish => return Ok(()),
            Some(_) => self.set.modify(fd, Token::Uplink.value(), wish)?,
            None => self.set.add(fd, Token::Uplink.value(), wish)?,
        }
        self.uplink = Some(wish);
        Ok(())
    }

    /// Stops watching the uplink altogether: it is gone.
    pub(super) fn forget_uplink(&mut self, fd: BorrowedFd<'_>) {
        if self.uplink.take().is_some() {
            let _ = self.set.remove(fd);
        }
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<Batch> {
        self.set.wait(timeout)
    }
}
