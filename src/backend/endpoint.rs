//! Where front-ends come from.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::socket_file::{SocketFileError, check_free};

/// How a connection to the front-end comes about.
#[derive(Debug)]
pub enum Endpoint {
    /// The front-end connects to a socket of ours.
    Listen {
        /// The socket's file.
        path: PathBuf,
        /// Its permissions; the process's umask decides when there are none.
        mode: Option<u32>,
    },
    /// The front-end listens, and the daemon connects again and again.
    Connect {
        /// The front-end's socket.
        path: PathBuf,
        /// Time between two attempts, and between the end of a connection and the next attempt.
        retry: Duration,
    },
    /// A connected socket, for one session.
    Fd(OwnedFd),
}

impl Endpoint {
    /// Finds out, without touching anything, whether the endpoint is somebody else's.
    ///
    /// # Errors
    /// It is.
    pub fn check(&self) -> Result<(), EndpointError> {
        match self {
            Self::Listen { path, .. } => Ok(check_free(path)?),
            Self::Connect { .. } | Self::Fd(_) => Ok(()),
        }
    }
}

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// There is no socket to listen at.
    #[error(transparent)]
    File(#[from] SocketFileError),
    /// The descriptor is not a connected unix stream socket.
    #[error("the given descriptor is not a connected unix stream socket")]
    NotConnected,
    /// The ring size is not a power of two up to 32768.
    #[error("ring size {0} is not a power of two up to 32768")]
    RingSize(u16),
    /// There is no queue pair, or more than the protocol can name.
    #[error("{0} queue pairs; 1 to 128 are possible")]
    PairCount(usize),
}
