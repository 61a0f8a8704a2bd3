//! What the uplink has of ours, and whether it may have more.

use std::time::Duration;

use super::host::{Host, Link};
use super::room::Room;
use super::stats::TransmitStats;
use crate::time::Instant;
use crate::tx::{Dql, TxConfig};
use crate::uplink::{Flushed, SendError, TxFrame};

/// How long nothing is added when enough is on its way, before the uplink is asked again although
/// nothing was heard of it. As long as nothing leaves it, each time is twice as long as the one
/// before, up to the second of these.
const COMPLETION_WAIT: Duration = Duration::from_micros(100);
const COMPLETION_WAIT_MAX: Duration = Duration::from_millis(10);

/// The way into the uplink.
#[derive(Debug)]
pub(super) struct Sender {
    config: TxConfig,
    /// The uplink has taken frames that may not have left it.
    unflushed: bool,
    room: Room,
    /// What may be on its way; `None` for an uplink that is done at once.
    limit: Option<Dql>,
    /// That of the uplink's descriptor at the last look.
    generation: u64,
    /// So much is on its way that nothing is added until then.
    halted: Option<Instant>,
    /// How long it waits the next time.
    halt: Duration,
}

impl Sender {
    pub(super) fn new(config: TxConfig) -> Self {
        Self {
            config,
            unflushed: false,
            room: Room::default(),
            limit: None,
            generation: 0,
            halted: None,
            halt: COMPLETION_WAIT,
        }
    }

    /// Whether to send at `now`.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.halted.is_none_or(|until| until <= now) && self.room.is_worth_trying(now)
    }

    /// Whether writability of the uplink is of interest, to somebody who has something to send.
    pub(super) fn is_waiting_for_room(&self) -> bool {
        self.room == Room::Awaited
    }

    /// Whether the uplink has frames that have to be flushed again.
    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// When to try again although nothing happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.room {
            Room::Awaited => None,
            Room::Doubted(until) => Some(until).max(self.halted),
            Room::Free | Room::Claimed => self.halted,
        }
    }

    /// The uplink reports that it is writable.
    pub(super) fn writable(&mut self) {
        self.room = self.room.claimed();
    }

    /// Nobody waits any more, unless it is for what the uplink has.
    pub(super) fn forget_wait(&mut self) {
        if !self.unflushed {
            self.room = Room::Free;
        }
    }

    /// Bytes that may be on their way; `None` for an uplink that is done at once.
    pub(super) fn limit(&self) -> Option<u32> {
        self.limit.as_ref().map(Dql::limit)
    }

    /// Bytes that a bulk may have; `None` if nothing may be added now (rules DQL-2, DQL-6).
    pub(super) fn available(&mut self, now: Instant, stats: &mut TransmitStats) -> Option<i64> {
        let available = match &self.limit {
            Some(limit) => limit.available(),
            None => self.config.tx_sync_bytes.into(),
        };
        if available < 0 {
            stats.limit_waits += 1;
            self.halted = Some(now + self.halt);
            self.halt = (2 * self.halt).min(COMPLETION_WAIT_MAX);
            return None;
        }
        Some(available)
    }

    /// Asks the uplink what has left it (rules DQL-3, NAPI-2).
    pub(super) fn reclaim(&mut self, now: Instant, host: &mut Host) {
        // What is on its way in a device that is gone never leaves it.
        let is_there = host.link != Link::Gone;
        let completed = is_there.then(|| host.queue.take_completed()).flatten();
        let Some(bytes) = completed else {
            self.limit = None;
            self.halted = None;
            return;
        };
        let limit = self.limit.get_or_insert_with(|| Dql::new(&self.config));
        let generation = host.queue.fd_generation();
        if core::mem::replace(&mut self.generation, generation) == generation {
            limit.complete(bytes, now);
        } else {
            limit.reset(now);
        }
        if bytes > 0 {
            self.halt = COMPLETION_WAIT;
        }
        if limit.available() >= 0 {
            self.halted = None;
        }
    }

    /// Gives the uplink a frame of `len` bytes; more follow until [`flush`](Self::flush).
    ///
    /// # Errors
    /// As of the uplink.
    pub(super) fn put(
        &mut self,
        frame: &TxFrame<'_>,
        len: usize,
        host: &mut Host,
    ) -> Result<(), SendError> {
        host.queue.send(frame)?;
        self.unflushed = true;
        self.room = Room::Free;
        if let Some(limit) = &mut self.limit {
            limit.enqueue(u32::try_from(len).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    /// The uplink keeps what it has, or did not take what it was to get.
    pub(super) fn note_full(&mut self, why: &SendError, now: Instant, stats: &mut TransmitStats) {
        if matches!(why, SendError::NoMemory) {
            stats.uplink_no_memory += 1;
            self.room = Room::doubted(now);
        } else {
            stats.uplink_full += 1;
            self.room = self.room.refused(now);
        }
    }

    /// Ends a batch. What the uplink has no room for stays with it until it is writable.
    pub(super) fn flush(&mut self, now: Instant, host: &mut Host, stats: &mut TransmitStats) {
        if !core::mem::take(&mut self.unflushed) || host.link == Link::Gone {
            return;
        }
        match host.queue.flush() {
            Ok(Flushed::All) => {}
            Ok(Flushed::Partly) => {
                self.unflushed = true;
                self.room = Room::Awaited;
            }
            Err(error @ (SendError::Full | SendError::NoMemory)) => {
                self.unflushed = true;
                self.note_full(&error, now, stats);
            }
            // The uplink has counted what it took.
            Err(SendError::Refused(_)) => {}
            Err(SendError::Down) => host.set_link(Link::Down, &SendError::Down),
            Err(error @ SendError::Gone(_)) => host.set_link(Link::Gone, &error),
        }
    }
}
