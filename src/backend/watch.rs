//! What can interrupt a wait: the end of the program, and a change of the link.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, retry_on_intr, write};

/// Ends [`Sessions::run`](super::Sessions::run) from any thread, once and for all.
#[derive(Clone, Debug)]
pub struct StopHandle {
    event: Arc<OwnedFd>,
}

impl StopHandle {
    /// Makes a handle that was not used yet.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            event: Arc::new(new_event()?),
        })
    }

    /// Asks for the end.
    pub fn stop(&self) {
        signal(&self.event);
    }
}

impl AsFd for StopHandle {
    /// Readable from the moment on at which [`StopHandle::stop`] was called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Tells the guest whether there is a link, from any thread.
///
/// vhost-user has no message for it that QEMU takes from a network backend. What QEMU does show
/// to the guest as a lost carrier is a lost connection: so while the link is held down there is
/// none, and a new one is refused.
#[derive(Clone, Debug)]
pub struct LinkHandle {
    link: Arc<Link>,
}

#[derive(Debug)]
struct Link {
    is_down: AtomicBool,
    changed: OwnedFd,
}

impl LinkHandle {
    /// Makes a handle of a link that is up.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let link = Link {
            is_down: AtomicBool::new(false),
            changed: new_event()?,
        };
        Ok(Self {
            link: Arc::new(link),
        })
    }

    /// Holds the link down, or lets it up again. Saying the same twice changes nothing.
    pub fn hold_down(&self, is_down: bool) {
        if self.link.is_down.swap(is_down, Ordering::AcqRel) != is_down {
            signal(&self.link.changed);
        }
    }

    /// Whether the link is held down.
    pub fn is_down(&self) -> bool {
        self.link.is_down.load(Ordering::Acquire)
    }
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// One of the awaited descriptors is ready; which ones.
    Ready([bool; 2]),
    /// The time is over.
    Timeout,
    /// The program ends.
    Stop,
    /// The link was held down or let up.
    Link,
}

/// Waits for a socket, but not past the end of the program or a change of the link.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    stop: StopHandle,
    link: LinkHandle,
}

impl Watch {
    pub(super) fn new(stop: StopHandle, link: LinkHandle) -> Self {
        Self { stop, link }
    }

    pub(super) fn link_is_down(&self) -> bool {
        self.link.is_down()
    }

    /// Waits until `socket` can be read.
    pub(super) fn readable(&self, socket: BorrowedFd<'_>) -> io::Result<Wake> {
        self.wait([Some((socket, PollFlags::IN)), None], None)
    }

    /// Waits until one of two sockets can be read, for the time or for ever.
    pub(super) fn either_readable(
        &self,
        one: BorrowedFd<'_>,
        other: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        self.wait(
            [Some((one, PollFlags::IN)), Some((other, PollFlags::IN))],
            timeout,
        )
    }

    /// Waits until `socket` takes more.
    pub(super) fn writable(&self, socket: BorrowedFd<'_>) -> io::Result<Wake> {
        self.wait([Some((socket, PollFlags::OUT)), None], None)
    }

    /// Waits for the time to pass, or for ever.
    pub(super) fn pause(&self, timeout: Option<Duration>) -> io::Result<Wake> {
        self.wait([None, None], timeout)
    }

    fn wait(
        &self,
        sockets: [Option<(BorrowedFd<'_>, PollFlags)>; 2],
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.link.link.changed, PollFlags::IN),
        ];
        fds.extend(
            sockets
                .iter()
                .flatten()
                .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)),
        );

        // A signal restarts the whole time; none is expected on the threads that wait here.
        retry_on_intr(|| poll(&mut fds, timeout.as_ref()))?;
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        if is_ready(0) {
            return Ok(Wake::Stop);
        }
        if is_ready(1) {
            let _ = read(&self.link.link.changed, &mut [0; 8]);
            return Ok(Wake::Link);
        }
        if is_ready(2) || is_ready(3) {
            return Ok(Wake::Ready([is_ready(2), is_ready(3)]));
        }
        Ok(Wake::Timeout)
    }
}

fn new_event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes the event readable. It fails only when the counter is full: then it is readable already.
fn signal(event: &OwnedFd) {
    let _ = write(event, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> (StopHandle, LinkHandle, Watch) {
        let (stop, link) = (StopHandle::new().unwrap(), LinkHandle::new().unwrap());
        let watch = Watch::new(stop.clone(), link.clone());
        (stop, link, watch)
    }

    #[test]
    fn stop_is_remembered_and_beats_all_else() {
        let (stop, link, watch) = watch();
        link.hold_down(true);
        stop.stop();
        assert_eq!(watch.pause(None).unwrap(), Wake::Stop);
        assert_eq!(watch.pause(None).unwrap(), Wake::Stop);
    }

    #[test]
    fn link_wakes_once_for_each_change() {
        let (_, link, watch) = watch();
        assert!(!watch.link_is_down());
        link.hold_down(true);
        link.hold_down(true);
        assert_eq!(watch.pause(None).unwrap(), Wake::Link);
        assert!(watch.link_is_down());
        assert_eq!(watch.pause(Some(Duration::ZERO)).unwrap(), Wake::Timeout);
        link.hold_down(false);
        assert_eq!(watch.pause(None).unwrap(), Wake::Link);
        assert!(!watch.link_is_down());
    }

    #[test]
    fn ready_socket_is_told_from_the_other() {
        let (_, _, watch) = watch();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let idle = new_event().unwrap();
        drop(far);
        let wake = watch
            .either_readable(idle.as_fd(), near.as_fd(), None)
            .unwrap();
        assert_eq!(wake, Wake::Ready([false, true]));
    }
}
