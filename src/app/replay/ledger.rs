//! The frames that went in and have not come out: what a packet of the receive list was made of.
//!
//! The engine keeps the order within a flow and counts the segments of a packet, so the oldest
//! frames of its flow are the ones in it. `check` proves that this is so.

use std::collections::{HashMap, VecDeque};

use super::check::Mismatch;
use super::flow::Flow;
use crate::time::Instant;

/// A frame in the engine or its receive list.
#[derive(Debug)]
pub(super) struct Pending {
    /// Its place in the capture.
    pub(super) number: u64,
    pub(super) arrival: Instant,
    /// When a poll read it.
    pub(super) taken: Instant,
    /// Its transport checksum was left to the card.
    pub(super) is_partial: bool,
    /// As it came; empty if nobody compares.
    pub(super) original: Vec<u8>,
}

/// Frames on their way, by flow, oldest first.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    waiting: HashMap<Option<Flow>, VecDeque<Pending>>,
}

impl Ledger {
    pub(super) fn arrived(&mut self, flow: Option<Flow>, frame: Pending) {
        self.waiting.entry(flow).or_default().push_back(frame);
    }

    /// Forgets the frame that arrived last in its flow: the engine refused it.
    pub(super) fn refused(&mut self, flow: Option<Flow>) {
        if let Some(queue) = self.waiting.get_mut(&flow) {
            queue.pop_back();
            if queue.is_empty() {
                self.waiting.remove(&flow);
            }
        }
    }

    /// Takes the frames that the next packet of `flow` was made of, as many as its segments.
    ///
    /// # Errors
    /// Fewer went in.
    pub(super) fn delivered(
        &mut self,
        flow: Option<Flow>,
        segs: u32,
        packet: u64,
    ) -> Result<Vec<Pending>, Mismatch> {
        let wanted = segs as usize;
        let queue = self.waiting.get_mut(&flow);
        let Some(queue) = queue.filter(|queue| queue.len() >= wanted) else {
            return Err(Mismatch::Surplus { packet });
        };
        let frames = queue.drain(..wanted).collect();
        // Flows come and go for as long as the capture lasts.
        if queue.is_empty() {
            self.waiting.remove(&flow);
        }
        Ok(frames)
    }

    /// Whether every frame came out.
    ///
    /// # Errors
    /// The first that did not.
    pub(super) fn check_empty(&self) -> Result<(), Mismatch> {
        let left = self.waiting.values().flatten().map(|frame| frame.number);
        left.min()
            .map_or(Ok(()), |frame| Err(Mismatch::Missing { frame }))
    }
}
