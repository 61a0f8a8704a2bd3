//! What a queue is woken by beside frames: changes of interfaces, and the time for another try.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::sys::{EpollSet, Interest};
use crate::uplink::link_events::LinkEvents;

/// The memory of a socket that was closed is unlocked a little later.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Both in one set, which is readable when one of them is.
#[derive(Debug)]
pub(super) struct Watch {
    set: EpollSet,
    events: LinkEvents,
    timer: OwnedFd,
    pause: Duration,
}

impl Watch {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let watch = Self {
            set: EpollSet::new()?,
            events: LinkEvents::new()?,
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            pause: FIRST_PAUSE,
        };
        for fd in [watch.events.as_fd(), watch.timer.as_fd()] {
            watch.set.add(fd, 0, Interest::Read)?;
        }
        Ok(watch)
    }

    /// Takes what has been said so far.
    pub(super) fn take(&self) {
        self.events.take();
        self.set_timer(Duration::ZERO);
    }

    /// Has the set be readable after a pause, which is longer each time.
    pub(super) fn try_later(&mut self) {
        self.set_timer(self.pause);
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }

    /// The next pause is short again.
    pub(super) const fn is_well(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    /// Any socket, for what is asked of the kernel.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Sets the timer anew, which takes back that it has fired; zero stops it.
    fn set_timer(&self, pause: Duration) {
        let zero = Timespec::default();
        let spec = Itimerspec {
            it_interval: zero,
            it_value: Timespec::try_from(pause).unwrap_or(zero),
        };
        // Both times are in range, and the descriptor is a timer: this cannot fail.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
