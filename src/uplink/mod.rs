//! The host's side of the device: where frames come from and go to.
//!
//! An [`Uplink`] is a host device with one or more queues; each queue is served by one data
//! thread, which owns it. Nothing here knows virtqueues or GRO.
//!
//! Waiting: the descriptor of a queue is meant for level-triggered `epoll`. It is readable while
//! frames wait and writable while frames are taken. When the device goes away at run time the
//! descriptor reports `EPOLLERR` or `EPOLLHUP`, whatever was asked for, and from then on every
//! call gives `Gone`; the owner must take the descriptor out of its set, or it is woken for ever.
//! A queue that can recover goes on with another descriptor (`fd_generation`) in place of that,
//! and is looked after while nobody reads (`look_after`).
//!
//! Nothing here blocks, and no call makes more system calls than its budget.

pub mod af_packet;
pub mod af_xdp;
pub mod fault;
pub mod generator;
pub mod if_name;
mod interface;
pub mod kinds;
mod link_events;
pub mod loopback;
pub mod null;
pub mod pair;
mod pool;
pub mod steer;
pub mod stream;
pub mod tap;
mod vnet_fd;

use std::io;
use std::os::fd::BorrowedFd;

pub use kinds::{Kind, OpenError, UplinkOptions};
pub use pool::{BUF_LEN, Frame, FramePool};

use crate::sys::GuestSlice;
use crate::wire::{RxMeta, VnetHdr};

/// Which offloads a guest accepts on frames towards it (rule TX-6); none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one flag for each offload of a tap"
)]
pub struct Offloads {
    /// Partial checksums.
    pub csum: bool,
    /// TCP over IPv4 segmentation.
    pub tso4: bool,
    /// TCP over IPv6 segmentation.
    pub tso6: bool,
    /// Segmentation of frames with CWR.
    pub ecn: bool,
    /// UDP segmentation; both families or none.
    pub uso: bool,
}

impl Offloads {
    /// Those of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            csum: self.csum & other.csum,
            tso4: self.tso4 & other.tso4,
            tso6: self.tso6 & other.tso6,
            ecn: self.ecn & other.ecn,
            uso: self.uso & other.uso,
        }
    }
}

/// What an uplink can do for frames from the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkCaps {
    /// Queues that can be served at once.
    pub queues: usize,
    /// Offloads the host takes over on transmit; the rest is done in front of the uplink.
    pub tx: Offloads,
    /// Whether frames are collected until [`UplinkQueue::flush`].
    pub batches: bool,
}

/// One received frame.
#[derive(Debug)]
pub struct RxFrame {
    /// The Ethernet frame.
    pub frame: Frame,
    /// What the host says about it.
    pub meta: RxMeta,
}

/// Why a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvEnd {
    /// As many frames as were asked for, those counted here included that were damaged and
    /// dropped; there may be more.
    Budget,
    /// Nothing is left at the moment.
    Empty,
    /// The pool has no buffer left.
    PoolEmpty,
    /// So much of the uplink's own ring is lent that the host would run out of it: frames that are
    /// held have to go first.
    RingLent,
}

/// One frame from the guest, on its way out.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Checked header.
    pub vnet: VnetHdr,
    /// Our copy of the first bytes of the frame, at least all headers or the whole frame.
    pub head: &'a [u8],
    /// The bytes behind `head`, still in guest memory.
    pub rest: &'a [GuestSlice<'a>],
}

/// Why a frame could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The uplink is full for the moment: keep the frame, wait until it is writable. A caller that
    /// got nothing through after such a wait lets a short time pass.
    #[error("the uplink is full")]
    Full,
    /// The host is short of memory, of which its descriptor knows nothing: keep the frame, let a
    /// short time pass.
    #[error("the host is short of memory")]
    NoMemory,
    /// This frame is refused; the next one may pass. Drop and count.
    #[error("the host refuses the frame: {0}")]
    Refused(#[source] io::Error),
    /// The interface is down, or the peer away; frames are dropped and counted until it is back.
    #[error("nobody is at the other end, or the interface is down")]
    Down,
    /// The uplink is gone for good.
    #[error("the uplink is gone: {0}")]
    Gone(#[source] io::Error),
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything has left.
    All,
    /// The host has no room for the rest, and the descriptor will say when it has.
    Partly,
}

/// Why receiving failed.
#[derive(Debug, thiserror::Error)]
pub enum RecvError {
    /// The interface is down, or the peer away; it may come back.
    #[error("nobody is at the other end, or the interface is down")]
    Down,
    /// One call failed; try again at the next readiness. Counted.
    #[error("receiving failed: {0}")]
    Failed(#[source] io::Error),
    /// The uplink is gone for good.
    #[error("the uplink is gone: {0}")]
    Gone(#[source] io::Error),
}

/// Counters of one uplink queue. Frames that the data path counts itself are not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkStats {
    /// Received frames cut by the host or shorter than their header.
    pub rx_truncated: u64,
    /// Receive calls that failed.
    pub rx_errors: u64,
    /// Frames that waited in a queue when it was taken out of its device's set.
    pub rx_discarded: u64,
    /// Frames that `send` took and that were lost on this side of the host: with a connection or an
    /// interface, or because the host refused them when their batch ended.
    pub tx_lost: u64,
    /// Times the connection was given up because what came over it cannot be right.
    pub rx_out_of_step: u64,
    /// Times a connection was made, where there are connections.
    pub connects: u64,
    /// Frames that the host dropped because the queue's ring was full.
    pub rx_ring_full: u64,
    /// Frames that the host dropped because they are longer than the queue's ring can take.
    pub rx_too_long: u64,
    /// Received frames whose checksum was left unfinished, where the host does not say so.
    pub rx_unfinished: u64,
    /// Frames that were dropped because too many had been steered to the same worker and waited.
    pub rx_steer_full: u64,
}

/// The queues of one kind of uplink, as [`Uplink::take_queues`] gives them out.
fn boxed<Q: UplinkQueue + 'static>(
    queues: impl IntoIterator<Item = Q>,
) -> Vec<Box<dyn UplinkQueue>> {
    let boxed = |queue| Box::new(queue) as Box<dyn UplinkQueue>;
    queues.into_iter().map(boxed).collect()
}

/// One queue of a host device, owned by one data thread.
pub trait UplinkQueue: Send {
    /// Descriptor that is readable when frames wait and writable when frames are taken.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Counts the descriptors that [`fd`](Self::fd) has given. A queue may change its descriptor
    /// in any call; the new one is watched before the next wait. The owner watches a duplicate, so
    /// the old one may be closed at once, but what it was open on lives on until then.
    fn fd_generation(&self) -> u64 {
        0
    }

    /// Called when the descriptor has reported something while nobody wants to read, which it may
    /// do once for each event only. `failed` says that it was an error or a hang-up: a queue that
    /// goes on has changed its descriptor afterwards, or it is called for ever.
    ///
    /// # Errors
    /// As of [`recv_batch`](Self::recv_batch).
    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        if failed {
            let removed = io::Error::new(io::ErrorKind::NotConnected, "the device was removed");
            return Err(RecvError::Gone(removed));
        }
        Ok(())
    }

    /// Whether there is somebody at the other end, which the guest sees as the state of its link.
    /// `None` if that is not known, or not to be seen. Only a queue that learns by itself when
    /// the other end is back may say `false`: the guest is not heard of in the meantime.
    fn carrier(&self) -> Option<bool> {
        None
    }

    /// Appends up to `budget` frames to `out`, each in a buffer of `pool`.
    ///
    /// # Errors
    /// Frames appended before the error stay in `out` and are valid.
    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError>;

    /// Sends one frame.
    ///
    /// # Errors
    /// The variant says whether the frame is to be kept ([`SendError::Full`],
    /// [`SendError::NoMemory`]) or dropped.
    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError>;

    /// Ends a batch: hands over what `send` took and kept.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::NoMemory`] if the descriptor cannot say when there is
    /// room: ask again after a while. After any other error nothing is kept.
    fn flush(&mut self) -> Result<Flushed, SendError> {
        Ok(Flushed::All)
    }

    /// Bytes of frames that `send` took and that are off our hands since the last call, sent or
    /// lost, without any header in front of them; they need not be whole frames. `None` for a queue
    /// that is done with a frame when `flush` returns.
    ///
    /// What may be on its way is limited by how these bytes come, so each must come once, and those
    /// that never will leave are to be told as well. A queue whose device is down, and that refuses
    /// frames, says `None` until it is up. One with another descriptor than before
    /// (`fd_generation`) has nothing on its way any more.
    fn take_completed(&mut self) -> Option<u32> {
        None
    }

    /// Tells the host which offloads the guest accepts on receive.
    ///
    /// # Errors
    /// The host refuses the combination or the device is gone.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()>;

    /// Says whether anybody will read the frames of this queue from now on. A device that spreads
    /// frames over its queues leaves out one that nobody reads; what waits in it is thrown away
    /// and counted. A queue that is left out still sends, and still reports the device's end.
    ///
    /// A queue is active when it is opened. A device may keep one that is not, so that a frame
    /// always has somewhere to go.
    ///
    /// # Errors
    /// The host refuses; the queue is what it was.
    fn set_active(&mut self, _is_active: bool) -> io::Result<()> {
        Ok(())
    }

    /// Frames that were taken from the host for this queue and wait to be received. They are lost,
    /// and counted, when the queue becomes inactive, so its owner receives them before.
    fn backlog(&self) -> usize {
        0
    }

    /// A second descriptor, readable when something else than frames is to be looked after, as a
    /// rule because the device may have changed; `None` for one that has none. It stays the same.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the events say when the device is down, up or gone. It is then not asked by
    /// [`look_after`](Self::look_after), and says itself what became of it.
    fn is_watched(&self) -> bool {
        self.events().is_some()
    }

    /// Reads the events and finds out what became of the device, which is then told by
    /// [`carrier`](Self::carrier). If another one took its place, the queue is attached to that
    /// and has another descriptor.
    fn follow_device(&mut self) {}

    /// Counters since the queue was opened.
    fn stats(&self) -> UplinkStats;
}

/// A host device.
pub trait Uplink: Send {
    /// What it is called in logs: kind and name.
    fn name(&self) -> String;

    /// What it can do.
    fn caps(&self) -> UplinkCaps;

    /// Hands out its queues, once.
    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>>;
}
