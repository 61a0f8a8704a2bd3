//! Signals as events on a descriptor, so that they take their turn with everything else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM`, `SIGINT` or `SIGHUP`: end cleanly and fast.
    Stop,
    /// `SIGUSR1`: print the counters.
    Counters,
}

/// The signals of this process that arrived and were not yet looked at.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Catches the signals that [`Signal`] names, from now on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn catch() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let signals = [SIGTERM, SIGINT, SIGHUP, SIGUSR1];
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        Ok(Self { delivery })
    }

    /// Descriptor that is readable while signals wait.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// Takes the signals that arrived; several of one kind may have become one. Never blocks.
    pub fn take(&mut self) -> impl Iterator<Item = Signal> {
        self.delivery.pending().map(|number| match number {
            SIGUSR1 => Signal::Counters,
            _ => Signal::Stop,
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Signal as Number, getpid, kill_process};

    use super::*;

    #[test]
    fn a_signal_makes_the_descriptor_readable_until_it_is_taken() {
        let mut signals = Signals::catch().unwrap();
        kill_process(getpid(), Number::USR1).unwrap();
        let ready = |signals: &Signals, timeout| {
            let fd = signals.fd();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout).unwrap()
        };
        assert_eq!(ready(&signals, None), 1);
        assert_eq!(signals.take().collect::<Vec<_>>(), [Signal::Counters]);
        let at_once = rustix::event::Timespec::default();
        assert_eq!(ready(&signals, Some(&at_once)), 0);
    }
}
