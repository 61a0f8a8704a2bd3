//! Vectored writes of our own bytes followed by guest memory.
#![allow(
    unsafe_code,
    reason = "writev needs the host addresses of guest memory"
)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::GuestSlice;

/// Most pieces one [`write_parts`] takes. The system's own limit is 1024 (`UIO_MAXIOV`), but an
/// array that long costs more to clear than a frame of so many pieces costs to copy.
pub const PARTS_MAX: usize = 64;

const EMPTY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// Writes `own` and then `guest` with one `writev`, as one frame on a tap or packet socket.
///
/// The guest may change its bytes while the kernel copies them; what is sent is then any mix of
/// old and new, which is the guest's own loss.
///
/// # Errors
/// `InvalidInput` for more than [`PARTS_MAX`] pieces, else the kernel's error.
pub fn write_parts(
    fd: BorrowedFd<'_>,
    own: &[&[u8]],
    guest: &[GuestSlice<'_>],
) -> io::Result<usize> {
    let count = own.len() + guest.len();
    let mut iov = [EMPTY; PARTS_MAX];
    let Some(iov) = iov.get_mut(..count) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (iov_own, iov_guest) = iov.split_at_mut(own.len());
    for (to, from) in iov_own.iter_mut().zip(own) {
        to.iov_base = from.as_ptr().cast_mut().cast();
        to.iov_len = from.len();
    }
    for (to, from) in iov_guest.iter_mut().zip(guest) {
        // Memory mapped by `backend-mmap` stays at its address for the life of the slice, which
        // outlives this call; the guard adds nothing to that.
        to.iov_base = from.ptr_guard().as_ptr().cast_mut().cast();
        to.iov_len = from.len();
    }
    let count = c_int::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: every entry describes memory that the borrows `own` and `guest` keep mapped for the
    // whole call; the kernel only reads it. `count` entries of `iov` are filled in.
    let written = unsafe { libc::writev(fd.as_raw_fd(), iov.as_ptr(), count) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn own_bytes_come_first_then_the_guests_in_order() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut a = *b"guest";
        let mut b = *b" memory";
        let guest = [GuestSlice::from(&mut a[..]), GuestSlice::from(&mut b[..])];
        let sent = write_parts(writer.as_fd(), &[b"ours, ", b"then "], &guest).unwrap();
        drop(writer);
        let mut got = String::new();
        reader.read_to_string(&mut got).unwrap();
        assert_eq!(got, "ours, then guest memory");
        assert_eq!(sent, got.len());
    }

    #[test]
    fn too_many_pieces_are_refused_and_nothing_is_written() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let parts = [&b"x"[..]; PARTS_MAX + 1];
        let err = write_parts(writer.as_fd(), &parts, &[]).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
        drop(writer);
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }
}
