//! The thread that owns a queue of the device: spreads what comes, sends what goes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::{debug, info, warn};

use super::gate::{Desk, Gate, Questions};
use super::lane::{FRAME_MAX, Label, LaneReceiver, LaneSender, Refusal};
use crate::sys::{EpollSet, Interest, Ready, WatchedFd};
use crate::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
};
use crate::wire::{FlowHash, HashScope};

/// Batches read in a row before what is to be sent gets its turn.
const BATCHES: usize = 8;

/// Frames sent in a row for one port before the next one gets its turn.
const TX_QUOTA: usize = 64;

/// How long a device is left alone that keeps saying it is ready and then does nothing.
const RETRY: Duration = Duration::from_millis(1);

const BELL: u64 = 0;
const DEVICE: u64 = 1;
const QUEUE: u64 = 2;

/// The reader's side of a port.
pub(super) struct Exit {
    pub(super) lane: LaneSender,
    pub(super) gate: Arc<Gate>,
}

/// How frames are spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spreading {
    pub(super) scope: HashScope,
    /// Frames read before the workers hear of them.
    pub(super) batch: usize,
}

/// A reader and all it owns.
pub(super) struct Reader {
    queue: Box<dyn UplinkQueue>,
    desk: Arc<Desk>,
    questions: Questions,
    /// One to each port.
    exits: Vec<Exit>,
    /// One from each port that this reader sends for.
    entries: Vec<LaneReceiver>,
    /// The port whose frames are sent first in the next turn.
    next: usize,
    spreading: Spreading,
    hash: FlowHash,
    /// The ports that take frames.
    active: Vec<usize>,
    seen_changes: u32,
    offloads: Offloads,
    set: EpollSet,
    watched: WatchedFd,
    pool: FramePool,
    received: Vec<RxFrame>,
    /// Where a frame is put together that the ring has in two pieces.
    scratch: Box<[u8]>,
    /// The device is left alone until the next wait is over.
    rests: bool,
    /// The device has no room; it will say when it has.
    is_full: bool,
    /// It said so, and no send has proved it yet.
    claims_room: bool,
    /// The device has taken frames that have not left it.
    unflushed: bool,
    is_down: bool,
    is_gone: bool,
    /// Frames that were read when no port was active any more.
    discarded: u64,
    /// Frames that were taken from a port and lost.
    lost: u64,
}

impl Reader {
    /// To be called by the thread that runs it: buffers belong to whoever touches them first.
    pub(super) fn new(
        queue: Box<dyn UplinkQueue>,
        (desk, questions): (Arc<Desk>, Questions),
        (exits, entries): (Vec<Exit>, Vec<LaneReceiver>),
        spreading: Spreading,
        set: EpollSet,
    ) -> Self {
        let reader = Self {
            queue,
            desk,
            questions,
            active: Vec::with_capacity(exits.len()),
            exits,
            entries,
            next: 0,
            spreading,
            hash: FlowHash::default(),
            seen_changes: 0,
            offloads: Offloads::default(),
            set,
            watched: WatchedFd::default(),
            pool: FramePool::new(2 * spreading.batch),
            received: Vec::with_capacity(spreading.batch),
            scratch: vec![0; FRAME_MAX].into_boxed_slice(),
            rests: false,
            is_full: false,
            claims_room: false,
            unflushed: false,
            is_down: false,
            is_gone: false,
            discarded: 0,
            lost: 0,
        };
        reader.begin()
    }

    fn begin(mut self) -> Self {
        if let Err(error) = self.set.add(self.desk.bell.fd(), BELL, Interest::Read) {
            self.note_gone(&error.to_string());
        }
        if let Some(events) = self.queue.events() {
            if let Err(error) = self.set.add(events, DEVICE, Interest::Read) {
                warn!("changes of the uplink go unseen: {error}");
            }
            self.queue.follow_device();
        }
        self.follow_gates();
        self
    }

    /// Gives up after an internal error: for the workers the device is gone.
    pub(super) fn abandon(mut self) {
        self.note_gone("internal error");
    }

    /// Runs until it is told to end. What ports have handed over until then is sent.
    pub(super) fn run(&mut self) {
        let mut has_more = false;
        while !self.desk.is_over() {
            self.watch();
            let timeout = match (has_more, self.rests) {
                (true, _) => Some(Duration::ZERO),
                (false, true) => Some(RETRY),
                (false, false) => None,
            };
            let events = match self.set.wait(timeout) {
                Ok(events) => events,
                Err(error) => {
                    // Only a lack of kernel memory ends up here; nothing is lost by asking again.
                    warn!("waiting failed: {error}");
                    continue;
                }
            };
            self.rests &= has_more;
            for event in events.iter() {
                self.take_event(event);
            }
            has_more = self.send_all();
        }
        self.send_all();
    }

    fn take_event(&mut self, event: Ready) {
        match event.token {
            BELL => {
                self.desk.bell.clear();
                self.follow_changes();
                self.answer();
            }
            DEVICE => self.queue.follow_device(),
            _ => {
                if event.writable {
                    self.claims_room |= core::mem::take(&mut self.is_full);
                }
                if self.reads() {
                    self.receive();
                } else if let Err(RecvError::Gone(error)) = self.queue.look_after(event.failed) {
                    self.note_gone(&error.to_string());
                }
            }
        }
    }

    /// Whether frames of the device are wanted.
    fn reads(&self) -> bool {
        !self.active.is_empty() && !self.rests && !self.is_gone
    }

    /// Sets what is to be reported of the device.
    fn watch(&mut self) {
        if self.desk.set_carrier(self.queue.carrier()) {
            self.strike_all();
        }
        let generation = self.queue.fd_generation();
        if !self.watched.is_of(generation) {
            // Nobody will say that the former one is writable.
            self.is_full = false;
        }
        if self.is_gone {
            self.watched.forget(&self.set);
            return;
        }
        let wish = match (self.reads(), self.is_full) {
            (true, true) => Interest::ReadWrite,
            (true, false) => Interest::Read,
            (false, true) => Interest::Write,
            (false, false) if self.rests || self.queue.is_watched() => Interest::Errors,
            // The end of a device may be told only to those who wait to read.
            (false, false) => Interest::ReadEdge,
        };
        let fd: BorrowedFd<'_> = self.queue.fd();
        let watched = self.watched.watch(&self.set, QUEUE, (fd, generation), wish);
        if let Err(error) = watched {
            self.note_gone(&error.to_string());
        }
    }

    fn follow_changes(&mut self) {
        if self.seen_changes != self.desk.changes() {
            self.follow_gates();
        }
    }

    /// Finds out which ports are active and what their guest accepts.
    fn follow_gates(&mut self) {
        self.seen_changes = self.desk.changes();
        let exits = self.exits.iter().enumerate();
        let open = exits.filter(|(_, exit)| Gate::is_open(exit.gate.epoch()));
        self.active.clear();
        self.active.extend(open.map(|(nth, _)| nth));
        let offloads = self
            .active
            .iter()
            .map(|&nth| self.exits[nth].gate.offloads());
        let offloads = offloads.reduce(Offloads::and).unwrap_or_default();
        if self.is_gone {
            return;
        }
        if let Err(error) = self.queue.set_active(!self.active.is_empty()) {
            warn!("the queue's place in the uplink's set cannot be changed: {error}");
        }
        if offloads != self.offloads {
            self.offloads = offloads;
            if let Err(error) = self.queue.set_offloads(offloads) {
                warn!("the uplink refuses offloads {offloads:?}: {error}");
            }
        }
    }

    fn answer(&self) {
        while let Ok(reply) = self.questions.try_recv() {
            let mut stats = self.queue.stats();
            stats.rx_discarded += self.discarded;
            stats.tx_lost += self.lost;
            // Whoever asked may have lost patience.
            let _ = reply.send(stats);
        }
    }

    /// Reads and spreads up to a few batches.
    fn receive(&mut self) {
        for _ in 0..BATCHES {
            let mut received = core::mem::take(&mut self.received);
            let batch = self.spreading.batch;
            let end = self.queue.recv_batch(&self.pool, batch, &mut received);
            if !received.is_empty() {
                self.note_down(false);
            }
            // Before they are spread: what comes after a change goes by it.
            self.follow_changes();
            self.spread(&mut received);
            self.received = received;
            match end {
                Ok(RecvEnd::Budget) if self.reads() => {}
                Ok(RecvEnd::Budget) => return,
                Ok(RecvEnd::Empty | RecvEnd::PoolEmpty | RecvEnd::RingLent) => return,
                Err(RecvError::Gone(error)) => return self.note_gone(&error.to_string()),
                Err(error) => {
                    if matches!(error, RecvError::Down) {
                        self.note_down(true);
                    }
                    self.rests = true;
                    return;
                }
            }
        }
    }

    /// Puts each frame into the ring of its flow's port, or drops and counts it there: nobody waits
    /// for a worker that is behind.
    fn spread(&mut self, received: &mut Vec<RxFrame>) {
        let mut touched = 0_u32;
        for RxFrame { frame, meta } in received.drain(..) {
            let hash = self.hash.of_frame(frame.as_ref(), self.spreading.scope);
            let Some(nth) = choose(&self.active, hash.unwrap_or(0)) else {
                // The last port was closed while they were read.
                self.discarded += 1;
                continue;
            };
            let Exit { lane, gate } = &mut self.exits[nth];
            let epoch = gate.epoch();
            if !Gate::is_open(epoch) {
                gate.late.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            match lane.push(Label { meta, epoch }, frame.as_ref(), &[]) {
                Ok(()) => touched |= 1 << nth,
                Err(Refusal::Full | Refusal::TooLong) => {
                    gate.ring_full.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        for (nth, exit) in self.exits.iter().enumerate() {
            if touched >> nth & 1 == 1 {
                exit.gate.bell.ring();
            }
        }
    }

    /// Sends what the ports have handed over, up to a quota for each; says whether there is more.
    fn send_all(&mut self) -> bool {
        let ports = self.entries.len();
        for nth in 0..ports {
            let port = (self.next + nth) % ports;
            for _ in 0..TX_QUOTA {
                if self.is_full || self.rests || !self.send_next(port) {
                    break;
                }
            }
        }
        self.next = (self.next + 1) % ports.max(1);
        if self.unflushed && !self.is_full {
            self.flush();
        }
        // What may be on its way is limited by the rings; the queue takes back its own buffers.
        let _ = self.queue.take_completed();
        if self.is_full || self.rests {
            return false;
        }
        self.desk.bell.want();
        self.entries.iter().any(|lane| !lane.is_empty())
    }

    /// Sends the next frame of a port, or drops and counts it; `false` if there is none or it has to
    /// wait.
    fn send_next(&mut self, port: usize) -> bool {
        let (queue, is_gone) = (&mut self.queue, self.is_gone);
        let mut result = Ok(());
        let is_out = self.entries[port].show(&mut self.scratch, |label, bytes| {
            if is_gone {
                return true;
            }
            result = queue.send(&TxFrame {
                vnet: label.meta.vnet,
                head: bytes,
                rest: &[],
            });
            !matches!(result, Err(SendError::Full | SendError::NoMemory))
        });
        match result {
            Ok(()) => {
                self.lost += u64::from(is_out && is_gone);
                if is_out && !is_gone {
                    self.claims_room = false;
                    self.unflushed = true;
                    self.note_down(false);
                }
            }
            Err(SendError::Full) => self.note_full(),
            Err(SendError::NoMemory) => self.rests = true,
            Err(SendError::Refused(_)) => self.lost += 1,
            Err(SendError::Down) => {
                self.lost += 1;
                self.note_down(true);
            }
            Err(SendError::Gone(error)) => {
                self.lost += 1;
                self.note_gone(&error.to_string());
            }
        }
        is_out
    }

    /// Waits for room; a device that claims to have some and then takes nothing is left alone for a
    /// while.
    fn note_full(&mut self) {
        match self.claims_room {
            true => self.rests = true,
            false => self.is_full = true,
        }
    }

    fn flush(&mut self) {
        self.unflushed = false;
        match self.queue.flush() {
            Ok(Flushed::All) => {}
            Ok(Flushed::Partly) => {
                self.unflushed = true;
                self.is_full = true;
            }
            Err(SendError::Full | SendError::NoMemory) => {
                self.unflushed = true;
                self.rests = true;
            }
            // The queue has counted what it took.
            Err(SendError::Refused(_)) => {}
            Err(SendError::Down) => self.note_down(true),
            Err(SendError::Gone(error)) => self.note_gone(&error.to_string()),
        }
    }

    /// Notes and says whether the device is down; one that can be watched says so itself.
    fn note_down(&mut self, is_down: bool) {
        if self.is_down == is_down || self.queue.is_watched() {
            return;
        }
        self.is_down = is_down;
        match is_down {
            true => warn!("uplink is down"),
            false => info!("uplink is up"),
        }
    }

    /// The device is gone for good. The workers learn it when they have taken what is left.
    fn note_gone(&mut self, why: &str) {
        if !core::mem::replace(&mut self.is_gone, true) {
            debug!("uplink is gone: {why}");
            self.is_full = false;
            self.unflushed = false;
            self.desk.set_gone(why.to_owned());
            self.strike_all();
        }
    }

    fn strike_all(&self) {
        self.exits.iter().for_each(|exit| exit.gate.bell.strike());
    }
}

/// The port of a flow among those that are active.
fn choose(active: &[usize], hash: u32) -> Option<usize> {
    let nth = (hash as usize).checked_rem(active.len())?;
    active.get(nth).copied()
}
