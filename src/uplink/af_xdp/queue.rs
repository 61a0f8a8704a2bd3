//! One queue of an attached interface: frames out of its receive ring, and into its transmit ring.
//!
//! **Who has a frame.** A received frame is lent to the engine where it lies, and its chunk goes
//! back into the fill ring at the first batch after it was dropped. Frames that are held stand in
//! nobody's way, as chunks come back in any order. When half of them are lent, nothing more is
//! read until held frames were let go ([`RecvEnd::RingLent`]); the kernel has the other half.
//!
//! **Sending.** Frames are copied into chunks of their own. A batch is shown to the kernel at its
//! end and the kernel asked to send for as long as it makes progress: it takes a few tens of frames
//! per call where it copies. What is left then stays in the ring and leaves first.

mod follow;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use log::warn;
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::error::AfXdpError;
use super::interface::Interface;
use super::outgoing::{ETH_HDR_LEN, TAG_LEN, tags, write};
use super::port::{Losses, Port};
use super::unfinished::Unfinished;
use super::watch::Watch;
use crate::sys::{Census, Invalid, Umem};
use crate::uplink::interface::Carrier;
use crate::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
    UplinkStats,
};
use crate::wire::RxMeta;
use crate::wire::vnet_hdr::GSO_NONE;

/// Most calls that a batch is worth.
const KICKS_MAX: usize = 64;

/// A queue of an interface.
#[derive(Debug)]
pub struct AfXdpQueue {
    interface: Arc<Interface>,
    number: u32,
    watch: Watch,
    /// `None` while there is no interface that can be attached to.
    port: Option<Port>,
    /// The descriptor in the meantime: never readable, never writable.
    nothing: OwnedFd,
    generation: u64,
    carrier: Carrier,
    mtu: usize,
    unfinished: Unfinished,
    /// Frames were written to the transmit ring that the kernel has not been shown.
    is_unpublished: bool,
    /// Bytes that were sent and that nobody has asked for.
    completed: u32,
    /// Memory in which frames are still lent.
    retired: Vec<Umem>,
    is_active: bool,
    stats: UplinkStats,
    /// What ports lost that are gone.
    losses: Losses,
}

impl AfXdpQueue {
    /// Attaches to the queue `number`.
    pub(super) fn open(interface: &Arc<Interface>, number: u32) -> Result<Self, AfXdpError> {
        let setup = |step| AfXdpError::setup(step, interface.name(), "CAP_NET_ADMIN");
        // First of all, so that no change goes unseen.
        let watch = Watch::new().map_err(setup("be told of changes"))?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let nothing = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| setup("have a descriptor on nothing")(errno.into()))?;
        let found = interface.find(watch.socket(), None)?;
        let port = Port::attach(interface, watch.socket(), found, number, true)?;
        Ok(Self {
            unfinished: Unfinished::new(port.has_unfinished()),
            port: Some(port),
            nothing,
            interface: Arc::clone(interface),
            number,
            watch,
            generation: 0,
            carrier: Carrier::new(),
            mtu: found.1.mtu,
            is_unpublished: false,
            completed: 0,
            retired: Vec::new(),
            is_active: true,
            stats: UplinkStats::default(),
            losses: Losses::default(),
        })
    }

    /// Counts the chunks of the queue by where they are; none while it is not attached.
    #[must_use]
    pub fn census(&self) -> Census {
        let socket = self.port.as_ref().map(|port| port.socket.census());
        socket.unwrap_or_default()
    }

    /// Takes back what was sent.
    fn reap(&mut self) {
        let bytes = self.port.as_mut().map_or(0, |port| port.socket.reap());
        self.completed = self.completed.saturating_add(bytes);
    }

    /// Throws away and counts what waits.
    fn discard(&mut self) {
        let Some(Port { socket, .. }) = &mut self.port else {
            return;
        };
        while socket.receive().is_some() {
            self.stats.rx_discarded += 1;
        }
        socket.end_receive();
        socket.refill();
    }

    /// Whether a frame is too long for the interface.
    fn is_too_long(&self, len: usize, head: &[u8]) -> bool {
        let most = self.mtu.min(self.longest()) + ETH_HDR_LEN;
        len > most && len > most + TAG_LEN * tags(head)
    }
}

impl UplinkQueue for AfXdpQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        (self.port.as_ref()).map_or(self.nothing.as_fd(), |port| port.socket.fd())
    }

    fn fd_generation(&self) -> u64 {
        self.generation
    }

    /// The end of the interface is followed by its events.
    fn look_after(&mut self, _failed: bool) -> Result<(), RecvError> {
        if !self.is_active {
            self.discard();
        }
        Ok(())
    }

    fn carrier(&self) -> Option<bool> {
        let shows_link = self.interface.config().shows_link;
        shows_link.then_some(self.carrier.is_up())
    }

    fn recv_batch(
        &mut self,
        _pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        let Some(Port { socket, shape, .. }) = &mut self.port else {
            return Ok(RecvEnd::Empty);
        };
        socket.refill();
        let most = shape.receiving as usize / 2;
        let mut room = most.saturating_sub(socket.lent());
        let mut end = RecvEnd::Budget;
        for _ in 0..budget {
            if room == 0 {
                end = match socket.is_empty() {
                    true => RecvEnd::Empty,
                    false => RecvEnd::RingLent,
                };
                break;
            }
            match socket.receive() {
                Some(Ok(frame)) if frame.as_ref().len() >= ETH_HDR_LEN => {
                    room -= 1;
                    let vnet = self.unfinished.judge(frame.as_ref());
                    let merge_mark = 0;
                    let meta = RxMeta { vnet, merge_mark };
                    out.push(RxFrame { frame, meta });
                }
                Some(Ok(_)) => self.stats.rx_truncated += 1,
                Some(Err(Invalid)) => self.stats.rx_errors += 1,
                None => {
                    end = RecvEnd::Empty;
                    break;
                }
            }
        }
        socket.end_receive();
        if self.unfinished.is_to_be_said() {
            let name = self.interface.name();
            warn!(
                "{name} has frames whose checksums are unfinished, which the guest drops: say \
                 --af-xdp-unfinished if they come from this host, or switch that off at their \
                 sender with 'ethtool -K ... tx off'"
            );
        }
        Ok(end)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        if !self.carrier.is_up() {
            return Err(SendError::Down);
        }
        let rest: usize = frame.rest.iter().map(|slice| slice.len()).sum();
        let len = frame.head.len() + rest;
        if self.is_too_long(len, frame.head) {
            return Err(SendError::Refused(Errno::MSGSIZE.into()));
        }
        // Packets are cut before they come here.
        let len = match u32::try_from(len) {
            Ok(len) if frame.vnet.gso_type == GSO_NONE => len,
            _ => return Err(SendError::Refused(Errno::INVAL.into())),
        };
        if self
            .port
            .as_ref()
            .is_some_and(|port| !port.socket.has_room())
        {
            self.flush()?;
        }
        let Some(Port { socket, .. }) = &mut self.port else {
            return Err(SendError::Down);
        };
        if !socket.send(len, |chunk| write(chunk, frame)) {
            return Err(SendError::Full);
        }
        self.is_unpublished = true;
        Ok(())
    }

    /// While the interface is down, frames stay in the ring, from which they cannot be taken; they
    /// leave when it is up, or are counted as lost when it is gone.
    fn flush(&mut self) -> Result<Flushed, SendError> {
        let Some(port) = &mut self.port else {
            return Ok(Flushed::All);
        };
        let is_zero_copy = port.is_zero_copy;
        let socket = &mut port.socket;
        if core::mem::take(&mut self.is_unpublished) {
            socket.publish();
        }
        let mut waiting = socket.waiting();
        for _ in 0..KICKS_MAX {
            if waiting == 0 || !socket.needs_kick() {
                break;
            }
            let kicked = socket.kick();
            let left = socket.waiting();
            match kicked {
                // The driver is awake and takes them by itself.
                Ok(()) if is_zero_copy => {
                    self.reap();
                    return Ok(Flushed::All);
                }
                Err(Errno::NETDOWN | Errno::NXIO) => return Err(SendError::Down),
                // The interface has dropped one.
                Err(Errno::BUSY) => self.stats.tx_lost += 1,
                // It is writable all the time, so it cannot say when there is room.
                _ if left == waiting => {
                    self.reap();
                    return Err(match kicked {
                        Err(Errno::NOBUFS | Errno::NOMEM) => SendError::NoMemory,
                        _ => SendError::Full,
                    });
                }
                _ => {}
            }
            waiting = left;
        }
        let is_full = waiting > 0 && socket.needs_kick();
        self.reap();
        if is_full {
            return Err(SendError::Full);
        }
        Ok(Flushed::All)
    }

    /// While the interface is down nothing completes, and frames are refused, not kept waiting.
    fn take_completed(&mut self) -> Option<u32> {
        self.reap();
        let completed = core::mem::take(&mut self.completed);
        self.carrier.is_up().then_some(completed)
    }

    /// The host cannot be told, and sends nothing that the guest would not take.
    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    /// The interface spreads frames over its queues whatever is read. So what comes in on one that
    /// is not read is thrown away.
    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        if is_active != self.is_active {
            self.is_active = is_active;
            self.discard();
        }
        Ok(())
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn follow_device(&mut self) {
        self.watch.take();
        self.retired.retain(Umem::has_lent);
        let found = self.find();
        self.carrier.note(self.interface.name(), &found);
        // Nobody else wakes the kernel for what was left while the interface was down.
        if self.carrier.is_up() {
            match self.flush() {
                Ok(_) => self.watch.is_well(),
                Err(_) => self.watch.try_later(),
            }
        }
    }

    fn stats(&self) -> UplinkStats {
        let mut losses = self.losses;
        if let Some(port) = &self.port {
            losses += port.losses();
        }
        UplinkStats {
            rx_ring_full: losses.ring_full,
            rx_too_long: losses.too_long,
            rx_errors: self.stats.rx_errors + losses.rx_refused,
            rx_unfinished: self.unfinished.count(),
            tx_lost: self.stats.tx_lost + losses.tx_refused,
            ..self.stats
        }
    }
}
