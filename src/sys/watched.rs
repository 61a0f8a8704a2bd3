//! A descriptor in an epoll set that may be replaced by another one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::epoll::{EpollSet, Interest};

/// What an epoll set knows of one descriptor, if it knows one.
///
/// Masking changes the set only when the wish changes, so a masked descriptor that stays masked
/// costs no system call.
#[derive(Debug, Default)]
pub struct WatchedFd(Option<Watched>);

#[derive(Debug)]
struct Watched {
    /// A duplicate: its number is nobody else's as long as it is in the set.
    fd: OwnedFd,
    generation: u64,
    interest: Interest,
}

impl WatchedFd {
    /// Says what `set` is to report of `fd`, which is another descriptor whenever `generation` is
    /// another one. Errors are reported even when it is masked.
    ///
    /// # Errors
    /// The descriptor cannot be waited for, or no further one can be had.
    pub fn watch(
        &mut self,
        set: &EpollSet,
        token: u64,
        (fd, generation): (BorrowedFd<'_>, u64),
        wish: Interest,
    ) -> io::Result<()> {
        match &mut self.0 {
            Some(watched) if watched.generation == generation => {
                if watched.interest != wish {
                    set.modify(watched.fd.as_fd(), token, wish)?;
                    watched.interest = wish;
                }
            }
            _ => {
                self.forget(set);
                let fd = fd.try_clone_to_owned()?;
                set.add(fd.as_fd(), token, wish)?;
                self.0 = Some(Watched {
                    fd,
                    generation,
                    interest: wish,
                });
            }
        }
        Ok(())
    }

    /// Whether it is the descriptor of this generation.
    #[must_use]
    pub fn is_of(&self, generation: u64) -> bool {
        (self.0.as_ref()).is_some_and(|watched| watched.generation == generation)
    }

    /// Takes the descriptor out of the set for good.
    pub fn forget(&mut self, set: &EpollSet) {
        if let Some(watched) = self.0.take() {
            let _ = set.remove(watched.fd.as_fd());
        }
    }
}
