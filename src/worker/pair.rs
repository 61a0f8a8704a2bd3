//! One queue pair: its two rings and its uplink queue, served one event at a time.
//!
//! The pair owns everything it touches, so no lock exists. It is in one of two states: *idle*
//! (no set-up, the uplink masked) or *serving*. Every change of the set-up goes through
//! [`QueuePair::apply`], which first lets go of all that the old one held.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use log::{debug, warn};

use super::complaint::Complaints;
use super::handle::{PairSetup, Positions, RingSetup};
use super::host::{Host, Link};
use super::receive::Receive;
use super::ring::{Start, offloads};
use super::run_queue::RunQueue;
use super::signal::{Served, act, report_broken, signal_replaced};
use super::stats::PairStats;
use super::thread::LinkReport;
use super::trace::Tracer;
use super::transmit::Transmit;
use super::waiter::{Token, Waiter};
use crate::device::{Features, RingFault, RxQueue, SplitRing, TxQueue};
use crate::gro::GroConfig;
use crate::napi::NapiConfig;
use crate::sys::{Interest, Ready};
use crate::time::Instant;
use crate::tx::TxConfig;
use crate::uplink::{Offloads, RecvError, UplinkQueue};

/// How a queue pair works, the same for every guest that comes.
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Merging.
    pub gro: GroConfig,
    /// Polling and flushing.
    pub napi: NapiConfig,
    /// Receive buffers of the pair.
    pub pool_frames: usize,
    /// The MTU offered to the guest, in bytes behind the Ethernet header; `None` if none is.
    pub mtu: Option<u16>,
    /// Sending.
    pub tx: TxConfig,
    /// What the uplink takes over for frames from the guest; the rest is done here.
    pub uplink_offloads: Offloads,
}

/// A queue pair: what a data thread runs, and what can be run without one, turn by turn.
pub struct QueuePair {
    // In front of the uplink, whose ring its frames may lie in.
    receive: Receive,
    host: Host,
    waiter: Waiter,
    transmit: Transmit,
    setup: PairSetup,
    complaints: Complaints,
    tracer: Option<Rc<Tracer>>,
    squeezed: u64,
    internal_errors: u64,
}

impl QueuePair {
    /// Makes an idle pair on `queue`. `report` is called as [`LinkReport`] says.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(
        config: &PairConfig,
        queue: Box<dyn UplinkQueue>,
        report: LinkReport,
    ) -> io::Result<Self> {
        Ok(Self::with_waiter(config, queue, report, Waiter::new()?))
    }

    /// The same with a waiter that may wait for more.
    pub(super) fn with_waiter(
        config: &PairConfig,
        queue: Box<dyn UplinkQueue>,
        report: LinkReport,
        waiter: Waiter,
    ) -> Self {
        let mut host = Host::new(queue, report);
        host.set_active(false);
        if let Some(events) = host.queue.events() {
            if let Err(error) = waiter.add_device(events) {
                warn!("changes of the uplink go unseen: {error}");
            }
            host.queue.follow_device();
        }
        Self {
            receive: Receive::new(config),
            host,
            waiter,
            transmit: Transmit::new(config),
            setup: PairSetup::default(),
            complaints: Complaints::default(),
            tracer: None,
            squeezed: 0,
            internal_errors: 0,
        }
    }

    /// Shows everything that passes from now on to `tracer`.
    pub fn set_tracer(&mut self, tracer: Tracer) {
        let tracer = Rc::new(tracer);
        self.receive.set_tracer(Rc::clone(&tracer));
        self.transmit.set_tracer(Rc::clone(&tracer));
        self.tracer = Some(tracer);
    }

    /// Serves what is ready at `now` and what is due then, without waiting. Returns when there is
    /// something to do again if nothing becomes ready before: `now` if more is left to do, `None`
    /// if only an event can bring something.
    ///
    /// # Errors
    /// The kernel is short of memory.
    pub fn turn(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        self.watch();
        for event in self.waiter.wait(Some(Duration::ZERO))?.iter() {
            self.take_event(event);
        }
        RunQueue::default().serve(core::slice::from_mut(self), now, || now);
        Ok(self.next_due(now))
    }

    /// When there is something to do without an event.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        if self.receive.is_due(now) || self.transmit.is_pending(now) {
            return Some(now);
        }
        let deadlines = [self.receive.deadline(), self.transmit.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Takes note of what became ready; [`poll`](Self::poll) and [`drain`](Self::drain) do something
    /// about it.
    pub(super) fn take_event(&mut self, event: Ready) {
        match Token::from(event.token) {
            // Read by whoever added it.
            Token::Inbox => {}
            Token::RxKick => self.receive.kicked(),
            Token::TxKick => self.transmit.kicked(),
            Token::Uplink => self.uplink_ready(event),
            Token::Device => self.host.queue.follow_device(),
        }
    }

    /// Sets what is to be reported of the uplink to what both directions can use.
    pub(super) fn watch(&mut self) {
        self.host.note_carrier();
        let generation = self.host.queue.fd_generation();
        if !self.waiter.knows_uplink(generation) {
            // Nobody will say that the former one is writable.
            self.transmit.writable();
        }
        if self.host.link == Link::Gone {
            self.waiter.forget_uplink();
            // Nobody will say so any more, and frames that waited for it are to be dropped.
            self.transmit.writable();
            return;
        }
        let wish = match (self.receive.wants_frames(), self.transmit.wants_room()) {
            (true, true) => Interest::ReadWrite,
            (true, false) => Interest::Read,
            (false, true) => Interest::Write,
            (false, false) if self.receive.is_between_polls() => Interest::Errors,
            // Its end is told otherwise.
            (false, false) if self.host.queue.is_watched() => Interest::Errors,
            // A tap that is deleted wakes those alone who wait to read. An edge for each frame
            // until the host's queue is full is the price.
            (false, false) => Interest::ReadEdge,
        };
        let fd = self.host.queue.fd();
        if let Err(error) = self.waiter.watch_uplink(fd, generation, wish) {
            self.host.set_link(Link::Gone, &error);
        }
    }

    fn uplink_ready(&mut self, ready: Ready) {
        if !self.receive.wants_frames() {
            // Nobody reads at the moment, so nobody would learn from a read what it is.
            match self.host.queue.look_after(ready.failed) {
                Ok(()) | Err(RecvError::Failed(_)) => {}
                Err(error @ RecvError::Down) => self.host.set_link(Link::Down, &error),
                Err(error @ RecvError::Gone(_)) => {
                    self.host.set_link(Link::Gone, &error);
                    return;
                }
            }
        }
        if (ready.readable || ready.failed) && self.receive.wants_frames() {
            self.receive.readable();
        }
        if ready.writable {
            self.transmit.writable();
        }
    }

    /// Whether [`poll`](Self::poll) has something to do.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.receive.is_due(now)
    }

    /// One poll of the receive context; returns how many frames it read.
    pub(super) fn poll(&mut self, now: Instant) -> u32 {
        let before = self.receive.frames_read();
        let served = self.receive.poll(now, &mut self.host);
        act(served, self.setup.rx.as_ref());
        if served == Served::Broken {
            self.host.set_active(false);
        }
        let work = self.receive.frames_read() - before;
        u32::try_from(work).unwrap_or(u32::MAX)
    }

    /// One drain of the transmit ring, if there is anything to send.
    pub(super) fn drain(&mut self, now: Instant) {
        self.transmit.reclaim(now, &mut self.host);
        if self.transmit.is_pending(now) {
            let ring = self.setup.tx.as_ref();
            let tell = |served| act(served, ring);
            self.transmit.drain(now, &mut self.host, tell);
        }
    }

    /// A round ended while there was more to do.
    pub(super) fn note_squeeze(&mut self) {
        self.squeezed += 1;
    }

    /// An event may have been lost: looks at both rings.
    pub(super) fn look_again(&mut self) {
        self.receive.kicked();
        self.transmit.kicked();
    }

    /// Replaces the set-up. See [`super::PairControl::apply`].
    pub fn apply(&mut self, now: Instant, setup: PairSetup) -> Positions {
        let served = self.receive.wind_up(now, &mut self.host);
        act(served, self.setup.rx.as_ref());
        let old = core::mem::replace(&mut self.setup, setup);
        if !self.setup.goes_on_receiving_after(&old) {
            self.receive.drop_all();
        }
        let positions = Positions {
            rx: self.receive.take_position(),
            tx: self.transmit.take_position(),
        };
        for ring in [old.rx.as_ref(), old.tx.as_ref()].into_iter().flatten() {
            if let Some(kick) = &ring.kick {
                self.waiter.remove_kick(kick.as_fd());
            }
        }
        self.start(now, &old, positions);
        signal_replaced(self.setup.rx.as_ref(), old.rx.as_ref());
        signal_replaced(self.setup.tx.as_ref(), old.tx.as_ref());
        debug!("set-up applied at {now:?}: {:?}", self.setup);
        positions
    }

    /// Builds the rings of the current set-up and tells the uplink what the guest accepts.
    fn start(&mut self, now: Instant, old: &PairSetup, positions: Positions) {
        let features = Features::from_bits(self.setup.features);
        let start = Start::new(&self.setup);
        let (new_rx, old_rx) = (self.setup.rx.as_ref(), old.rx.as_ref());
        let (new_tx, old_tx) = (self.setup.tx.as_ref(), old.tx.as_ref());
        let rx = start.ring(new_rx, old_rx, positions.rx);
        let tx = start.ring(new_tx, old_tx, positions.tx);
        let rx = self.if_served(now, "receive", rx);
        let tx = self.if_served(now, "transmit", tx);
        self.watch_kicks(now);
        let offloads = if rx.is_some() {
            offloads(features)
        } else {
            Offloads::default()
        };
        let enabled = |ring: &Option<RingSetup>| ring.as_ref().is_some_and(|ring| ring.enabled);
        let rx = rx.map(|ring| RxQueue::new(ring, features));
        let in_hand = self.transmit.in_hand_max();
        let tx = tx.map(|ring| TxQueue::new(ring, features, in_hand));
        self.receive.start(rx, enabled(&self.setup.rx), features);
        self.transmit.start(tx, enabled(&self.setup.tx));
        // In this order: a queue that is not active has no say in the offloads of its device.
        self.host.set_active(self.receive.is_live());
        self.set_offloads(now, offloads);
    }

    fn if_served(
        &mut self,
        now: Instant,
        which: &str,
        ring: Result<Option<SplitRing>, RingFault>,
    ) -> Option<SplitRing> {
        ring.unwrap_or_else(|error| {
            let text = || format!("the {which} ring cannot be served: {error}");
            self.complaints.warn(now, text);
            None
        })
    }

    fn watch_kicks(&mut self, now: Instant) {
        let rings = [
            (Token::RxKick, &self.setup.rx),
            (Token::TxKick, &self.setup.tx),
        ];
        for (token, ring) in rings {
            let Some(kick) = ring.as_ref().and_then(|ring| ring.kick.as_ref()) else {
                continue;
            };
            if let Err(error) = self.waiter.add_kick(token, kick.as_fd()) {
                let text = || format!("the guest's kick cannot be waited for: {error}");
                self.complaints.warn(now, text);
            }
        }
    }

    fn set_offloads(&mut self, now: Instant, offloads: Offloads) {
        if self.host.link == Link::Gone {
            return;
        }
        if let Err(error) = self.host.queue.set_offloads(offloads) {
            let text = || format!("the uplink refuses offloads {offloads:?}: {error}");
            self.complaints.warn(now, text);
        }
    }

    /// Sends a frame of our own, as it is.
    pub(super) fn announce(&mut self, now: Instant, frame: &[u8]) {
        if let Err(error) = self.transmit.announce(now, frame, &mut self.host) {
            warn!("announcement not sent: {error}");
        }
    }

    /// Stops the rings after an internal error, without touching them. The set-up stays, so that
    /// the next one knows which rings go on.
    pub(super) fn abandon(&mut self) {
        self.internal_errors += 1;
        for ring in [self.setup.rx.as_ref(), self.setup.tx.as_ref()]
            .into_iter()
            .flatten()
        {
            if let Some(kick) = &ring.kick {
                self.waiter.remove_kick(kick.as_fd());
            }
            report_broken(ring);
        }
        self.receive.abandon();
        self.transmit.abandon();
        self.host.set_active(false);
    }

    /// The tunables of the poll model.
    pub(super) const fn napi_config(&self) -> &NapiConfig {
        self.receive.napi_config()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> PairStats {
        PairStats {
            receive: self.receive.stats(),
            transmit: self.transmit.stats(),
            uplink: self.host.queue.stats(),
            trace: self
                .tracer
                .as_ref()
                .map(|tracer| tracer.stats())
                .unwrap_or_default(),
            squeezed: self.squeezed,
            internal_errors: self.internal_errors,
        }
    }
}
