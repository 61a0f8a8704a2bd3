//! Several messages to a socket in one system call.
#![allow(unsafe_code, reason = "sendmmsg takes arrays of pointers")]

use std::ffi::c_uint;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most messages that one [`send_messages`] takes.
pub const MESSAGES_MAX: usize = 64;

/// Sends the first [`MESSAGES_MAX`] of `messages`, in order and without waiting. Returns how many
/// were sent; what kept the next one from it is the error of the next call.
///
/// # Errors
/// The kernel's error for the first message.
pub fn send_messages<'a>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    // SAFETY: both are made of integers and of pointers that may be null.
    let mut parts: [libc::iovec; MESSAGES_MAX] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; MESSAGES_MAX] = unsafe { zeroed() };
    let mut count: c_uint = 0;
    for ((header, part), message) in headers.iter_mut().zip(&mut parts).zip(messages) {
        part.iov_base = message.as_ptr().cast_mut().cast();
        part.iov_len = message.len();
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: `count` headers are filled in. Each has one part, which describes memory that is
    // borrowed for longer than the call; the kernel only reads it.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn messages_arrive_one_by_one_and_in_order() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let messages = [&b"one"[..], b"two", b"three"];
        let sent = send_messages(ours.as_fd(), messages.into_iter()).unwrap();
        assert_eq!(sent, 3);
        let mut buffer = [0; 16];
        for message in messages {
            let len = theirs.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], message);
        }
    }

    #[test]
    fn what_does_not_fit_in_one_call_is_left() {
        let (ours, _theirs) = UnixDatagram::pair().unwrap();
        let sent = send_messages(ours.as_fd(), std::iter::repeat_n(&b"x"[..], 100)).unwrap();
        assert!(sent <= MESSAGES_MAX);
    }

    #[test]
    fn an_error_is_that_of_the_first_message() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        drop(theirs);
        assert!(send_messages(ours.as_fd(), [&b"x"[..]].into_iter()).is_err());
    }
}
