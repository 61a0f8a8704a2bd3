//! Where connections come from: claimed at the start, and asked for the next one ever after.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use log::{Level, debug, error, info, log};
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};

use super::endpoint::{Endpoint, EndpointError};
use super::watch::{Wake, Watch};
use crate::socket_file::{SocketFile, connect_to};

/// Time to wait before trying again what failed for want of resources.
const RECOVERY: Duration = Duration::from_secs(1);

/// How long a front-end that has connected may keep silent: one that does keeps others out.
const PATIENCE: Duration = Duration::from_secs(5);

/// An endpoint that is ours. Front-ends can connect from now on, and wait until they are served.
#[derive(Debug)]
pub struct Entrance {
    source: Source,
}

/// Where the next connection comes from.
#[derive(Debug)]
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
pub(super) enum Next {
    Connection(UnixStream),
    /// Look at the link again.
    Again,
    /// There will be no further one.
    Never,
}

impl Entrance {
    /// Claims the endpoint. Who fails here has changed nothing.
    ///
    /// # Errors
    /// When the socket cannot be made, or belongs to somebody else.
    pub fn claim(endpoint: Endpoint) -> Result<Self, EndpointError> {
        let source = match endpoint {
            Endpoint::Listen { path, mode } => {
                let file = Some(SocketFile::listen(&path, mode)?);
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
        Ok(Self { source })
    }

    /// Says where front-ends are awaited, once there is somebody to serve them.
    pub(super) fn announce(&self) {
        if let Source::Listen { path, .. } = &self.source {
            info!("listening at {}", path.display());
        }
    }

    /// Waits for the next connection, a change of the link or the end.
    pub(super) fn next(&mut self, watch: &Watch) -> Next {
        if watch.link_is_down() {
            // A connection that waits in the queue would hang the front-end: refuse it.
            if let Source::Listen { path, file, .. } = &mut self.source
                && file.take().is_some()
            {
                let path = path.display();
                info!("the link is down: nothing listens at {path} until it is up");
            }
            return pause(watch, None);
        }
        match &mut self.source {
            Source::Listen { path, mode, file } => match file {
                Some(file) => accept(file, watch),
                None => match SocketFile::listen(path, *mode) {
                    Ok(made) => {
                        info!("listening at {} again", path.display());
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
                            let level = level_of(&error);
                            log!(level, "{}: {error}; trying again", path.display());
                        }
                        Next::Again
                    }
                }
            }
            Source::Fd(stream) => stream.take().map_or(Next::Never, Next::Connection),
        }
    }

    /// Whoever was connected to by us, or was given, keeps nobody out.
    pub(super) fn patience(&self) -> Option<Duration> {
        matches!(self.source, Source::Listen { .. }).then_some(PATIENCE)
    }
}

/// A front-end that is not there yet is what a client waits for; anything else is for the operator.
fn level_of(error: &io::Error) -> Level {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Level::Info,
        _ => Level::Warn,
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
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Again,
        Err(error) => fail("accept a connection", error, watch),
    }
}

fn fail(action: &str, error: io::Error, watch: &Watch) -> Next {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_that_is_not_there_yet_is_no_warning_and_a_forbidden_one_is() {
        let level = |kind: io::ErrorKind| level_of(&kind.into());
        assert_eq!(level(io::ErrorKind::NotFound), Level::Info);
        assert_eq!(level(io::ErrorKind::ConnectionRefused), Level::Info);
        assert_eq!(level(io::ErrorKind::PermissionDenied), Level::Warn);
    }
}
