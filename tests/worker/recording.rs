//! An uplink that remembers what it got and together with what, and takes as much as it is told to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};
use vhost_user_gro::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
    UplinkStats,
};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::worker::PairConfig;

use crate::rig::{Rig, at_us};

/// The largest count of an event descriptor, at which it is not writable.
const FULL: u64 = u64::MAX - 1;

/// A frame that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) vnet: VnetHdr,
    pub(crate) frame: Vec<u8>,
}

/// What an uplink without room says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    NoMemory,
}

#[derive(Default)]
struct State {
    /// What was submitted together.
    bulks: Vec<Vec<Sent>>,
    /// What was sent since.
    open: Vec<Sent>,
    /// Frames that are taken before it has no room; any number if not set.
    room: Option<usize>,
    refusal: Option<Refusal>,
    /// Sends that were tried, and submissions.
    tries: usize,
    flushes: usize,
    /// It tells later when frames have left it: these bytes have, and were not asked for yet.
    completed: Option<u32>,
    generation: u64,
    is_gone: bool,
    probe: Option<Box<dyn FnMut(Call) + Send>>,
}

/// The uplink's end of it.
pub(crate) struct RecordingQueue {
    fd: Arc<OwnedFd>,
    state: Arc<Mutex<State>>,
}

/// A call of the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Send,
    Flush,
}

/// The test's end of it.
pub(crate) struct Recording {
    fd: Arc<OwnedFd>,
    state: Arc<Mutex<State>>,
}

impl Recording {
    /// Makes both ends.
    pub(crate) fn pair() -> (RecordingQueue, Self) {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let fd = Arc::new(eventfd(0, flags).expect("descriptors are left"));
        let state = Arc::new(Mutex::new(State::default()));
        let queue = RecordingQueue {
            fd: Arc::clone(&fd),
            state: Arc::clone(&state),
        };
        (queue, Self { fd, state })
    }

    /// A running pair on such an uplink, with rings of 256.
    pub(crate) fn rig(config: &PairConfig) -> (Rig, Self) {
        let (queue, recording) = Self::pair();
        let mut rig = Rig::with_uplink(config, 256, |_| Box::new(queue));
        rig.apply(at_us(0));
        // What a former run may have left unsaid is said now.
        rig.tx.calls();
        (rig, recording)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Lets it take `frames` more and then have no room.
    pub(crate) fn set_room(&self, frames: usize, refusal: Refusal) {
        let mut state = self.state();
        state.room = Some(frames);
        state.refusal = Some(refusal);
        // One that is full says when it is writable, one that is short of memory always does.
        let is_writable = refusal == Refusal::NoMemory || frames > 0;
        drop(state);
        self.set_writable(is_writable);
    }

    /// Lets it take everything.
    pub(crate) fn open(&self) {
        self.state().room = None;
        self.set_writable(true);
    }

    fn set_writable(&self, is_writable: bool) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        if !is_writable {
            rustix::io::write(&self.fd, &FULL.to_ne_bytes()).expect("it was emptied");
        }
    }

    /// From now on it tells later when frames have left it.
    pub(crate) fn complete_later(&self) {
        self.state().completed = Some(0);
    }

    /// These bytes have left it.
    pub(crate) fn complete(&self, bytes: u32) {
        let mut state = self.state();
        let completed = state.completed.unwrap_or(0);
        state.completed = Some(completed + bytes);
    }

    /// It is gone, which the next look at it tells.
    pub(crate) fn vanish(&self) {
        self.state().is_gone = true;
        rustix::io::write(&self.fd, &1_u64.to_ne_bytes()).expect("it is not full");
    }

    /// Has `probe` called at each call, before anything else is done about it.
    pub(crate) fn set_probe(&self, probe: impl FnMut(Call) + Send + 'static) {
        self.state().probe = Some(Box::new(probe));
    }

    /// It is another device now.
    pub(crate) fn replace(&self) {
        self.state().generation += 1;
    }

    /// What was submitted together so far, bulk by bulk.
    pub(crate) fn bulks(&self) -> Vec<Vec<Sent>> {
        self.state().bulks.clone()
    }

    /// Frames of each bulk so far.
    pub(crate) fn bulk_lens(&self) -> Vec<usize> {
        self.state().bulks.iter().map(Vec::len).collect()
    }

    /// Everything that was sent.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.bulks().concat()
    }

    /// Everything that was sent since the last call.
    pub(crate) fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut self.state().bulks).concat()
    }

    /// The frames of it.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        self.sent().into_iter().map(|sent| sent.frame).collect()
    }

    /// How often a send was tried.
    pub(crate) fn tries(&self) -> usize {
        self.state().tries
    }

    /// How often something was submitted.
    pub(crate) fn flushes(&self) -> usize {
        self.state().flushes
    }
}

impl UplinkQueue for RecordingQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn fd_generation(&self) -> u64 {
        self.state.lock().unwrap().generation
    }

    fn recv_batch(
        &mut self,
        _pool: &FramePool,
        _budget: usize,
        _out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        if self.state.lock().unwrap().is_gone {
            return Err(RecvError::Gone(io::ErrorKind::NotConnected.into()));
        }
        Ok(RecvEnd::Empty)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        let mut state = self.called(Call::Send);
        state.tries += 1;
        if let Some(room) = &mut state.room {
            let Some(left) = room.checked_sub(1) else {
                drop(state);
                return Err(self.refuse());
            };
            *room = left;
        }
        let mut bytes = frame.head.to_vec();
        for slice in frame.rest {
            let start = bytes.len();
            bytes.resize(start + slice.len(), 0);
            slice.copy_to(&mut bytes[start..]);
        }
        state.open.push(Sent {
            vnet: frame.vnet,
            frame: bytes,
        });
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        let mut state = self.called(Call::Flush);
        state.flushes += 1;
        let bulk = std::mem::take(&mut state.open);
        state.bulks.push(bulk);
        Ok(Flushed::All)
    }

    fn take_completed(&mut self) -> Option<u32> {
        let mut state = self.state.lock().unwrap();
        state.completed.as_mut().map(std::mem::take)
    }

    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        UplinkStats::default()
    }
}

impl RecordingQueue {
    fn called(&self, call: Call) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        if let Some(probe) = &mut state.probe {
            probe(call);
        }
        state
    }

    fn refuse(&self) -> SendError {
        let refusal = self.state.lock().unwrap().refusal;
        if refusal == Some(Refusal::NoMemory) {
            return SendError::NoMemory;
        }
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        let _ = rustix::io::write(&self.fd, &FULL.to_ne_bytes());
        SendError::Full
    }
}
