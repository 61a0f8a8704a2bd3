//! The file of a listening socket: made without harm to others, removed at the end.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use log::info;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Connections that may wait while one is served.
const BACKLOG: i32 = 4;

/// How often the lock of the directory is tried for. Another daemon's turn takes far less than all
/// the pauses together.
const LOCK_ATTEMPTS: u32 = 20;

/// Time between two such attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why there is no socket to listen at.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
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
}

/// A listening socket and its file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode, to know the file again.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Listens at `path`. A socket file that nobody listens at any more is replaced; one that is
    /// in use, or another file, is left alone.
    ///
    /// # Errors
    /// Says what stands in the way.
    pub(crate) fn listen(path: &Path, mode: Option<u32>) -> Result<Self, SocketFileError> {
        let io_error = |action| {
            let path = path.to_owned();
            move |error: Errno| SocketFileError::Io {
                action,
                path,
                source: error.into(),
            }
        };
        let address = address(path)?;
        // Two daemons that start at once must not take each other's new file for a stale one.
        let _turn = lock_directory_of(path);
        let socket = unix_socket().map_err(io_error("make a socket for"))?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_if_stale(path, &address)?;
                bind(&socket, &address).map_err(io_error("bind"))?;
            }
            result => result.map_err(io_error("bind"))?,
        }
        let identity = fs::symlink_metadata(path)
            .ok()
            .map(|meta| (meta.dev(), meta.ino()));
        let file = Self {
            listener: socket.into(),
            path: path.to_owned(),
            identity,
        };

        // Nobody can connect before `listen`, so nobody does with the wrong permissions.
        if let Some(mode) = mode {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|source| {
                SocketFileError::Io {
                    action: "set the mode of",
                    path: path.to_owned(),
                    source,
                }
            })?;
        }
        listen(&file.listener, BACKLOG).map_err(io_error("listen at"))?;
        Ok(file)
    }

    /// Takes a waiting connection; `WouldBlock` when there is none.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }
}

impl AsFd for SocketFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for SocketFile {
    /// Removes the file, unless it is somebody else's by now.
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| Some((meta.dev(), meta.ino())) == self.identity);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to a listening socket without waiting for it.
///
/// # Errors
/// `WouldBlock` when its queue is full, `ConnectionRefused` when nobody listens.
pub(crate) fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let socket = unix_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn remove_if_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketFileError> {
    if !is_stale(path, address)? {
        return Ok(());
    }
    info!("replacing {}, where nobody listens", path.display());
    fs::remove_file(path).map_err(replace_error(path))
}

/// Finds out, without touching anything, whether the path is free for [`SocketFile::listen`].
///
/// # Errors
/// It is somebody else's.
pub(crate) fn check_free(path: &Path) -> Result<(), SocketFileError> {
    is_stale(path, &address(path)?).map(drop)
}

/// Whether there is a socket file without an owner; `false` if there is nothing.
///
/// It asks by a datagram socket: a stream that listens there is of another type, which the kernel
/// says without a connection that its owner would take for a peer.
///
/// Source: `net/unix/af_unix.c`, `unix_find_bsd`.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> Result<bool, SocketFileError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(replace_error(path)(error)),
    };
    if !meta.file_type().is_socket() {
        return Err(SocketFileError::NotASocket {
            path: path.to_owned(),
        });
    }
    let asked = socket_of(SocketType::DGRAM).and_then(|probe| connect(&probe, address));
    match asked {
        Ok(()) | Err(Errno::PROTOTYPE) => Err(SocketFileError::InUse {
            path: path.to_owned(),
        }),
        Err(Errno::CONNREFUSED) => Ok(true),
        Err(error) => Err(replace_error(path)(error.into())),
    }
}

fn replace_error(path: &Path) -> impl FnOnce(io::Error) -> SocketFileError {
    let path = path.to_owned();
    |source| SocketFileError::Io {
        action: "replace",
        path,
        source,
    }
}

/// A lock that lasts as long as the file is open. Without one the probe alone has to do: the
/// directory may not be readable, and anybody who can read it can keep the lock for ever.
fn lock_directory_of(path: &Path) -> Option<File> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => sleep(LOCK_PAUSE),
            result => return result.ok().map(|()| directory),
        }
    }
    None
}

fn address(path: &Path) -> Result<SocketAddrUnix, SocketFileError> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => SocketFileError::TooLong {
            path: path.to_owned(),
        },
        error => SocketFileError::Io {
            action: "use",
            path: path.to_owned(),
            source: error.into(),
        },
    })
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    socket_of(SocketType::STREAM)
}

fn socket_of(kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, kind, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_socket_is_left_alone_and_a_stale_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");

        let live = UnixListener::bind(&path).unwrap();
        assert!(matches!(
            SocketFile::listen(&path, None),
            Err(SocketFileError::InUse { .. })
        ));
        assert!(UnixStream::connect(&path).is_ok());

        drop(live);
        let file = SocketFile::listen(&path, None).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        file.accept().unwrap();
    }

    #[test]
    fn a_live_socket_is_not_connected_to_by_who_finds_it_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        assert!(check_free(&path).is_ok());
        let live = SocketFile::listen(&path, None).unwrap();
        for found in [check_free(&path), SocketFile::listen(&path, None).map(drop)] {
            assert!(matches!(found, Err(SocketFileError::InUse { .. })));
        }
        let accepted = live.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(accepted, Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn live_socket_with_a_full_queue_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let live = SocketFile::listen(&path, None).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = connect_to(&path) {
            waiting.push(stream);
        }
        assert!(matches!(
            SocketFile::listen(&path, None),
            Err(SocketFileError::InUse { .. })
        ));
        drop(live);
    }

    #[test]
    fn other_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        fs::write(&path, "text").unwrap();
        assert!(matches!(
            SocketFile::listen(&path, None),
            Err(SocketFileError::NotASocket { .. })
        ));
        assert_eq!(fs::read(&path).unwrap(), b"text");
    }

    #[test]
    fn file_gets_its_mode_and_goes_with_the_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let file = SocketFile::listen(&path, Some(0o620)).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o620
        );
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn successors_file_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let old = SocketFile::listen(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let _successor = SocketFile::listen(&path, None).unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_lock_that_somebody_keeps_is_done_without() {
        let directory = tempfile::tempdir().unwrap();
        let held = File::open(directory.path()).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        assert!(SocketFile::listen(&directory.path().join("net.sock"), None).is_ok());
    }

    #[test]
    fn impossible_paths_are_named() {
        let long = PathBuf::from("/tmp").join("x".repeat(200));
        assert!(matches!(
            SocketFile::listen(&long, None),
            Err(SocketFileError::TooLong { .. })
        ));
        let lost = Path::new("/nonexistent/net.sock");
        assert!(matches!(
            SocketFile::listen(lost, None),
            Err(SocketFileError::Io { .. })
        ));
    }
}
