//! A socket on a queue of an interface, and the program that leads frames to it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use log::{info, warn};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::net::xdp::XdpStatistics;

use super::error::AfXdpError;
use super::interface::Interface;
use super::redirect::Redirect;
use crate::sys::bpf::XdpPlace;
use crate::sys::{NetDevice, Umem, XdpShape, XdpSocket, xdp_socket};

/// Room for frames that the kernel copies on their way out.
const SEND_BUFFER: usize = 8 << 20;
/// A socket that was closed is taken off its queue a little later, so a program that is started
/// again may find itself there.
const BUSY_RETRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// A bound socket.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) socket: XdpSocket,
    /// Keeps the program at the interface.
    redirect: Arc<Redirect>,
    pub(super) shape: XdpShape,
    pub(super) is_zero_copy: bool,
}

/// Frames that the kernel dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) ring_full: u64,
    pub(super) too_long: u64,
    /// Addresses of ours that the kernel did not accept, of which there should be none.
    pub(super) rx_refused: u64,
    pub(super) tx_refused: u64,
}

impl Port {
    /// Attaches to queue `queue` of the interface `index`; `events` is any socket.
    pub(super) fn attach(
        interface: &Interface,
        events: BorrowedFd<'_>,
        (index, state): (u32, NetDevice),
        queue: u32,
        is_patient: bool,
    ) -> Result<Self, AfXdpError> {
        let name = interface.name();
        let shape = interface.shape(state.mtu)?;
        let socket = xdp_socket().map_err(AfXdpError::no_socket)?;
        // More than the system's limit needs a capability; without it the limit has to do.
        if set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_err() {
            let _ = set_socket_send_buffer_size(&socket, SEND_BUFFER);
        }
        let socket =
            XdpSocket::new(socket, shape).map_err(|errno| no_memory(name, shape, errno))?;
        // Not before there is memory: a driver may stop for a moment when it gets a program.
        let redirect = interface.redirect(events, index)?;
        let is_copying = redirect.place() == XdpPlace::Stack;
        let mut retries = if is_patient { BUSY_RETRIES } else { 0 };
        let is_zero_copy = loop {
            match socket.bind(index, queue, is_copying) {
                Ok(is_zero_copy) => break is_zero_copy,
                Err(Errno::BUSY) if retries > 0 => {
                    retries -= 1;
                    sleep(BUSY_PAUSE);
                }
                Err(errno) => return Err(not_bound(interface, queue, errno)),
            }
        };
        redirect.lead(queue, socket.fd())?;
        let place = match redirect.place() {
            XdpPlace::Driver => "native",
            XdpPlace::Stack => "generic",
        };
        let how = if is_zero_copy { "zero-copy" } else { "copying" };
        info!("queue {queue} of {name} is attached to: {place}, {how}");
        Ok(Self {
            socket,
            redirect,
            shape,
            is_zero_copy,
        })
    }

    pub(super) fn index(&self) -> u32 {
        self.redirect.index()
    }

    pub(super) fn has_unfinished(&self) -> bool {
        self.redirect.has_unfinished()
    }

    /// Whether the interface is there still.
    pub(super) fn is_bound(&self) -> bool {
        !matches!(self.socket.ask(), Err(Errno::NXIO))
    }

    /// Closes the socket of an interface that is gone, and takes the program off once all queues
    /// have. What is left is the memory.
    pub(super) fn let_go(self, interface: &Interface) -> Umem {
        interface.forget(&self.redirect);
        self.socket.close()
    }

    /// Frames that the kernel dropped since the socket was opened.
    pub(super) fn losses(&self) -> Losses {
        match self.socket.counts() {
            Ok(counts) => Losses::from_kernel(&counts, self.is_zero_copy),
            Err(errno) => {
                warn!("the kernel does not say what it dropped: {errno}");
                Losses::default()
            }
        }
    }
}

impl Losses {
    /// A frame that is copied and finds no chunk is counted as dropped, and the fill ring as empty;
    /// a driver that does not copy finds that without a frame being lost.
    ///
    /// Source: `net/xdp/xsk.c`, `__xsk_rcv`, `xsk_rcv_check`; `xsk_buff_pool.c`, `__xp_alloc`.
    fn from_kernel(counts: &XdpStatistics, is_zero_copy: bool) -> Self {
        let empty = counts.rx_fill_ring_empty_descs.unwrap_or(0);
        let no_chunk = if is_zero_copy { 0 } else { empty };
        Self {
            ring_full: counts.rx_ring_full.unwrap_or(0) + no_chunk.min(counts.rx_dropped),
            too_long: counts.rx_dropped.saturating_sub(no_chunk),
            rx_refused: counts.rx_invalid_descs,
            tx_refused: counts.tx_invalid_descs,
        }
    }
}

impl std::ops::AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.ring_full += other.ring_full;
        self.too_long += other.too_long;
        self.rx_refused += other.rx_refused;
        self.tx_refused += other.tx_refused;
    }
}

/// Source: `net/xdp/xdp_umem.c`, `xdp_umem_account_pages`.
fn no_memory(name: &str, shape: XdpShape, errno: Errno) -> AfXdpError {
    if errno != Errno::NOBUFS {
        return AfXdpError::setup("give a socket its memory", name, "CAP_NET_RAW")(errno.into());
    }
    let bytes = (shape.receiving as usize + shape.sending as usize) * shape.chunk_len as usize;
    AfXdpError::LockedMemory {
        name: name.to_owned(),
        kib: bytes / 1024,
        source: errno.into(),
    }
}

fn not_bound(interface: &Interface, queue: u32, errno: Errno) -> AfXdpError {
    let name = interface.name();
    match errno {
        Errno::BUSY => AfXdpError::QueueBusy {
            name: name.to_owned(),
            queue,
            source: errno.into(),
        },
        Errno::INVAL => AfXdpError::Queues {
            name: name.to_owned(),
            found: queue as usize,
            wanted: interface.queues(),
        },
        errno => AfXdpError::setup("bind a socket", name, "CAP_NET_RAW")(errno.into()),
    }
}
