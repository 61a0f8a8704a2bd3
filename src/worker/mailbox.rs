//! Requests to a data thread and its answers.
//!
//! A request wakes the thread through an event descriptor in its epoll set; the caller blocks
//! until the answer is there. A thread that has ended answers nothing, and the caller learns it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::handle::{PairSetup, Positions};
use super::stats::PairStats;

/// What a data thread can be asked for. The number is that of the pair among those of the thread.
#[derive(Debug)]
pub(super) enum Request {
    /// Work with this set-up from now on.
    Apply(usize, PairSetup, SyncSender<Positions>),
    /// Send a frame of the daemon's own.
    Announce(usize, Vec<u8>),
    /// Report the counters.
    Stats(usize, SyncSender<PairStats>),
    /// Let go of everything and end.
    Exit,
}

/// The caller's end.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Inbox {
    requests: Receiver<Request>,
    wake: Arc<OwnedFd>,
}

/// Makes both ends.
///
/// # Errors
/// The process is out of descriptors.
pub(super) fn mailbox() -> io::Result<(Sending, Inbox)> {
    let (sender, receiver) = channel();
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let sending = Sending {
        requests: sender,
        wake: Arc::clone(&wake),
    };
    Ok((
        sending,
        Inbox {
            requests: receiver,
            wake,
        },
    ))
}

impl Sending {
    /// Posts a request that needs no answer. A thread that has ended is no error.
    pub(super) fn post(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            // It fails only when the counter is full, and then the thread is awake anyway.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Posts a request and waits for the answer, `None` if the thread has ended.
    pub(super) fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        self.post(request(sender));
        receiver.recv().ok()
    }

    /// The same, `None` also if the answer takes longer than `time`.
    pub(super) fn ask_within<T>(
        &self,
        time: Duration,
        request: impl FnOnce(SyncSender<T>) -> Request,
    ) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        self.post(request(sender));
        receiver.recv_timeout(time).ok()
    }
}

impl Inbox {
    /// Takes the next request if there is one.
    pub(super) fn take(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Clears the wake-up. To be called before the requests are taken.
    pub(super) fn clear(&self) {
        // Nothing to read means that an earlier read has cleared it.
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
    }

    /// The descriptor that becomes readable with a request.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asker_with_a_limit_does_not_wait_for_a_thread_that_hangs() {
        let (sending, _inbox) = mailbox().unwrap();
        assert!(
            sending
                .ask_within(Duration::ZERO, |reply| Request::Stats(0, reply))
                .is_none()
        );
    }
}
