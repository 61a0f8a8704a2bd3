//! Descriptors that the parent process left open for us, named by number on the command line.
#![allow(
    unsafe_code,
    reason = "only the parent's word makes a number a descriptor of ours"
)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over the inherited descriptor `fd`, once.
///
/// A descriptor that survived `exec` has its close-on-exec flag clear, while everything this
/// program opens has it set; so that flag tells an inherited descriptor from one that somebody
/// here already owns. It is set on the way, which is why the same number cannot be taken twice.
///
/// # Errors
/// `InvalidInput` for standard input, output and error (0 to 2) and for a descriptor that is not
/// inherited; `EBADF` for a number that is not open.
pub fn take_inherited(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the borrow lasts for the two calls below, which fail with EBADF if nothing is open
    // under this number, and nobody else closes inherited descriptors.
    let inherited = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfd(inherited)?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fcntl_setfd(inherited, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the flag was clear, so no object of this program owns the descriptor, and from now
    // on it is set, so no second call gets here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn an_inherited_descriptor_is_taken_once() {
        let file = File::open("/dev/null").unwrap();
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let number = file.into_raw_fd();
        let taken = take_inherited(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert!(take_inherited(number).is_err(), "taken twice");
    }

    #[test]
    fn a_descriptor_of_our_own_and_standard_output_are_refused() {
        let file = File::open("/dev/null").unwrap();
        assert!(take_inherited(file.as_raw_fd()).is_err());
        assert!(take_inherited(1).is_err());
    }

    #[test]
    fn a_closed_number_is_bad() {
        let err = take_inherited(1_000_000).unwrap_err();
        assert_eq!(
            err.raw_os_error(),
            Some(rustix::io::Errno::BADF.raw_os_error())
        );
    }
}
