//! The `vhost-user-backend` daemon of one session, and the only way to it.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen,
    socket_with,
};
use vhost::vhost_user::Error::{Disconnected, PartialMessage};
use vhost::vhost_user::Listener;
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::device::{Device, Offer};
use super::pairs::Pairs;
use super::vring::making_rings_of;

/// How often another process may take the place on the private socket before we give up.
const ATTEMPTS: usize = 16;

/// Why no session could be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameworkError {
    #[error("cannot make the private socket: {0}")]
    Socket(#[from] io::Error),
    #[error("cannot make the daemon: {0}")]
    Daemon(DaemonError),
}

/// A daemon that waits for requests at the other end of `socket`.
pub(super) struct Framework {
    daemon: VhostUserDaemon<Arc<Device>>,
    pub(super) socket: UnixStream,
}

impl Framework {
    pub(super) fn start(offer: &Arc<Offer>, pairs: &Arc<Pairs>) -> Result<Self, FrameworkError> {
        let device = Arc::new(Device::new(Arc::clone(offer), Arc::clone(pairs)));
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let new = || VhostUserDaemon::new("vhost-user".to_owned(), device, memory);
        let mut daemon = making_rings_of(pairs, new).map_err(FrameworkError::Daemon)?;

        let (listener, socket) = private_connection()?;
        daemon
            .start(&mut Listener::from(listener))
            .map_err(FrameworkError::Daemon)?;
        Ok(Self { daemon, socket })
    }

    /// Waits until the daemon has handled what it was sent, and says why it has ended. It keeps
    /// its mappings of the guest's memory until it is dropped.
    pub(super) fn finish(&mut self) -> Option<String> {
        // Fails only when the daemon has closed the connection.
        let _ = self.socket.shutdown(Shutdown::Write);
        match self.daemon.wait() {
            // Nothing more to read: the ordinary end.
            Err(DaemonError::HandleRequest(Disconnected | PartialMessage)) | Ok(()) => None,
            Err(DaemonError::WaitDaemon(_)) => Some("the daemon panicked".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// A listener with one waiting connection, and the other end of that.
///
/// The daemon can only be reached through a listener, and any process in this network namespace
/// could connect to its abstract name. So it has room for exactly one waiting connection: if ours
/// is in, the daemon accepts ours; if it is not, somebody else was faster and another name is
/// tried.
fn private_connection() -> io::Result<(UnixListener, UnixStream)> {
    for _ in 0..ATTEMPTS {
        let listener = unix_socket(SocketFlags::CLOEXEC)?;
        // Without a name the kernel picks a free abstract one.
        bind(&listener, &SocketAddrUnix::new_unnamed())?;
        listen(&listener, 0)?;
        let socket = unix_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        match connect(&socket, &getsockname(&listener)?) {
            Ok(()) => return Ok((listener.into(), socket.into())),
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "others keep connecting to it",
    ))
}

fn unix_socket(flags: SocketFlags) -> io::Result<std::os::fd::OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn only_our_connection_can_be_accepted() {
        let (listener, mut socket) = private_connection().unwrap();
        let stranger = unix_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
        let address = getsockname(&listener).unwrap();
        assert_eq!(connect(&stranger, &address), Err(Errno::AGAIN));

        socket.write_all(b"x").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut byte = [0];
        accepted.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}
