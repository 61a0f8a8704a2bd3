//! A stream socket as uplink: frames behind their lengths, as of QEMU's `-netdev stream` and passt.
//!
//! It needs no privilege. There is one queue, and nothing is said about a frame: the engine checks
//! every checksum, and frames come here finished. The peer may come and go (see
//! `connection`); while it is away frames from the guest are dropped and counted, and unless that
//! is turned off the guest sees a link without carrier. A peer that never was there is not missed:
//! a guest may be started before it.
//!
//! One read brings many frames, which are copied into pool buffers; frames from the guest are
//! collected and written with one call for each batch. The memory for both is bounded. A peer that
//! does not read makes the guest wait, not us.
//!
//! Nothing can be told about a stream in which a length is wrong, so that is its end (`framing`).
//!
//! Who connects while another peer is served is refused at once (`door`): it would wait without
//! knowing, and be taken later with frames of a time that is over.
//!
//! While no guest is there, what the peer sends is thrown away and counted, as by a card that is
//! down; so nobody at the other end is held up.

mod address;
mod backoff;
mod connection;
mod door;
mod error;
mod framing;
mod options;
mod origin;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use log::warn;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

pub use address::{AddressFault, Place, StreamAddress};
pub use error::StreamError;
pub use options::StreamOptions;

use self::connection::{Connection, Missing};
use self::framing::{FRAME_MAX, Incoming, Outgoing};
use super::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink,
    UplinkCaps, UplinkQueue, UplinkStats,
};
use crate::wire::RxMeta;

/// Where a frame starts in a pool buffer: its IP header is then on a 16-byte boundary.
const FRAME_AT: usize = 18;

/// Reads of one turn while frames are thrown away.
const DISCARDS: usize = 16;

/// A stream socket, or the way to it.
#[derive(Debug)]
pub struct Stream {
    name: String,
    queue: Option<StreamQueue>,
}

impl Stream {
    /// Prepares for the peer at `address`; with `shows_link` the guest sees when it goes away.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn open(address: &StreamAddress, shows_link: bool) -> Result<Self, StreamError> {
        let queue = StreamQueue::new(Connection::open(address)?, shows_link);
        Ok(Self {
            name: format!("stream {address}"),
            queue: Some(queue),
        })
    }

    /// Takes over a connected socket, for as long as it lasts.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn given(socket: OwnedFd) -> Result<Self, StreamError> {
        Ok(Self {
            name: "stream".to_owned(),
            queue: Some(StreamQueue::new(Connection::given(socket)?, false)),
        })
    }
}

impl Uplink for Stream {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn caps(&self) -> UplinkCaps {
        UplinkCaps {
            queues: 1,
            tx: Offloads::default(),
            batches: true,
        }
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queue.take())
    }
}

/// The queue of a stream.
#[derive(Debug)]
pub struct StreamQueue {
    connection: Connection,
    incoming: Incoming,
    outgoing: Outgoing,
    shows_link: bool,
    is_active: bool,
    stats: UplinkStats,
}

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// All the room was filled, so there may be more.
    Full,
    /// Something, and now there is nothing left.
    Last,
    /// Nothing at the moment.
    Nothing,
}

impl StreamQueue {
    fn new(connection: Connection, shows_link: bool) -> Self {
        Self {
            connection,
            incoming: Incoming::new(),
            outgoing: Outgoing::new(),
            shows_link,
            is_active: true,
            stats: UplinkStats::default(),
        }
    }

    /// Reads as much as there is room for.
    fn read(&mut self) -> Result<Read, RecvError> {
        let socket = self.connection.socket().map_err(recv_error)?;
        let room = self.incoming.spare();
        let room_len = room.len();
        match recv(socket, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                self.lose(&"the peer has hung up");
                Err(self.missing())
            }
            Ok((_, len)) => {
                self.incoming.filled(len);
                Ok(if len == room_len {
                    Read::Full
                } else {
                    Read::Last
                })
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Read::Nothing),
            Err(errno) => {
                self.lose(&errno);
                Err(self.missing())
            }
        }
    }

    /// Cuts one frame off what was read and hands it to `take`; says whether there was one.
    fn cut(&mut self, take: impl FnOnce(&[u8])) -> Result<bool, RecvError> {
        match self.incoming.next() {
            Ok(Some(frame)) => {
                take(frame);
                self.connection.proved_good();
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                warn!("out of step with the peer: {error}");
                self.stats.rx_out_of_step += 1;
                self.incoming.clear();
                self.lose(&error);
                Err(self.missing())
            }
        }
    }

    /// Throws away and counts what has come for nobody.
    fn discard(&mut self) -> Result<(), RecvError> {
        let mut read = Read::Full;
        for _ in 0..DISCARDS {
            while self.cut(|_| ())? {
                self.stats.rx_discarded += 1;
            }
            if read != Read::Full {
                return Ok(());
            }
            read = self.read()?;
        }
        Ok(())
    }

    /// Writes what waits; says whether all of it has left.
    fn write(&mut self) -> Result<Flushed, SendError> {
        while !self.outgoing.waiting().is_empty() {
            let socket = match self.connection.socket() {
                Ok(socket) => socket,
                Err(missing) => return Err(send_error(missing)),
            };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(socket, self.outgoing.waiting(), flags) {
                Ok(len) => self.outgoing.wrote(len),
                Err(Errno::AGAIN) => return Ok(Flushed::Partly),
                Err(Errno::NOBUFS | Errno::NOMEM) => return Err(SendError::NoMemory),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    // What the peer has sent before it went is still to be read.
                    self.stats.tx_lost += self.outgoing.clear();
                    log::debug!("the peer takes no frames any more: {errno}");
                    self.connection.end();
                    return Err(SendError::Down);
                }
            }
        }
        Ok(Flushed::All)
    }

    /// Gives the connection up, with all that belongs to it.
    fn lose(&mut self, why: &dyn std::fmt::Display) {
        if self.incoming.is_within_frame() {
            self.stats.rx_truncated += 1;
        }
        self.incoming.clear();
        self.stats.tx_lost += self.outgoing.clear();
        self.connection.lose(why);
    }

    /// Why there is no connection.
    fn missing(&mut self) -> RecvError {
        match self.connection.socket() {
            Err(missing) => recv_error(missing),
            Ok(_) => RecvError::Down,
        }
    }
}

impl UplinkQueue for StreamQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.connection.fd()
    }

    fn fd_generation(&self) -> u64 {
        self.connection.generation()
    }

    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        let discarded = if self.is_active {
            Ok(())
        } else {
            self.discard()
        };
        if failed && discarded.is_ok() {
            self.connection.end();
        }
        discarded?;
        self.connection.socket().map(drop).map_err(recv_error)
    }

    fn carrier(&self) -> Option<bool> {
        let was_there = self.connection.made() > 0;
        (self.shows_link && was_there).then(|| self.connection.is_up())
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        let mut left = budget;
        let mut read = Read::Full;
        loop {
            while left > 0 {
                let Some(mut buffer) = pool.take() else {
                    return Ok(RecvEnd::PoolEmpty);
                };
                let is_frame = self.cut(|frame| {
                    let end = FRAME_AT + frame.len();
                    if let Some(room) = buffer.spare_mut().get_mut(FRAME_AT..end) {
                        room.copy_from_slice(frame);
                    }
                    buffer.set_range(FRAME_AT, end);
                })?;
                if !is_frame {
                    break;
                }
                left -= 1;
                out.push(RxFrame {
                    frame: buffer,
                    meta: RxMeta::default(),
                });
            }
            if left == 0 {
                return Ok(RecvEnd::Budget);
            }
            if read != Read::Full {
                return Ok(RecvEnd::Empty);
            }
            read = self.read()?;
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        self.connection.socket().map_err(send_error)?;
        if self.connection.is_ending() {
            return Err(SendError::Down);
        }
        let rest: usize = frame.rest.iter().map(|slice| slice.len()).sum();
        if frame.head.len() + rest > FRAME_MAX {
            return Err(SendError::Refused(Errno::MSGSIZE.into()));
        }
        if self.outgoing.push(frame.head, frame.rest) {
            return Ok(());
        }
        self.write()?;
        if self.outgoing.push(frame.head, frame.rest) {
            return Ok(());
        }
        Err(SendError::Full)
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        self.write()
    }

    fn take_completed(&mut self) -> Option<u32> {
        Some(self.outgoing.take_left())
    }

    /// Nothing is taken over for the guest, so there is nothing to set.
    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        self.is_active = is_active;
        if !is_active {
            // Whatever came of the connection is seen by the next look at it.
            let _ = self.discard();
        }
        Ok(())
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.connection.door()
    }

    /// They tell of further peers only.
    fn is_watched(&self) -> bool {
        false
    }

    fn follow_device(&mut self) {
        self.connection.refuse_others();
    }

    fn stats(&self) -> UplinkStats {
        UplinkStats {
            connects: self.connection.made(),
            ..self.stats
        }
    }
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection has ended")
}

fn recv_error(missing: Missing) -> RecvError {
    match missing {
        Missing::Now => RecvError::Down,
        Missing::ForGood => RecvError::Gone(over()),
    }
}

fn send_error(missing: Missing) -> SendError {
    match missing {
        Missing::Now => SendError::Down,
        Missing::ForGood => SendError::Gone(over()),
    }
}
