//! An epoll set with tokens of a type of ours and timeouts in nanoseconds.
#![allow(unsafe_code, reason = "the epoll crate hands out raw descriptors")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use epoll::{ControlOptions, Event, Events};
use rustix::event::epoll as wait;
use rustix::time::Timespec;

/// Most events that one wait reports; what is left is reported by the next.
const BATCH: usize = 16;

/// Which readiness of a descriptor is reported. Errors and hang-ups always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Only errors and hang-ups: the descriptor is masked.
    Errors,
    /// Readable, as long as it lasts.
    Read,
    /// Readable, once for each time it becomes so.
    ReadEdge,
    /// Writable, as long as it lasts.
    Write,
    /// Readable or writable, as long as it lasts.
    ReadWrite,
}

impl Interest {
    fn events(self) -> Events {
        match self {
            Self::Errors => Events::empty(),
            Self::Read => Events::EPOLLIN,
            Self::ReadEdge => Events::EPOLLIN | Events::EPOLLET,
            Self::Write => Events::EPOLLOUT,
            Self::ReadWrite => Events::EPOLLIN | Events::EPOLLOUT,
        }
    }
}

/// One reported descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one flag for each event of epoll"
)]
pub struct Ready {
    /// The token the descriptor was added with.
    pub token: u64,
    /// It can be read.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// It has an error or its other end is gone.
    pub failed: bool,
}

/// An epoll set.
#[derive(Debug)]
pub struct EpollSet {
    fd: OwnedFd,
}

impl EpollSet {
    /// Makes an empty set.
    ///
    /// # Errors
    /// The process is out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let raw = epoll::create(true)?;
        // SAFETY: `create` just returned this descriptor and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { fd })
    }

    /// Adds a descriptor under `token`.
    ///
    /// # Errors
    /// The descriptor is in the set already, or is of a kind that cannot be waited for.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(ControlOptions::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes what is reported of a descriptor.
    ///
    /// # Errors
    /// The descriptor is not in the set.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(ControlOptions::EPOLL_CTL_MOD, fd, token, interest)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// The descriptor is not in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(ControlOptions::EPOLL_CTL_DEL, fd, 0, Interest::Errors)
    }

    fn control(
        &self,
        operation: ControlOptions,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let event = Event::new(interest.events(), token);
        epoll::ctl(self.fd.as_raw_fd(), operation, fd.as_raw_fd(), event)
    }

    /// Waits until a descriptor is ready or `timeout` is over, for ever with `None`.
    ///
    /// The `epoll` crate knows milliseconds only; this is the one call made without it.
    ///
    /// # Errors
    /// Never for a signal: that ends the wait early, without events.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Batch> {
        let timeout = timeout.map(|limit| {
            Timespec::try_from(limit).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        let mut batch = Batch {
            events: [MaybeUninit::uninit(); BATCH],
            count: 0,
        };
        match wait::wait(&self.fd, &mut batch.events, timeout.as_ref()) {
            Ok((ready, _)) => batch.count = ready.len(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(batch)
    }
}

/// A set is readable when a descriptor in it is ready, so it may be in another one.
impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What one wait reported.
pub struct Batch {
    events: [MaybeUninit<wait::Event>; BATCH],
    count: usize,
}

impl Batch {
    /// The ready descriptors.
    pub fn iter(&self) -> impl Iterator<Item = Ready> {
        self.events[..self.count].iter().map(|event| {
            // SAFETY: `wait` initialised the first `count` events.
            let event = unsafe { event.assume_init() };
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.contains(wait::EventFlags::IN),
                writable: flags.contains(wait::EventFlags::OUT),
                failed: flags.intersects(wait::EventFlags::ERR | wait::EventFlags::HUP),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn tokens(set: &EpollSet) -> Vec<u64> {
        set.wait(Some(Duration::ZERO))
            .unwrap()
            .iter()
            .map(|ready| ready.token)
            .collect()
    }

    #[test]
    fn a_masked_descriptor_is_not_reported() {
        let set = EpollSet::new().unwrap();
        let event = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        set.add(event.as_fd(), 7, Interest::Read).unwrap();
        assert_eq!(tokens(&set), [7]);
        set.modify(event.as_fd(), 7, Interest::Errors).unwrap();
        assert!(tokens(&set).is_empty());
        set.remove(event.as_fd()).unwrap();
        assert!(set.modify(event.as_fd(), 7, Interest::Read).is_err());
    }

    #[test]
    fn an_edge_is_reported_once_for_each_write() {
        let set = EpollSet::new().unwrap();
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        set.add(event.as_fd(), 1, Interest::ReadEdge).unwrap();
        for _ in 0..2 {
            rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(tokens(&set), [1]);
            assert!(tokens(&set).is_empty());
        }
    }

    #[test]
    fn a_timeout_below_a_millisecond_is_kept() {
        let set = EpollSet::new().unwrap();
        let nanos = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            now.tv_sec * 1_000_000_000 + now.tv_nsec
        };
        let wait = || {
            let before = nanos();
            set.wait(Some(Duration::from_nanos(1))).unwrap();
            nanos() - before
        };
        // Rounded up to a millisecond none of them could be shorter than one.
        let shortest = (0..50).map(|_| wait()).min().unwrap();
        assert!(shortest < 1_000_000, "the shortest wait took {shortest} ns");
    }
}
