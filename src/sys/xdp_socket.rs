//! An XDP socket with its memory and its four rings, for one queue of an interface.
//!
//! A received frame is lent where it lies, and its chunk goes back to the fill ring when the frame
//! was dropped. A frame to send is written into a chunk, which comes back by the completion ring.
//! Rings are as large as there are chunks for them, so that none can be full; the transmit ring is
//! twice as large, because the kernel takes a socket for writable while half of it is free.
//!
//! Source: `Documentation/networking/af_xdp.rst`; `net/xdp/xsk.c`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpOptionsFlags, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::umem::{UMEM_HEADROOM, Umem};
use super::xdp_ring::XdpRing;
use super::{Census, Frame};

/// How much memory a socket has, and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpShape {
    /// Chunks for frames that are received, a power of two.
    pub receiving: u32,
    /// Chunks for frames that are sent, a power of two.
    pub sending: u32,
    /// Bytes of a chunk, a power of two from 2048 to a page.
    pub chunk_len: u32,
}

/// A socket.
#[derive(Debug)]
pub struct XdpSocket {
    fd: OwnedFd,
    umem: Umem,
    fill: XdpRing<u64>,
    completion: XdpRing<u64>,
    rx: XdpRing<XdpDesc>,
    tx: XdpRing<XdpDesc>,
}

/// Something in the receive ring that is no frame of this socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Opens a socket that has nothing yet.
///
/// # Errors
/// `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` where the kernel has no XDP sockets.
pub fn xdp_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
}

impl XdpSocket {
    /// Gives a socket its memory and its rings. All chunks to receive are with the kernel.
    ///
    /// # Errors
    /// The kernel's: `ENOBUFS` where more memory would be locked than the process may,
    /// `EOPNOTSUPP` before Linux 5.4.
    pub fn new(fd: OwnedFd, shape: XdpShape) -> Result<Self, Errno> {
        let errno = |err| Errno::from_io_error(&err).unwrap_or(Errno::OPNOTSUPP);
        let XdpShape {
            receiving,
            sending,
            chunk_len,
        } = shape;
        let umem = Umem::new(receiving, sending, chunk_len).map_err(errno)?;
        let (addr, len) = umem.region();
        let registration = XdpUmemReg {
            addr,
            len,
            chunk_size: chunk_len,
            headroom: UMEM_HEADROOM,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&fd, registration)?;
        let to_send = sending.saturating_mul(2);
        set_xdp_umem_fill_ring_size(&fd, receiving)?;
        set_xdp_umem_completion_ring_size(&fd, sending)?;
        set_xdp_rx_ring_size(&fd, receiving)?;
        set_xdp_tx_ring_size(&fd, to_send)?;
        let at = xdp_mmap_offsets(&fd)?;
        let socket = fd.as_fd();
        let fill = XdpRing::map(socket, XDP_UMEM_PGOFF_FILL_RING, receiving, &at.fr);
        let completion = XdpRing::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, sending, &at.cr);
        let rx = XdpRing::map(socket, XDP_PGOFF_RX_RING, receiving, &at.rx);
        let tx = XdpRing::map(socket, XDP_PGOFF_TX_RING, to_send, &at.tx);
        let mut fill = fill.map_err(errno)?;
        for address in umem.addresses_to_receive() {
            fill.write(address);
        }
        fill.publish();
        Ok(Self {
            umem,
            fill,
            completion: completion.map_err(errno)?,
            rx: rx.map_err(errno)?,
            tx: tx.map_err(errno)?,
            fd,
        })
    }

    /// Binds to a queue of an interface. Frames are copied by the kernel if `is_copying`, else if
    /// the driver cannot do without. Returns whether they are not.
    ///
    /// # Errors
    /// `EBUSY` if the queue has a socket, `EINVAL` if there is no such queue, `ENODEV` without
    /// such an interface.
    pub fn bind(&self, index: u32, queue: u32, is_copying: bool) -> Result<bool, Errno> {
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_COPY, is_copying);
        bind(&self.fd, &SocketAddrXdp::new(flags, index, queue))?;
        let options = xdp_options(&self.fd)?;
        Ok(options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// The descriptor, which is readable while frames wait, and writable.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives the kernel the chunks of frames that were dropped.
    #[inline]
    pub fn refill(&mut self) {
        for _ in 0..self.umem.lent() {
            if let Some(address) = self.umem.take_back() {
                // There is a place for every chunk.
                self.fill.write(address);
            }
        }
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // Also an error says that the kernel has looked.
            let _ = self.ask();
        }
    }

    /// Takes the next frame that was received.
    ///
    /// # Errors
    /// What the ring says cannot be right; it was passed over.
    #[inline]
    pub fn receive(&mut self) -> Option<Result<Frame, Invalid>> {
        let desc = self.rx.read()?;
        Some(self.umem.lend(desc.addr, desc.len).ok_or(Invalid))
    }

    /// Ends a batch of [`receive`](Self::receive).
    #[inline]
    pub fn end_receive(&mut self) {
        self.rx.release();
    }

    /// Whether no frame waits.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.rx.is_empty()
    }

    /// Chunks that are lent, at the last refill.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.umem.lent()
    }

    /// Has `write` fill a chunk with a frame of `len` bytes, which leaves with the next
    /// [`kick`](Self::kick); `false` if no chunk is free.
    #[inline]
    pub fn send(&mut self, len: u32, write: impl FnOnce(&mut [u8])) -> bool {
        let Some(addr) = self.umem.compose(len as usize, write) else {
            return false;
        };
        let options = XdpDescOptions::empty();
        // There is a place for every chunk.
        self.tx.write(XdpDesc { addr, len, options })
    }

    /// Takes back the chunks of frames that were sent, and says how many bytes those had together.
    #[inline]
    pub fn reap(&mut self) -> u32 {
        let mut bytes: u32 = 0;
        while let Some(address) = self.completion.read() {
            bytes = bytes.saturating_add(self.umem.complete(address).unwrap_or(0));
        }
        self.completion.release();
        bytes
    }

    /// Whether a frame can be sent.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.umem.has_spare()
    }

    /// Shows the kernel the frames to send.
    #[inline]
    pub fn publish(&mut self) {
        self.tx.publish();
    }

    /// Frames that the kernel has not taken from the transmit ring.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.tx.unread()
    }

    /// Whether the kernel waits for [`kick`](Self::kick).
    #[must_use]
    pub fn needs_kick(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Has the kernel send, of which it does some per call.
    ///
    /// # Errors
    /// `EAGAIN` with more to send, `EBUSY` if the interface has dropped one, `ENOBUFS` if it has
    /// no room; `ENETDOWN` while it is down, `ENXIO` once it is gone.
    pub fn kick(&self) -> Result<(), Errno> {
        send(&self.fd, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Has the kernel look at the fill ring.
    ///
    /// # Errors
    /// `ENETDOWN` while the interface is down, `ENXIO` once it is gone.
    pub fn ask(&self) -> Result<(), Errno> {
        recv(&self.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT).map(drop)
    }

    /// What the kernel counted since the socket was opened.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counts(&self) -> Result<XdpStatistics, Errno> {
        xdp_statistics(&self.fd)
    }

    /// Counts the chunks by where they are.
    #[must_use]
    pub fn census(&self) -> Census {
        self.umem.census()
    }

    /// Closes the socket. What is left is the memory, in which frames may still be.
    #[must_use]
    pub fn close(self) -> Umem {
        self.umem
    }
}
