//! Why there can be no stream.

use std::io;
use std::os::fd::RawFd;

use crate::socket_file::SocketFileError;

/// Why a stream cannot be opened. A peer that is not there is none of the reasons.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum StreamError {
    /// A stream has one queue.
    #[error(
        "a stream has one queue, and {0} were asked for: expected uplink_queues = 1 beside them"
    )]
    Pairs(usize),
    /// A host name without address.
    #[error("{host} has no address")]
    Resolve { host: String, source: io::Error },
    /// The path cannot be listened at.
    #[error(transparent)]
    File(#[from] SocketFileError),
    /// The port cannot be listened at.
    #[error("cannot be reached at {address}")]
    Listen { address: String, source: io::Error },
    /// A descriptor named on the command line is not there.
    #[error("descriptor {fd} was not inherited")]
    NotInherited { fd: RawFd, source: io::Error },
    /// The descriptor is something else.
    #[error("the given descriptor is not a connected stream socket")]
    NotConnected,
    /// The process is short of something.
    #[error("no descriptor can be had")]
    Resources(#[from] io::Error),
}
