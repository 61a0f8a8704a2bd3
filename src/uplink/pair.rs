//! A test uplink: each queue is one end of a socket pair whose other end the test holds.
//!
//! Messages are those of a tap, a virtio-net header and a frame; so everything but the device is
//! real: readiness, a full queue, an end that goes away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::vnet_fd::VnetFd;
use super::{
    BUF_LEN, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink,
    UplinkCaps, UplinkQueue, UplinkStats,
};
use crate::sys::write_parts;
use crate::wire::VnetHdr;
use crate::wire::vnet_hdr::VNET_HDR_LEN;

/// Asks for room for many frames of 64 KiB; the system may give less, but at least three.
const SEND_BUFFER: usize = 8 << 20;

/// A device of socket pairs.
#[derive(Debug)]
pub struct Pair {
    queues: Vec<PairQueue>,
    caps: UplinkCaps,
}

/// The daemon's end of one queue.
#[derive(Debug)]
pub struct PairQueue {
    io: VnetFd,
    offloads: Arc<Mutex<Offloads>>,
    is_active: Arc<AtomicBool>,
}

/// The test's end of one queue.
#[derive(Debug)]
pub struct PairPeer {
    fd: OwnedFd,
    offloads: Arc<Mutex<Offloads>>,
    is_active: Arc<AtomicBool>,
}

impl Pair {
    /// Makes a device of `queues` queues and, in the same order, the other end of each.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(queues: usize) -> io::Result<(Self, Vec<PairPeer>)> {
        let made: Vec<_> = (0..queues)
            .map(|_| PairQueue::new())
            .collect::<Result<_, _>>()?;
        let (queues, peers): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let tx = Offloads {
            csum: true,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        };
        let caps = UplinkCaps {
            queues: queues.len(),
            tx,
            batches: false,
        };
        Ok((Self { queues, caps }, peers))
    }
}

impl Uplink for Pair {
    fn name(&self) -> String {
        "socket pair".to_owned()
    }

    fn caps(&self) -> UplinkCaps {
        self.caps
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}

impl PairQueue {
    /// Makes one queue and its other end.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<(Self, PairPeer)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        for fd in [&ours, &theirs] {
            set_socket_send_buffer_size(fd, SEND_BUFFER)?;
        }
        let offloads = Arc::new(Mutex::new(Offloads::default()));
        let is_active = Arc::new(AtomicBool::new(true));
        let queue = Self {
            io: VnetFd::new(ours),
            offloads: Arc::clone(&offloads),
            is_active: Arc::clone(&is_active),
        };
        let peer = PairPeer {
            fd: theirs,
            offloads,
            is_active,
        };
        Ok((queue, peer))
    }
}

impl UplinkQueue for PairQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.io.fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        self.io.recv_batch(pool, budget, out)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        self.io.send(frame)
    }

    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        *self.offloads.lock().unwrap_or_else(PoisonError::into_inner) = offloads;
        Ok(())
    }

    /// Only noted: with one queue there is nobody else to take the frames.
    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        self.is_active.store(is_active, Ordering::SeqCst);
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        self.io.stats()
    }
}

impl PairPeer {
    /// Hands a frame to the daemon.
    ///
    /// # Errors
    /// `WouldBlock` when the queue is full, `BrokenPipe` when the daemon's end is gone.
    pub fn inject(&self, vnet: &VnetHdr, frame: &[u8]) -> io::Result<()> {
        self.inject_raw(&[&vnet.encode(), frame])
    }

    /// Hands over any bytes as one message, to see how damage is taken.
    ///
    /// # Errors
    /// As [`inject`](Self::inject).
    pub fn inject_raw(&self, parts: &[&[u8]]) -> io::Result<()> {
        write_parts(self.fd.as_fd(), parts, &[]).map(drop)
    }

    /// Takes the next frame that the daemon sent; `None` if none comes within `timeout`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the daemon's end is gone, `InvalidData` for a message without header.
    pub fn next_sent(&self, timeout: Duration) -> io::Result<Option<(VnetHdr, Vec<u8>)>> {
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&timeout))?;
        let mut message = vec![0; BUF_LEN];
        match rustix::io::read(&self.fd, &mut message) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => message.truncate(len),
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let Some((hdr, frame)) = message.split_first_chunk::<VNET_HDR_LEN>() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(Some((VnetHdr::decode(hdr), frame.to_vec())))
    }

    /// Whether the daemon reads the queue, as it said last.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// The offloads that the daemon set last.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        *self.offloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
