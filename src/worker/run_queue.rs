//! In which order the queue pairs of a data thread are served (rule NAPI-3).
//!
//! A turn has two parts. In a *round* every receive context that has something to do polls once,
//! up to its budget of frames, and goes to the end of the queue; so a context that never runs dry
//! is behind all others again after each poll. The round ends when nobody has more, or after
//! `round_budget` frames or `round_usecs` over all of them; the next one goes on where it ended.
//! Then every transmit ring is drained once, up to its quota. After that events are looked at.

use super::pair::QueuePair;
use crate::napi::Round;
use crate::time::Instant;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    /// The pair at the head of the queue.
    next: usize,
    /// The pair that is, or was last, at work: the one to blame for a panic.
    pub(super) at_work: usize,
}

impl RunQueue {
    /// Does what events and deadlines have scheduled. `clock` is asked between two polls.
    pub(super) fn serve(
        &mut self,
        pairs: &mut [QueuePair],
        mut now: Instant,
        clock: impl Fn() -> Instant,
    ) {
        let Some(first) = pairs.first() else {
            return;
        };
        let mut round = Round::new(first.napi_config(), now);
        while let Some(nth) = self.next_due(pairs, now) {
            self.at_work = nth;
            let work = pairs[nth].poll(now);
            // A poll that found nothing counts as well, so that the round always ends.
            if round.is_over_after(now, work.max(1)) {
                pairs
                    .iter_mut()
                    .filter(|pair| pair.is_due(now))
                    .for_each(QueuePair::note_squeeze);
                break;
            }
            now = clock();
        }
        for (nth, pair) in pairs.iter_mut().enumerate() {
            self.at_work = nth;
            pair.drain(now);
        }
    }

    /// Takes the first pair that has something to do from the queue, and puts it at the end with
    /// those in front of it, which have not.
    fn next_due(&mut self, pairs: &[QueuePair], now: Instant) -> Option<usize> {
        let order = (self.next..pairs.len()).chain(0..self.next);
        let nth = order.into_iter().find(|&nth| pairs[nth].is_due(now))?;
        self.next = (nth + 1) % pairs.len();
        Some(nth)
    }
}
