//! Stands between the front-end's socket and the daemon of the vhost crates.
//!
//! It reads whole messages with their descriptors, refuses those that the protocol does not
//! allow, and does with the others what [`Rules`] say: most pass, a few are answered here or
//! kept for later. It works in lock-step: when the daemon is going to reply, the reply is passed
//! on before the next request is read, so that no answer of the relay's own can overtake one.
//!
//! The relay never looks at rings or memory and has no state beyond that of [`Rules`].

mod announce;
mod fault;
mod message;
mod region_file;
mod regions;
mod rules;
mod shape;
mod socket;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use log::{debug, info};
use vhost::vhost_user::message::FrontendReq;

use super::watch::{Wake, Watch};

use fault::Fault;
pub use rules::QueueNumUnit;
pub(super) use rules::Rules;

use announce::rarp_frame;
use message::{Message, encode_reply};
use rules::Step;

/// Why a connection has ended.
#[derive(Debug)]
pub(super) enum End {
    /// The front-end has closed it without a word, as one does who looks if somebody listens.
    Unused,
    /// The front-end has not said a word in all the time it was given.
    Silent,
    /// The front-end has closed it between two messages.
    Closed,
    /// The front-end has closed it within a message.
    CutOff,
    /// The front-end has sent something that the protocol does not allow.
    Fault(Fault),
    /// The daemon has closed it at this request, or after it.
    Refused(FrontendReq),
    /// The socket has failed.
    Broken(io::Error),
    /// The link is held down.
    LinkDown,
    /// The program ends.
    Stopped,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Unused => f.write_str("closed by the front-end without a word"),
            End::Silent => f.write_str("no message came, others may be waiting"),
            End::Closed => f.write_str("closed by the front-end"),
            End::CutOff => f.write_str("closed by the front-end within a message"),
            End::Fault(fault) => write!(f, "protocol fault: {fault}"),
            End::Refused(request) => write!(f, "{request:?} was refused"),
            End::Broken(error) => write!(f, "socket failed: {error}"),
            End::LinkDown => f.write_str("the link is down"),
            End::Stopped => f.write_str("the program ends"),
        }
    }
}

/// A connection in service.
pub(super) struct Relay<'a> {
    /// The front-end's socket.
    pub(super) front: &'a UnixStream,
    /// The daemon's socket.
    pub(super) daemon: &'a UnixStream,
    /// Number of rings that exist.
    pub(super) rings: u32,
    /// Ends the service early.
    pub(super) watch: &'a Watch,
    /// How long the first message may take; for ever if not said.
    pub(super) patience: Option<Duration>,
    /// Sends a frame out of the uplink.
    pub(super) announce: &'a dyn Fn(Vec<u8>),
}

impl Relay<'_> {
    /// Serves until one of the two sides is gone or the watch says so.
    pub(super) fn run(&self, mut rules: Rules) -> End {
        let mut last = None;
        loop {
            let step = self.next_request(last).and_then(|(message, descriptors)| {
                if last.replace(message.request).is_none() {
                    info!("front-end connected");
                }
                self.serve(&mut rules, message, descriptors)
            });
            match step {
                Ok(()) => {}
                Err(End::Closed) if last.is_none() => return End::Unused,
                Err(end) => return end,
            }
        }
    }

    /// Waits for a request, and notices meanwhile when the daemon has closed its side because of
    /// the `last` one.
    fn next_request(&self, last: Option<FrontendReq>) -> Result<(Message, Vec<OwnedFd>), End> {
        let timeout = self.patience.filter(|_| last.is_none());
        loop {
            let (daemon, front) = (self.daemon.as_fd(), self.front.as_fd());
            match self.watch.either_readable(daemon, front, timeout)? {
                Wake::Timeout => return Err(End::Silent),
                // The daemon says nothing of its own accord: readable means closed.
                Wake::Ready([true, _]) => {
                    return Err(last.map_or(End::Unused, End::Refused));
                }
                Wake::Ready(_) => return socket::read_request(self.front, self.watch),
                wake => socket::wait(wake, self.watch)?,
            }
        }
    }

    fn serve(
        &self,
        rules: &mut Rules,
        message: Message,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), End> {
        debug!("{message:?}, {} descriptors", descriptors.len());
        let used = shape::check(&message, descriptors.len(), self.rings)?;
        descriptors.truncate(used);
        region_file::check(&message, &descriptors)?;

        let request = message.request;
        for step in rules.handle(message)? {
            match step {
                Step::Pass { message, has_reply } => {
                    socket::send_to_daemon(self.daemon, &message, &descriptors, self.watch)?;
                    if has_reply {
                        let payload = socket::read_reply(self.daemon, request, self.watch)?;
                        self.reply(request, &payload)?;
                    }
                }
                Step::Inject(message) => {
                    debug!("replayed: {message:?}");
                    socket::send_to_daemon(self.daemon, &message, &[], self.watch)?;
                }
                Step::Reply(payload) => self.reply(request, &payload)?,
                Step::Announce(mac) => (self.announce)(rarp_frame(mac)),
            }
        }
        Ok(())
    }

    fn reply(&self, request: FrontendReq, payload: &[u8]) -> Result<(), End> {
        match payload.try_into() {
            Ok(number) => debug!("{request:?} answered {:#x}", u64::from_ne_bytes(number)),
            Err(_) => debug!("{request:?} answered with {} bytes", payload.len()),
        }
        socket::send_to_front_end(self.front, &encode_reply(request, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::watch::{LinkHandle, StopHandle};

    #[test]
    fn front_end_that_says_nothing_is_not_waited_for() {
        let (_front_end, front) = UnixStream::pair().unwrap();
        let (_daemon_end, daemon) = UnixStream::pair().unwrap();
        let watch = Watch::new(StopHandle::new().unwrap(), LinkHandle::new().unwrap());
        let relay = Relay {
            front: &front,
            daemon: &daemon,
            rings: 2,
            watch: &watch,
            patience: Some(Duration::from_millis(1)),
            announce: &|_| {},
        };
        let end = relay.run(Rules::new(2, QueueNumUnit::Pairs, 0));
        assert!(matches!(end, End::Silent), "{end:?}");
    }
}
