//! Where connections to the peer come from.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::sockopt;

use super::address::StreamAddress;
use super::error::StreamError;
use crate::socket_file::SocketFile;

/// Where connections come from.
#[derive(Debug)]
pub(super) enum Origin {
    /// The peer listens at a path.
    Unix(PathBuf),
    /// The peer listens at one of these, tried in turn.
    Tcp(Vec<SocketAddr>, usize),
    /// We listen at a path.
    UnixListener(SocketFile),
    /// We listen at a port.
    TcpListener(TcpListener),
    /// It was given to us.
    Given,
}

impl Origin {
    /// What peers come to.
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::UnixListener(listener) => Some(listener.as_fd()),
            Self::TcpListener(listener) => Some(listener.as_fd()),
            Self::Unix(_) | Self::Tcp(..) | Self::Given => None,
        }
    }

    /// Takes a waiting peer; `WouldBlock` when there is none.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::UnixListener(listener) => {
                let stream = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            Self::TcpListener(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                set_tcp_options(stream.as_fd())?;
                Ok(stream.into())
            }
            Self::Unix(_) | Self::Tcp(..) | Self::Given => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Listens at the first of the addresses that can be had.
pub(super) fn listener_at(
    address: &StreamAddress,
    addresses: &[SocketAddr],
) -> Result<TcpListener, StreamError> {
    let listener = TcpListener::bind(addresses).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| StreamError::Listen {
        address: address.to_string(),
        source,
    })
}

pub(super) fn set_tcp_options(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Batches are made here; the kernel need not wait for more.
    sockopt::set_tcp_nodelay(socket, true)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}
