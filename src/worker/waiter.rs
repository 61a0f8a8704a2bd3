//! What a data thread waits for: named descriptors, masked and unmasked, and one deadline.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::{Batch, EpollSet, Interest, WatchedFd};

/// Bits of a token of the epoll set that say which descriptor of its pair it is; the rest say which
/// pair.
const KIND_BITS: u32 = 3;

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
        match value & ((1 << KIND_BITS) - 1) {
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

/// Which pair of the set a token belongs to.
pub(super) fn pair_of(token: u64) -> usize {
    usize::try_from(token >> KIND_BITS).unwrap_or(usize::MAX)
}

/// The descriptors of one pair in the epoll set of its data thread, which other pairs may share.
#[derive(Debug)]
pub(super) struct Waiter {
    set: Arc<EpollSet>,
    /// What the pair's tokens have in front of the kind.
    base: u64,
    uplink: WatchedFd,
}

impl Waiter {
    /// A set of its own.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self::of_pair(Arc::new(EpollSet::new()?), 0))
    }

    /// The descriptors of the `nth` pair in this set.
    pub(super) fn of_pair(set: Arc<EpollSet>, nth: usize) -> Self {
        Self {
            set,
            base: (nth as u64) << KIND_BITS,
            uplink: WatchedFd::default(),
        }
    }

    fn token(&self, token: Token) -> u64 {
        self.base | token.value()
    }

    pub(super) fn add_inbox(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.set.add(fd, self.token(Token::Inbox), Interest::Read)
    }

    /// Starts to watch a device for changes.
    pub(super) fn add_device(&self, events: BorrowedFd<'_>) -> io::Result<()> {
        self.set
            .add(events, self.token(Token::Device), Interest::Read)
    }

    /// Starts to watch a kick.
    ///
    /// Every write to it is an edge of its own, so the counter never has to be read: the ring
    /// itself says what there is to do.
    pub(super) fn add_kick(&self, token: Token, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.set.add(fd, self.token(token), Interest::ReadEdge)
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
        let token = self.token(Token::Uplink);
        self.uplink.watch(&self.set, token, (fd, generation), wish)
    }

    /// Whether the uplink is watched through the descriptor of this generation.
    pub(super) fn knows_uplink(&self, generation: u64) -> bool {
        self.uplink.is_of(generation)
    }

    /// Stops watching the uplink altogether: it is gone.
    pub(super) fn forget_uplink(&mut self) {
        self.uplink.forget(&self.set);
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<Batch> {
        self.set.wait(timeout)
    }
}
