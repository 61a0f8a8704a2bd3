//! What a data thread waits for: named descriptors, masked and unmasked, and one deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
    /// The uplink's device may have changed.
    Device,
}

impl From<u64> for Token {
    fn from(value: u64) -> Self {
        match value {
            0 => Self::Inbox,
            1 => Self::RxKick,
            2 => Self::TxKick,
            3 => Self::Uplink,
            _ => Self::Device,
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
            Self::Device => 4,
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
    uplink: Option<Watched>,
}

/// The uplink's descriptor in the set.
#[derive(Debug)]
struct Watched {
    /// A duplicate: its number is nobody else's as long as it is in the set.
    fd: OwnedFd,
    generation: u64,
    interest: Interest,
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

    /// Starts to watch a device for changes.
    pub(super) fn add_device(&self, events: BorrowedFd<'_>) -> io::Result<()> {
        self.set.add(events, Token::Device.value(), Interest::Read)
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

    /// Says what is to be reported of the uplink, whose descriptor is another one whenever
    /// `generation` is. Errors are reported even when it is masked.
    pub(super) fn watch_uplink(
        &mut self,
        fd: BorrowedFd<'_>,
        generation: u64,
        wish: Interest,
    ) -> io::Result<()> {
        let token = Token::Uplink.value();
        match &mut self.uplink {
            Some(watched) if watched.generation == generation => {
                if watched.interest != wish {
                    self.set.modify(watched.fd.as_fd(), token, wish)?;
                    watched.interest = wish;
                }
            }
            _ => {
                self.forget_uplink();
                let fd = fd.try_clone_to_owned()?;
                self.set.add(fd.as_fd(), token, wish)?;
                self.uplink = Some(Watched {
                    fd,
                    generation,
                    interest: wish,
                });
            }
        }
        Ok(())
    }

    /// Whether the uplink is watched through the descriptor of this generation.
    pub(super) fn knows_uplink(&self, generation: u64) -> bool {
        self.uplink
            .as_ref()
            .is_some_and(|watched| watched.generation == generation)
    }

    /// Stops watching the uplink altogether: it is gone.
    pub(super) fn forget_uplink(&mut self) {
        if let Some(watched) = self.uplink.take() {
            let _ = self.set.remove(watched.fd.as_fd());
        }
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<Batch> {
        self.set.wait(timeout)
    }
}
