//! A test uplink around another one that makes sending and receiving fail by a pattern.

use std::io;
use std::os::fd::BorrowedFd;

use super::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
    UplinkStats,
};

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the queue behind.
    #[default]
    Pass,
    /// The queue is full; a receive finds nothing.
    Full,
    /// This call fails, the next may pass.
    Refuse,
    /// The interface is down.
    Down,
    /// The device is gone.
    Gone,
}

/// The order of verdicts.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// These over and over; an empty list passes everything.
    Cycle(Vec<Verdict>),
    /// One of `faults` in about one call of `one_in`, the same ones for the same `seed`.
    Seeded {
        /// Start of the sequence.
        seed: u64,
        /// Mean distance between faults, in calls.
        one_in: u64,
        /// What may happen.
        faults: Vec<Verdict>,
    },
}

/// A queue whose calls fail by a pattern before they reach the queue behind.
#[derive(Debug)]
pub struct FaultQueue<Q> {
    inner: Q,
    send: Sequence,
    recv: Sequence,
}

impl<Q: UplinkQueue> FaultQueue<Q> {
    /// Wraps `inner` with one pattern for sends and one for receive batches.
    pub const fn new(inner: Q, send: Pattern, recv: Pattern) -> Self {
        Self {
            inner,
            send: Sequence::new(send),
            recv: Sequence::new(recv),
        }
    }
}

impl<Q: UplinkQueue> UplinkQueue for FaultQueue<Q> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn fd_generation(&self) -> u64 {
        self.inner.fd_generation()
    }

    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        self.inner.look_after(failed)
    }

    fn carrier(&self) -> Option<bool> {
        self.inner.carrier()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        match self.recv.next() {
            Verdict::Pass => self.inner.recv_batch(pool, budget, out),
            Verdict::Full => Ok(RecvEnd::Empty),
            Verdict::Refuse => Err(RecvError::Failed(io::ErrorKind::Other.into())),
            Verdict::Down => Err(RecvError::Down),
            Verdict::Gone => Err(RecvError::Gone(io::ErrorKind::NotConnected.into())),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        match self.send.next() {
            Verdict::Pass => self.inner.send(frame),
            Verdict::Full => Err(SendError::Full),
            Verdict::Refuse => Err(SendError::Refused(io::ErrorKind::InvalidInput.into())),
            Verdict::Down => Err(SendError::Down),
            Verdict::Gone => Err(SendError::Gone(io::ErrorKind::NotConnected.into())),
        }
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        self.inner.flush()
    }

    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.inner.set_offloads(offloads)
    }

    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        self.inner.set_active(is_active)
    }

    fn stats(&self) -> UplinkStats {
        self.inner.stats()
    }
}

#[derive(Debug)]
struct Sequence {
    pattern: Pattern,
    at: usize,
}

impl Sequence {
    const fn new(pattern: Pattern) -> Self {
        Self { pattern, at: 0 }
    }

    fn next(&mut self) -> Verdict {
        match &mut self.pattern {
            Pattern::Cycle(verdicts) => {
                let verdict = verdicts.get(self.at).copied().unwrap_or_default();
                self.at = (self.at + 1) % verdicts.len().max(1);
                verdict
            }
            Pattern::Seeded {
                seed,
                one_in,
                faults,
            } => {
                let draw = next_random(seed);
                if faults.is_empty() || !draw.is_multiple_of((*one_in).max(1)) {
                    return Verdict::Pass;
                }
                let pick = next_random(seed) % faults.len() as u64;
                let pick = usize::try_from(pick).unwrap_or(0);
                faults.get(pick).copied().unwrap_or_default()
            }
        }
    }
}

/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
const fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
