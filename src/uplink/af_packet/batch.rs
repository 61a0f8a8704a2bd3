//! Frames on their way out, collected for one system call.
//!
//! A frame is copied here behind its header and leaves with the others at the end of a drain. That
//! takes an eighth off the cost of a short frame. A long one costs more to copy than a system
//! call, so it does not come here.
//!
//! A socket does not tell when the interface has sent what the kernel took, so nothing is to be
//! learned from it: with the call, frames are off our hands.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::{MESSAGES_MAX, send_messages};
use crate::uplink::TxFrame;

/// Most bytes of a frame with its header that is collected.
const MESSAGE_MAX: usize = 2048;

/// Messages that have not left.
#[derive(Debug)]
pub(super) struct Batch {
    /// A slot of [`MESSAGE_MAX`] bytes for each message.
    bytes: Box<[u8]>,
    lens: [usize; MESSAGES_MAX],
    /// The first message that has not left, and the end of them.
    start: usize,
    end: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; MESSAGES_MAX * MESSAGE_MAX].into_boxed_slice(),
            lens: [0; MESSAGES_MAX],
            start: 0,
            end: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) const fn is_full(&self) -> bool {
        self.end == MESSAGES_MAX
    }

    /// Adds a frame behind its header; `false` if it is too long or there is no place.
    pub(super) fn add(&mut self, hdr: &[u8], frame: &TxFrame<'_>) -> bool {
        let rest: usize = frame.rest.iter().map(|slice| slice.len()).sum();
        let len = hdr.len() + frame.head.len() + rest;
        let slot = self.bytes.chunks_exact_mut(MESSAGE_MAX).nth(self.end);
        let Some(mut to) = slot.and_then(|slot| slot.get_mut(..len)) else {
            return false;
        };
        for part in [hdr, frame.head] {
            let (here, behind) = to.split_at_mut(part.len());
            here.copy_from_slice(part);
            to = behind;
        }
        for slice in frame.rest {
            let (here, behind) = to.split_at_mut(slice.len());
            slice.copy_to(here);
            to = behind;
        }
        self.lens[self.end] = len;
        self.end += 1;
        true
    }

    /// Sends as many as the kernel takes; returns whether any are left.
    ///
    /// # Errors
    /// That of the first message that has not left.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        if self.len() == 0 {
            return Ok(false);
        }
        let slots = self.bytes.chunks_exact(MESSAGE_MAX).zip(&self.lens);
        let waiting = slots.take(self.end).skip(self.start);
        let messages = waiting.map(|(slot, &len)| slot.get(..len).unwrap_or_default());
        let sent = send_messages(fd, messages)?;
        self.forget(sent.min(self.len()));
        Ok(self.len() > 0)
    }

    /// Gives up the first `count` messages.
    pub(super) fn forget(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.end {
            self.start = 0;
            self.end = 0;
        }
    }
}
