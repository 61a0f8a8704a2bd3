//! Connections, one after the other.
//!
//! States of [`Sessions::run`]: *link held down* (nothing listens, nothing is tried), *waiting*
//! for a connection, *in session*. Stopping is possible in each and takes effect at once.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use log::{debug, error, info, warn};
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};

use super::device::Offer;
use super::endpoint::{Endpoint, EndpointError};
use super::framework::{Framework, FrameworkError};
use super::pairs::Pairs;
use super::relay::{End, Relay, Rules};
use super::watch::{LinkHandle, StopHandle, Wake, Watch};
use crate::socket_file::{SocketFile, connect_to};
use crate::worker::PairControl;

/// Time to wait before trying again what failed for want of resources.
const RECOVERY: Duration = Duration::from_secs(1);

/// How long a front-end that has connected may keep silent: one that does keeps others out.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kick message has eight bits for the index of the ring.
const PAIRS_MAX: usize = 128;

/// The connections of one device.
pub struct Sessions {
    source: Source,
    offer: Arc<Offer>,
    controls: Vec<Arc<dyn PairControl>>,
    link: LinkHandle,
    is_one_off: bool,
}

/// Where the next connection comes from.
enum Source {
    Listen {
        path: PathBuf,
        mode: Option<u32>,
        file: Option<SocketFile>,
    },
    Connect {
        path: PathBuf,
        retry: Duration,
        is_first: bool,
        was_refused: bool,
    },
    Fd(Option<UnixStream>),
}

/// What came of waiting for a connection.
enum Next {
    Connection(UnixStream),
    /// Look at the link again.
    Again,
    /// There will be no further one.
    Never,
}

impl Sessions {
    /// Prepares the endpoint; front-ends can connect from now on and are served by
    /// [`run`](Self::run). `controls` are the data threads, one for each queue pair; through `link`
    /// they say when there is no host to talk to.
    ///
    /// # Errors
    /// When the socket cannot be made, or belongs to somebody else.
    pub fn new(
        endpoint: Endpoint,
        offer: Offer,
        controls: Vec<Arc<dyn PairControl>>,
        link: LinkHandle,
    ) -> Result<Self, EndpointError> {
        if !(1..=PAIRS_MAX).contains(&controls.len()) {
            return Err(EndpointError::PairCount(controls.len()));
        }
        if Pairs::new(controls.clone(), offer.ring_size_max).is_err() {
            return Err(EndpointError::RingSize(offer.ring_size_max));
        }
        let source = match endpoint {
            Endpoint::Listen { path, mode } => {
                let file = Some(SocketFile::listen(&path, mode)?);
                info!("listening at {}", path.display());
                Source::Listen { path, mode, file }
            }
            Endpoint::Connect { path, retry } => Source::Connect {
                path,
                retry,
                is_first: true,
                was_refused: false,
            },
            Endpoint::Fd(fd) => Source::Fd(Some(connected_stream(fd)?)),
        };
        Ok(Self {
            source,
            offer: Arc::new(offer),
            controls,
            link,
            is_one_off: false,
        })
    }

    /// Ends with the first session, unless its front-end never said anything.
    #[must_use]
    pub fn one_off(mut self) -> Self {
        self.is_one_off = true;
        self
    }

    /// Serves one connection after the other until told to stop, or the only one it was given.
    /// Whatever a front-end does ends its own connection at most.
    pub fn run(mut self, stop: &StopHandle) {
        let watch = Watch::new(stop.clone(), self.link.clone());
        loop {
            match self.next(&watch) {
                Next::Connection(stream) => {
                    if self.serve(&stream, &watch) && self.is_one_off {
                        return;
                    }
                }
                Next::Again => {}
                Next::Never => return,
            }
        }
    }

    fn next(&mut self, watch: &Watch) -> Next {
        if watch.link_is_down() {
            // A connection that waits in the queue would hang the front-end: refuse it.
            if let Source::Listen { file, .. } = &mut self.source {
                *file = None;
            }
            return pause(watch, None);
        }
        match &mut self.source {
            Source::Listen { path, mode, file } => match file {
                Some(file) => accept(file, watch),
                None => match SocketFile::listen(path, *mode) {
                    Ok(made) => {
                        *file = Some(made);
                        Next::Again
                    }
                    Err(error) => {
                        error!("cannot listen again: {error}");
                        pause(watch, Some(RECOVERY))
                    }
                },
            },
            Source::Connect {
                path,
                retry,
                is_first,
                was_refused,
            } => {
                if !std::mem::take(is_first) {
                    let next = pause(watch, Some(*retry));
                    if matches!(next, Next::Never) || watch.link_is_down() {
                        return next;
                    }
                }
                match connect_to(path) {
                    Ok(stream) => {
                        *was_refused = false;
                        Next::Connection(stream)
                    }
                    Err(error) => {
                        if !std::mem::replace(was_refused, true) {
                            info!("{}: {error}; trying again", path.display());
                        }
                        Next::Again
                    }
                }
            }
            Source::Fd(stream) => stream.take().map_or(Next::Never, Next::Connection),
        }
    }

    /// Whoever was connected to by us, or was given, keeps nobody out.
    fn patience(&self) -> Option<Duration> {
        matches!(self.source, Source::Listen { .. }).then_some(PATIENCE)
    }

    /// Serves a connection to its end; whether it was a session worth the name.
    fn serve(&self, front: &UnixStream, watch: &Watch) -> bool {
        let session = match Session::start(&self.offer, &self.controls) {
            Ok(session) => session,
            Err(error) => {
                error!("connection refused: {error}");
                return false;
            }
        };
        debug!("connection accepted");
        let end = catch_unwind(AssertUnwindSafe(|| {
            session.relay(front, &self.offer, watch, self.patience())
        }));
        let complaint = session.end();
        match &end {
            Ok(End::Unused) => debug!("front-end disconnected: {}", End::Unused),
            Ok(end @ (End::Closed | End::LinkDown | End::Stopped)) => {
                info!("front-end disconnected: {end}");
            }
            Ok(end @ End::Refused(_)) => {
                let complaint = complaint.unwrap_or_default();
                warn!("front-end disconnected: {end}: {complaint}");
            }
            Ok(end) => warn!("front-end disconnected: {end}"),
            Err(_) => error!("front-end disconnected: the session panicked"),
        }
        !matches!(end, Ok(End::Unused | End::Silent | End::LinkDown))
    }
}

/// One connection's daemon and rings.
struct Session {
    pairs: Arc<Pairs>,
    framework: Framework,
}

impl Session {
    fn start(
        offer: &Arc<Offer>,
        controls: &[Arc<dyn PairControl>],
    ) -> Result<Self, FrameworkError> {
        let pairs = Pairs::new(controls.to_vec(), offer.ring_size_max)
            .expect("the ring size was checked when the sessions were made");
        let pairs = Arc::new(pairs);
        let framework = Framework::start(offer, &pairs)?;
        Ok(Self { pairs, framework })
    }

    fn relay(
        &self,
        front: &UnixStream,
        offer: &Offer,
        watch: &Watch,
        patience: Option<Duration>,
    ) -> End {
        let rings = u32::try_from(self.pairs.ring_count()).unwrap_or(u32::MAX);
        let protocol = offer.protocol_features().bits();
        let rules = Rules::new(rings, offer.queue_num_unit, protocol);
        let relay = Relay {
            front,
            daemon: &self.framework.socket,
            rings,
            watch,
            patience,
            announce: &|frame| self.pairs.announce(frame),
        };
        relay.run(rules)
    }

    /// Lets the daemon finish, takes everything from the data threads, and only then unmaps the
    /// memory. Returns what the daemon had to complain about.
    fn end(mut self) -> Option<String> {
        let complaint = self.framework.finish();
        self.pairs.end();
        complaint
    }
}

fn accept(file: &SocketFile, watch: &Watch) -> Next {
    match watch.readable(file.as_fd()) {
        Ok(Wake::Stop) => return Next::Never,
        Ok(Wake::Link) => return Next::Again,
        Ok(Wake::Ready(_) | Wake::Timeout) => {}
        Err(error) => return fail("wait for a connection", error, watch),
    }
    match file.accept() {
        Ok(stream) => Next::Connection(stream),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Next::Again,
        Err(error) => fail("accept a connection", error, watch),
    }
}

fn fail(action: &str, error: std::io::Error, watch: &Watch) -> Next {
    error!("cannot {action}: {error}");
    pause(watch, Some(RECOVERY))
}

fn pause(watch: &Watch, time: Option<Duration>) -> Next {
    match watch.pause(time) {
        Ok(Wake::Stop) => Next::Never,
        Ok(_) => Next::Again,
        Err(error) => {
            debug!("wait failed: {error}");
            Next::Again
        }
    }
}

/// Checks that a descriptor from the command line is what it should be.
fn connected_stream(fd: OwnedFd) -> Result<UnixStream, EndpointError> {
    let is_unix = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
    let is_stream = sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
    if !(is_unix && is_stream && getpeername(&fd).is_ok()) {
        return Err(EndpointError::NotConnected);
    }
    Ok(fd.into())
}
