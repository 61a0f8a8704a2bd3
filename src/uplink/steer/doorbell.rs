//! Wakes a thread that sleeps in an epoll set, if it does (rule THR-3).
//!
//! The sleeper says that it wants to be woken, looks once more for work, and only then sleeps; the
//! other side hands work over first and then looks whether anybody wants to be woken. So work that
//! is handed over is found by the one or seen to by the other, and a thread that is at work anyway
//! costs no system call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An event descriptor, and whether its owner waits for it.
#[derive(Debug)]
pub(super) struct Doorbell {
    fd: OwnedFd,
    is_wanted: AtomicBool,
}

impl Doorbell {
    /// One that is wanted.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            is_wanted: AtomicBool::new(true),
        })
    }

    /// Readable when it was rung. Meant for level-triggered waiting.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Rings, if that is wanted, after work was handed over.
    #[inline]
    pub(super) fn ring(&self) {
        // What was handed over is there before the look; see `want`.
        fence(Ordering::SeqCst);
        if self.is_wanted.load(Ordering::Relaxed) && self.is_wanted.swap(false, Ordering::Relaxed) {
            self.strike();
        }
    }

    /// Rings in any case.
    pub(super) fn strike(&self) {
        // It fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// For the sleeper: stops the ringing. To be followed by a look for work.
    pub(super) fn clear(&self) {
        // Nothing to read means that it was not rung.
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }

    /// For the sleeper: wants to be woken by the next ring. To be followed by a last look for work.
    pub(super) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
        // The wish is there before the last look; see `ring`.
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::sys::{EpollSet, Interest};

    #[test]
    fn it_rings_once_for_each_wish() {
        let bell = Doorbell::new().unwrap();
        let set = EpollSet::new().unwrap();
        set.add(bell.fd(), 0, Interest::Read).unwrap();
        let is_rung = || set.wait(Some(Duration::ZERO)).unwrap().iter().count() == 1;
        bell.ring();
        assert!(is_rung());
        bell.clear();
        bell.ring();
        assert!(!is_rung(), "nobody wanted it");
        bell.want();
        bell.ring();
        assert!(is_rung());
    }

    #[test]
    fn no_wake_up_is_lost() {
        const WORK: u64 = 100_000;
        let bell = Doorbell::new().unwrap();
        let done = AtomicU64::new(0);
        let set = EpollSet::new().unwrap();
        set.add(bell.fd(), 0, Interest::Read).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..WORK {
                    done.fetch_add(1, Ordering::Release);
                    bell.ring();
                }
            });
            while done.load(Ordering::Acquire) < WORK {
                bell.want();
                if done.load(Ordering::Acquire) == WORK {
                    break;
                }
                let limit = Some(Duration::from_secs(20));
                assert!(set.wait(limit).unwrap().iter().count() > 0, "overslept");
                bell.clear();
            }
        });
    }
}
