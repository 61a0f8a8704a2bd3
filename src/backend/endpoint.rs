//! Where front-ends come from.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

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

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Another process accepts connections there.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The socket's file.
        path: PathBuf,
    },
    /// There is a file of another kind.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error("{} is too long for the path of a socket", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The socket cannot be made, bound or given its permissions.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The socket's file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
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
