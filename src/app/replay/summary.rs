//! What a replay tells the operator: counts, reasons, flows.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::flow::Flow;
use super::source::Skipped;
use crate::gro::{Bail, DropReason, FlushReason, GroStats};
use crate::time::Instant;

/// Most flows in the table, so that a capture of a port scan does not fill the memory.
const MAX_FLOWS: usize = 1 << 16;

/// Longest frame of a network with an MTU of 1500 bytes and two VLAN tags.
const LONGEST_COMMON_FRAME: usize = 1522;

/// Everything that is counted.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) skipped: Skipped,
    pub(super) engine: GroStats,
    /// Packets that the guest would have got.
    pub(super) packets: u64,
    pub(super) polls: u64,
    /// Of the polls, those that the timer began.
    pub(super) timer_polls: u64,
    pub(super) hand_overs: u64,
    /// Frames with a checksum that was left to the card.
    partial: u64,
    long_frames: u64,
    first: Option<Instant>,
    latest: Instant,
    /// Frames that are older than the one before.
    backward: u64,
    hold: Longest,
    wait: Longest,
    ended: Vec<Ended>,
    flows: HashMap<Option<Flow>, FlowCounts>,
    flows_left_out: u64,
}

/// The longest time of a kind.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    time: Duration,
    frame: u64,
}

impl Longest {
    fn count(&mut self, frame: u64, time: Duration) {
        if time > self.time {
            *self = Self { time, frame };
        }
    }
}

/// Super-frames that ended for one reason.
#[derive(Debug)]
struct Ended {
    reason: FlushReason,
    super_frames: u64,
    segs: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowCounts {
    frames: u64,
    bytes: u64,
    packets: u64,
}

impl Summary {
    /// Takes note of the time of a frame; gives it, or that of the latest frame if that is later.
    pub(super) fn latest_arrival(&mut self, time: Instant) -> Instant {
        if self.first.is_none() {
            self.first = Some(time);
        }
        self.backward += u64::from(time < self.latest);
        self.latest = self.latest.max(time);
        self.latest
    }

    pub(super) fn count_frame(&mut self, flow: Option<Flow>, len: usize, is_partial: bool) {
        self.partial += u64::from(is_partial);
        self.long_frames += u64::from(len > LONGEST_COMMON_FRAME);
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&flow) {
            self.flows_left_out += 1;
            return;
        }
        let counts = self.flows.entry(flow).or_default();
        counts.frames += 1;
        counts.bytes += len as u64;
    }

    pub(super) fn count_packet(&mut self, flow: Option<Flow>) {
        self.packets += 1;
        if let Some(counts) = self.flows.get_mut(&flow) {
            counts.packets += 1;
        }
    }

    /// `number` is the first frame of a packet, `hold` the time since a poll read it, `wait` that
    /// since it arrived.
    pub(super) fn count_delay(&mut self, number: u64, hold: Duration, wait: Duration) {
        self.hold.count(number, hold);
        self.wait.count(number, wait);
    }

    /// Finds out which super-frames one call of the engine ended, and why. No call completes
    /// packets for two reasons.
    pub(super) fn count_ended(&mut self, before: &GroStats, after: &GroStats) {
        let super_frames = after.super_frames - before.super_frames;
        if super_frames == 0 {
            return;
        }
        let Some(reason) =
            FlushReason::all().find(|reason| after.completed(*reason) > before.completed(*reason))
        else {
            return;
        };
        let at = self.ended.iter().position(|ended| ended.reason == reason);
        let at = at.unwrap_or_else(|| {
            self.ended.push(Ended {
                reason,
                super_frames: 0,
                segs: 0,
            });
            self.ended.len() - 1
        });
        if let Some(ended) = self.ended.get_mut(at) {
            ended.super_frames += super_frames;
            ended.segs += after.super_frame_segs - before.super_frame_segs;
        }
    }

    /// The summary with the `top` flows that have most frames.
    pub(super) fn show(&self, top: usize) -> impl fmt::Display {
        let mut text = self.totals();
        self.add_skipped(&mut text);
        self.add_reasons(&mut text);
        self.add_flows(&mut text, top);
        text
    }

    fn totals(&self) -> String {
        let engine = &self.engine;
        let dropped: u64 = DropReason::ALL
            .map(|reason| engine.dropped(reason))
            .iter()
            .sum();
        let accepted = engine.frames - dropped;
        let span = self.latest - self.first.unwrap_or(self.latest);
        let singles = self.packets - engine.super_frames;
        let mut text = format!(
            "in           {} frames, {} bytes, {:.6} s\n\
             out          {} packets: {} super-frames of {} segments, {singles} single frames\n\
             merge ratio  {:.2} frames a packet\n\
             polls        {}, {} by the timer; {} hand-overs\n",
            engine.frames,
            engine.bytes,
            span.as_secs_f64(),
            self.packets,
            engine.super_frames,
            engine.super_frame_segs,
            ratio(accepted, self.packets),
            self.polls,
            self.timer_polls,
            self.hand_overs,
        );
        for (name, longest, what) in [
            (
                "longest hold",
                self.hold,
                "from being read to being handed over",
            ),
            ("longest wait", self.wait, "from the wire until then"),
        ] {
            if longest.frame > 0 {
                let Longest { time, frame } = longest;
                let micros = time.as_secs_f64() * 1e6;
                text += &format!("{name} {micros:.3} us {what}, frame {frame}\n");
            }
        }
        text
    }

    /// What was not used, and what makes the result doubtful.
    fn add_skipped(&self, text: &mut String) {
        let Skipped {
            snapped,
            not_ethernet,
            obsolete,
        } = self.skipped;
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                text.push_str(&format!("note         {count} {what}\n"));
            }
        };
        note(
            snapped,
            "frames skipped, captured only in part: what follows them cannot merge",
        );
        note(not_ethernet, "frames skipped, not from Ethernet");
        note(obsolete, "frames skipped, in obsolete packet blocks");
        note(
            self.engine.dropped(DropReason::Runt),
            "frames dropped, shorter than an Ethernet header",
        );
        note(
            self.long_frames,
            "frames above 1522 bytes: a larger MTU, or merged already where they were captured",
        );
        note(
            self.partial,
            "frames with a checksum left to the card, captured where they were sent",
        );
        note(
            self.backward,
            "frames older than the one before, taken to have come together with it",
        );
    }

    fn add_reasons(&self, text: &mut String) {
        let mut ended: Vec<_> = self.ended.iter().collect();
        ended.sort_by_key(|ended| std::cmp::Reverse(ended.super_frames));
        if !ended.is_empty() {
            text.push_str("\nsuper-frames  segments  ended by\n");
        }
        for Ended {
            reason,
            super_frames,
            segs,
        } in ended
        {
            let kind = match reason {
                FlushReason::Conflict(_) => "conflict: ",
                _ => "",
            };
            let name = reason.name();
            text.push_str(&format!("{super_frames:>12}  {segs:>8}  {kind}{name}\n"));
        }
        let bails = Bail::all().map(|bail| (self.engine.bailed(bail), bail.name()));
        let mut bails: Vec<_> = bails.filter(|(frames, _)| *frames > 0).collect();
        bails.sort_by_key(|(frames, _)| std::cmp::Reverse(*frames));
        if !bails.is_empty() {
            text.push_str("\n      frames  could not merge\n");
        }
        for (frames, name) in bails {
            text.push_str(&format!("{frames:>12}  {name}\n"));
        }
    }

    fn add_flows(&self, text: &mut String, top: usize) {
        let mut flows: Vec<_> = self.flows.iter().collect();
        // Equal ones in an order that does not depend on the table.
        flows.sort_by_cached_key(|(flow, counts)| {
            (std::cmp::Reverse(counts.frames), name(flow.as_ref()))
        });
        if flows.is_empty() || top == 0 {
            return;
        }
        let shown = flows.len().min(top);
        let all = flows.len();
        text.push_str(&format!(
            "\n      frames   packets  ratio         bytes  flow ({shown} of {all})\n"
        ));
        for (flow, counts) in flows.into_iter().take(top) {
            let FlowCounts {
                frames,
                bytes,
                packets,
            } = *counts;
            text.push_str(&format!(
                "{frames:>12}  {packets:>8}  {:>5.1}  {bytes:>12}  {}\n",
                ratio(frames, packets),
                name(flow.as_ref())
            ));
        }
        if self.flows_left_out > 0 {
            text.push_str(&format!(
                "{:>12}  of flows beyond the first {MAX_FLOWS}\n",
                self.flows_left_out
            ));
        }
    }
}

fn name(flow: Option<&Flow>) -> String {
    flow.map_or_else(|| "no flow".to_owned(), Flow::to_string)
}

#[allow(clippy::cast_precision_loss, reason = "shown with two digits")]
fn ratio(frames: u64, packets: u64) -> f64 {
    if packets == 0 {
        return 1.0;
    }
    frames as f64 / packets as f64
}
