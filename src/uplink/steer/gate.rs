//! What a port and the readers, or a reader and its ports, see of each other.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::doorbell::Doorbell;
use crate::uplink::{Offloads, UplinkStats};

/// How long a port waits for counters; a reader answers at once or not at all.
const PATIENCE: Duration = Duration::from_millis(100);

/// A port, as its worker and the readers see it.
#[derive(Debug)]
pub(super) struct Gate {
    /// Wakes the worker.
    pub(super) bell: Doorbell,
    /// Odd while the port is active; each change counts up. A frame carries the value at which it
    /// was steered here, so one that was meant for an earlier run is known.
    epoch: AtomicU32,
    offloads: Mutex<Offloads>,
    /// Frames for which there was no room, written by the readers.
    pub(super) ring_full: AtomicU64,
    /// Frames that were steered here when the port was not active any more, written by the readers.
    pub(super) late: AtomicU64,
}

impl Gate {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            bell: Doorbell::new()?,
            epoch: AtomicU32::new(0),
            offloads: Mutex::default(),
            ring_full: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether frames of this epoch are wanted.
    pub(super) const fn is_open(epoch: u32) -> bool {
        epoch % 2 == 1
    }

    /// Opens or closes it; called by the worker only.
    pub(super) fn set_open(&self, is_open: bool) {
        if Self::is_open(self.epoch()) != is_open {
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn set_offloads(&self, offloads: Offloads) {
        *self.offloads.lock().unwrap_or_else(PoisonError::into_inner) = offloads;
    }

    pub(super) fn offloads(&self) -> Offloads {
        *self.offloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader, as the ports see it. Nothing in it is locked on the way of a frame.
#[derive(Debug)]
pub(super) struct Desk {
    /// Wakes the reader.
    pub(super) bell: Doorbell,
    /// Counts what was changed at the gates.
    changes: AtomicU32,
    /// Set when the reader is to end.
    is_over: AtomicBool,
    /// What is known of the other end.
    carrier: AtomicU8,
    /// Why the device is gone, if it is.
    gone: OnceLock<String>,
    questions: Sender<SyncSender<UplinkStats>>,
}

/// Who asks for the counters of the device.
pub(super) type Questions = Receiver<SyncSender<UplinkStats>>;

impl Desk {
    pub(super) fn new() -> io::Result<(Self, Questions)> {
        let (questions, asked) = channel();
        let desk = Self {
            bell: Doorbell::new()?,
            changes: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            carrier: AtomicU8::new(0),
            gone: OnceLock::new(),
            questions,
        };
        Ok((desk, asked))
    }

    /// Says that something was changed at a gate.
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.bell.strike();
    }

    pub(super) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Tells the reader to end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.strike();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns whether that is something else than before.
    pub(super) fn set_carrier(&self, carrier: Option<bool>) -> bool {
        let value = match carrier {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        self.carrier.swap(value, Ordering::AcqRel) != value
    }

    pub(super) fn carrier(&self) -> Option<bool> {
        match self.carrier.load(Ordering::Acquire) {
            0 => None,
            value => Some(value == 2),
        }
    }

    pub(super) fn set_gone(&self, why: String) {
        // Only the first reason is one.
        let _ = self.gone.set(why);
    }

    pub(super) fn gone(&self) -> Option<io::Error> {
        let why = self.gone.get()?;
        Some(io::Error::new(io::ErrorKind::NotConnected, why.clone()))
    }

    /// The counters of the device's queue, none if the reader has ended.
    pub(super) fn stats(&self) -> UplinkStats {
        let (sender, receiver) = sync_channel(1);
        if self.questions.send(sender).is_ok() {
            self.bell.strike();
        }
        receiver.recv_timeout(PATIENCE).unwrap_or_default()
    }
}
