//! The receive path of a worker with a capture in place of the uplink and of the clock.

use std::io::{self, Write};
use std::time::Duration;

use super::ReplayError;
use super::check::Checker;
use super::flow::Flow;
use super::ledger::{Ledger, Pending};
use super::source::{Captured, Source, SourceError};
use super::summary::Summary;
use crate::gro::{FlushReason, GroEngine, GroPacket, GroResult};
use crate::napi::{FlushPlan, Napi, NapiState, Poll};
use crate::pcapng::PcapngWriter;
use crate::time::Instant;
use crate::wire::vnet_hdr::F_NEEDS_CSUM;
use crate::wire::{Layout, RxMeta, VnetHdr, checksum};

/// How long the daemon takes, on the clock of the capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// From an event, a frame or the timer, to the start of the poll.
    pub(super) wakeup: Duration,
    /// For each frame that a poll reads.
    pub(super) frame: Duration,
}

/// A receive context whose guest always has buffers.
pub(super) struct Replay<W> {
    source: Source,
    /// The frame that comes next.
    next: Option<Captured>,
    /// Why there is no next frame, if not because the capture ended.
    damage: Option<SourceError>,
    engine: GroEngine<Vec<u8>>,
    napi: Napi,
    pace: Pace,
    now: Instant,
    ledger: Ledger,
    checker: Option<Checker>,
    out: PcapngWriter<W>,
    /// Bytes of the packet that is being handed over.
    packet: Vec<u8>,
    summary: Summary,
}

impl<W: Write> Replay<W> {
    /// Makes an idle context; with a `checker`, whatever comes out is held against what went in.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn new(
        source: Source,
        engine: GroEngine<Vec<u8>>,
        napi: Napi,
        pace: Pace,
        checker: Option<Checker>,
        out: W,
    ) -> io::Result<Self> {
        Ok(Self {
            source,
            next: None,
            damage: None,
            engine,
            napi,
            pace,
            now: Instant::ZERO,
            ledger: Ledger::default(),
            checker,
            out: PcapngWriter::new(out)?,
            packet: Vec::new(),
            summary: Summary::default(),
        })
    }

    /// Replays the capture to its end, or to where it is damaged.
    ///
    /// # Errors
    /// The output cannot be written, or is not what it must be.
    pub(super) fn run(mut self) -> Result<(Summary, Option<SourceError>), ReplayError> {
        self.advance();
        while let Some(now) = self.next_wakeup() {
            self.now = now;
            self.poll()?;
        }
        // Whatever leaves the source unwatched arms the timer (invariant INV-6).
        debug_assert!(self.next.is_none());
        if self.checker.is_some() {
            self.ledger.check_empty()?;
        }
        self.out.finish().map_err(ReplayError::Write)?;
        self.summary.skipped = self.source.skipped();
        self.summary.engine = *self.engine.stats();
        Ok((self.summary, self.damage))
    }

    /// Reads the next frame. The clock never goes back, so a frame that is older than the one
    /// before it arrives together with it.
    fn advance(&mut self) {
        match self.source.next() {
            Ok(next) => self.next = next,
            Err(damage) => {
                self.next = None;
                self.damage = Some(damage);
            }
        }
        if let Some(frame) = &mut self.next {
            frame.time = self.summary.latest_arrival(frame.time);
        }
    }

    /// When the next poll begins; `None` when nothing more can happen.
    fn next_wakeup(&self) -> Option<Instant> {
        if self.napi.state() == NapiState::Scheduled {
            return Some(self.now);
        }
        let is_over = self.next.is_none() && !self.engine.has_held();
        let timer = self.napi.timer().filter(|_| !is_over);
        let ready = self.next.as_ref().filter(|_| !self.napi.is_masked());
        let event = timer
            .into_iter()
            .chain(ready.map(|frame| frame.time))
            .min()?;
        Some((event + self.pace.wakeup).max(self.now))
    }

    /// One poll of the context, as `worker` does it. Its clock is read once, at its start.
    fn poll(&mut self) -> Result<(), ReplayError> {
        let now = self.now;
        if !self.napi.is_masked() && self.is_readable(now) {
            self.napi.schedule();
        }
        self.summary.timer_polls += u64::from(self.napi.timer_fired(now));
        let Some(poll) = self.napi.begin_poll() else {
            return Ok(());
        };
        self.summary.polls += 1;
        let work = self.read(&poll, now)?;
        let completion = self.napi.complete(poll, work, self.engine.has_held());
        let before = *self.engine.stats();
        match completion.plan() {
            FlushPlan::All => self.engine.flush_all(FlushReason::PollEnd),
            FlushPlan::Expired(age) => self.engine.flush_older(now, age, FlushReason::Deadline),
            FlushPlan::Old(age) => self.engine.flush_older(now, age, FlushReason::FullBudget),
        }
        self.summary.count_ended(&before, self.engine.stats());
        self.hand_over()?;
        self.napi.finish(completion, now, self.engine.earliest());
        Ok(())
    }

    fn is_readable(&self, now: Instant) -> bool {
        self.next.as_ref().is_some_and(|frame| frame.time <= now)
    }

    /// Reads what has arrived until `start`, up to the budget; returns how many frames that were.
    fn read(&mut self, _poll: &Poll, start: Instant) -> Result<u32, ReplayError> {
        let mut work = 0;
        while work < self.napi.budget() && self.is_readable(start) {
            let Some(frame) = self.next.take() else {
                break;
            };
            self.advance();
            work += 1;
            self.now = self.now + self.pace.frame;
            self.take_frame(start, frame);
            if self.engine.should_hand_over() {
                self.hand_over()?;
            }
        }
        Ok(work)
    }

    fn take_frame(&mut self, now: Instant, frame: Captured) {
        let Captured {
            number,
            time,
            bytes,
        } = frame;
        let (flow, layout) = Flow::of(&bytes);
        let vnet = layout.map_or_else(VnetHdr::default, |layout| host_header(&bytes, &layout));
        let is_partial = vnet.flags & F_NEEDS_CSUM != 0;
        self.summary.count_frame(flow, bytes.len(), is_partial);
        let original = match self.checker {
            Some(_) => bytes.clone(),
            None => Vec::new(),
        };
        let pending = Pending {
            number,
            arrival: time,
            taken: now,
            is_partial,
            original,
        };
        self.ledger.arrived(flow, pending);
        let meta = RxMeta {
            vnet,
            merge_mark: 0,
        };
        let before = *self.engine.stats();
        if self.engine.receive(now, bytes, &meta) == GroResult::Dropped {
            self.ledger.refused(flow);
        }
        self.summary.count_ended(&before, self.engine.stats());
    }

    fn hand_over(&mut self) -> Result<(), ReplayError> {
        if self.engine.ready_len() > 0 {
            self.summary.hand_overs += 1;
        }
        while let Some(packet) = self.engine.pop() {
            self.deliver(&packet)?;
        }
        self.engine.handed_over();
        Ok(())
    }

    fn deliver(&mut self, packet: &GroPacket<Vec<u8>>) -> Result<(), ReplayError> {
        self.packet.clear();
        packet
            .slices()
            .for_each(|slice| self.packet.extend_from_slice(slice));
        let (flow, _) = Flow::of(&self.packet);
        let segs = packet.segs();
        let number = self.summary.packets + 1;
        let frames = self.ledger.delivered(flow, segs, number)?;
        if let Some(checker) = &mut self.checker {
            checker.check(number, &self.packet, &packet.vnet, &frames)?;
        }
        if let Some(first) = frames.first() {
            self.summary.count_delay(
                first.number,
                self.now - first.taken,
                self.now - first.arrival,
            );
        }
        self.summary.count_packet(flow);
        let comment = (segs > 1).then(|| {
            let size = packet.vnet.gso_size;
            format!("{segs} segments of {size} bytes")
        });
        self.out
            .packet(self.now, packet.slices(), comment.as_deref())
            .map_err(ReplayError::Write)
    }
}

/// The header that a tap would give with the frame: a frame that was captured where it was sent
/// has only the pseudo-header sum where its checksum belongs.
fn host_header(frame: &[u8], layout: &Layout) -> VnetHdr {
    let field = usize::from(layout.l4() + layout.transport().checksum_offset());
    let stored = frame.get(field..).and_then(|rest| rest.first_chunk());
    let l4_len = u32::from(layout.payload() - layout.l4()) + layout.payload_len();
    let partial = checksum::pseudo_header(frame, layout, l4_len).fold();
    if stored != Some(&partial.to_be_bytes()) || checksum::is_transport_right(frame, layout) {
        return VnetHdr::default();
    }
    VnetHdr {
        flags: F_NEEDS_CSUM,
        csum_start: layout.l4(),
        csum_offset: layout.transport().checksum_offset(),
        ..VnetHdr::default()
    }
}
