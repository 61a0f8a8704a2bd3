//! A receive context as a worker has it, engine and poll model, but with frames from a list and
//! an invented clock.

use std::collections::VecDeque;
use std::ops::Range;

use vhost_user_gro::gro::{FlushReason, GroConfig, GroEngine, GroResult, GroTypes};
use vhost_user_gro::napi::{FlushPlan, Napi, NapiConfig, NapiState, Poll};
use vhost_user_gro::time::Instant;
use vhost_user_gro::wire::{RxMeta, VnetHdr};

/// A packet as the guest gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub vnet: VnetHdr,
    pub bytes: Vec<u8>,
    pub segs: u32,
    /// Whether the guest does not take it as it is, and the worker must cut it.
    pub needs_segmentation: bool,
    /// Which of the frames it was made of, counted from 0 in the order of their arrival. Known by
    /// where the bytes lie, so that frames that look alike are not taken for each other.
    pub from: Vec<usize>,
    /// Number of the event during which it entered the receive list.
    pub at: usize,
    /// Number of the event during which it was handed over.
    pub handed_over: usize,
}

/// Engine, poll model, clock, and what was delivered so far.
///
/// Events are numbered from 0 in the order of the calls.
pub struct Context {
    engine: GroEngine<Vec<u8>>,
    napi: Napi,
    poll: Option<Poll>,
    event: usize,
    /// Where the bytes of each frame lie, in the order of their arrival.
    frames: Vec<Range<usize>>,
    /// Events during which the packets in the receive list entered it.
    entered: VecDeque<usize>,
    pub delivered: Vec<Delivered>,
    /// Packets in each hand-over.
    pub batches: Vec<usize>,
}

impl Context {
    pub fn new(gro: GroConfig, napi: NapiConfig, types: GroTypes) -> Self {
        let mut engine = GroEngine::new(gro);
        engine.set_types(types);
        Self {
            engine,
            napi: Napi::new(napi),
            poll: None,
            event: 0,
            frames: Vec::new(),
            entered: VecDeque::new(),
            delivered: Vec::new(),
            batches: Vec::new(),
        }
    }

    pub fn engine(&self) -> &GroEngine<Vec<u8>> {
        &self.engine
    }

    pub fn napi(&self) -> &Napi {
        &self.napi
    }

    /// Number of the next event.
    pub fn event(&self) -> usize {
        self.event
    }

    /// Whether a poll goes on or is due.
    pub fn is_owned(&self) -> bool {
        !matches!(self.napi.state(), NapiState::Idle | NapiState::Deferred)
    }

    /// A frame is read, in a poll that is begun if none is going on.
    pub fn frame(&mut self, now: Instant, bytes: Vec<u8>, meta: RxMeta) -> GroResult {
        self.begin();
        self.frames.push(place(&bytes));
        let result = self.engine.receive(now, bytes, &meta);
        self.note_entered();
        if self.engine.should_hand_over() {
            self.hand_over();
        }
        self.event += 1;
        result
    }

    /// The poll ends before its budget, with `work` frames read.
    pub fn poll_end(&mut self, now: Instant, work: u32) {
        assert!(work < self.napi.budget());
        self.end(now, work);
    }

    /// The poll ends with its budget used up.
    pub fn budget_end(&mut self, now: Instant) {
        self.end(now, self.napi.budget());
    }

    /// The timer fires and the poll finds nothing. False if the timer was not due or the context
    /// owned; then nothing happens.
    pub fn timer(&mut self, now: Instant) -> bool {
        let fired = self.napi.timer_fired(now);
        if fired {
            self.end(now, 0);
        } else {
            self.event += 1;
        }
        fired
    }

    /// The queue is stopped (rule ENG-8).
    pub fn stop(&mut self) {
        self.engine.flush_all(FlushReason::Teardown);
        self.note_entered();
        self.hand_over();
        self.poll = None;
        self.napi.reset();
        self.event += 1;
    }

    /// Starts a poll if none is going on.
    fn begin(&mut self) {
        if self.poll.is_some() {
            return;
        }
        if !self.is_owned() {
            self.napi.schedule();
        }
        self.poll = self.napi.begin_poll();
        assert!(self.poll.is_some(), "scheduled and not being polled");
    }

    fn end(&mut self, now: Instant, work: u32) {
        self.begin();
        let poll = self.poll.take().expect("was begun");
        let completion = self.napi.complete(poll, work, self.engine.has_held());
        match completion.plan() {
            FlushPlan::All => self.engine.flush_all(FlushReason::PollEnd),
            FlushPlan::Expired(age) => self.engine.flush_older(now, age, FlushReason::Deadline),
            FlushPlan::Old(age) => self.engine.flush_older(now, age, FlushReason::FullBudget),
        }
        self.note_entered();
        self.hand_over();
        // Asked to poll again, it does so with the next event.
        let _ = self.napi.finish(completion, now, self.engine.earliest());
        self.event += 1;
    }

    fn note_entered(&mut self) {
        self.entered.resize(self.engine.ready_len(), self.event);
    }

    fn hand_over(&mut self) {
        let before = self.delivered.len();
        while let Some(packet) = self.engine.front() {
            let bytes = packet.slices().collect::<Vec<_>>().concat();
            let from = packet.slices().map(|slice| self.arrival_of(slice));
            assert_eq!(bytes.len(), packet.frame_len());
            self.delivered.push(Delivered {
                vnet: packet.vnet,
                bytes,
                segs: packet.segs(),
                needs_segmentation: packet.needs_segmentation(),
                from: from.collect(),
                at: self.entered.pop_front().expect("noted when it entered"),
                handed_over: self.event,
            });
            self.engine.release_front();
        }
        self.engine.handed_over();
        if self.delivered.len() > before {
            self.batches.push(self.delivered.len() - before);
        }
    }

    /// The frame that these bytes are a part of: of all that lay there, the last one.
    fn arrival_of(&self, slice: &[u8]) -> usize {
        let part = place(slice);
        let is_within = |frame: &Range<usize>| frame.start <= part.start && part.end <= frame.end;
        self.frames
            .iter()
            .rposition(is_within)
            .expect("is a part of a frame")
    }
}

fn place(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr().addr();
    start..start + bytes.len()
}
