//! An uplink around another one that makes sending and receiving fail by a pattern, for tests.

use std::io;
use std::os::fd::BorrowedFd;

use clap::Args;
use rustix::io::Errno;

use super::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink,
    UplinkCaps, UplinkQueue, UplinkStats,
};
use crate::values::{number, switch};

/// The options of faults, which can be had with an uplink of any kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct FaultOptions {
    /// Let about one call in this many fail: the uplink is full, short of memory, refuses, or is
    /// down.
    #[arg(long, value_name = "CALLS", allow_negative_numbers = true,
        value_parser = number(1..=1_000_000_000u64, "calls"), hide = true)]
    pub fault_one_in: Option<u64>,

    /// Swap the last two frames of about one read in this many, so that flows lose their order.
    #[arg(long, value_name = "READS", allow_negative_numbers = true, conflicts_with = "fault_one_in",
        value_parser = number(1..=1_000_000_000u64, "reads"), hide = true)]
    pub fault_swap_one_in: Option<u64>,

    /// Give neighbouring frames metadata that differs, so that none merges.
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_value = "off", default_missing_value = "on",
        conflicts_with_all = ["fault_one_in", "fault_swap_one_in"], hide = true)]
    pub fault_marks: bool,

    /// Which ones; the same for the same number [default: 0].
    #[arg(long, value_name = "NUMBER", hide = true)]
    pub fault_seed: Option<u64>,
}

impl FaultOptions {
    /// Puts the faults that were asked for around `uplink`.
    #[must_use]
    pub fn around(&self, uplink: Box<dyn Uplink>) -> Box<dyn Uplink> {
        let (one_in, send, recv): (_, &[_], &[_]) =
            match (self.fault_one_in, self.fault_swap_one_in) {
                (Some(one_in), _) => (one_in, &SEND_FAULTS, &RECV_FAULTS),
                (None, Some(one_in)) => (one_in, &[], &[Verdict::Swap]),
                (None, None) if self.fault_marks => (1, &[], &[Verdict::Mark]),
                (None, None) => return uplink,
            };
        Box::new(Faulty {
            inner: uplink,
            seed: self.fault_seed.unwrap_or(0),
            one_in,
            send,
            recv,
        })
    }
}

/// A device whose queues fail now and then, each in its own way.
struct Faulty {
    inner: Box<dyn Uplink>,
    seed: u64,
    one_in: u64,
    send: &'static [Verdict],
    recv: &'static [Verdict],
}

impl Uplink for Faulty {
    fn name(&self) -> String {
        format!("{}, faulty", self.inner.name())
    }

    fn caps(&self) -> UplinkCaps {
        self.inner.caps()
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        let pattern = |seed, faults: &[Verdict]| Pattern::Seeded {
            seed,
            one_in: self.one_in,
            faults: faults.to_vec(),
        };
        let mut seed = self.seed;
        let mut wrap = |queue| -> Box<dyn UplinkQueue> {
            let send = pattern(next_random(&mut seed), self.send);
            let recv = pattern(next_random(&mut seed), self.recv);
            Box::new(FaultQueue::around(queue, send, recv))
        };
        self.inner
            .take_queues()
            .into_iter()
            .map(&mut wrap)
            .collect()
    }
}

/// What may happen to a send that is over when the next one may pass.
pub const SEND_FAULTS: [Verdict; 5] = [
    Verdict::Full,
    Verdict::NoMemory,
    Verdict::Refuse,
    Verdict::TooLong,
    Verdict::Down,
];

/// The same for receiving.
pub const RECV_FAULTS: [Verdict; 3] = [Verdict::Full, Verdict::Refuse, Verdict::Down];

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the queue behind.
    #[default]
    Pass,
    /// The last two frames of a receive come in the wrong order. A send passes.
    Swap,
    /// The frames of a receive carry marks, each another one. A send passes.
    Mark,
    /// The queue is full; a receive finds nothing.
    Full,
    /// The host is short of memory.
    NoMemory,
    /// This call fails, the next may pass.
    Refuse,
    /// The host says that the frame is too long, the next may pass.
    TooLong,
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
pub struct FaultQueue {
    inner: Box<dyn UplinkQueue>,
    send: Sequence,
    recv: Sequence,
}

impl FaultQueue {
    /// Wraps `inner` with one pattern for sends and one for receive batches.
    pub fn new(inner: impl UplinkQueue + 'static, send: Pattern, recv: Pattern) -> Self {
        Self::around(Box::new(inner), send, recv)
    }

    /// The same around a queue of a kind that is not known.
    #[must_use]
    pub const fn around(inner: Box<dyn UplinkQueue>, send: Pattern, recv: Pattern) -> Self {
        Self {
            inner,
            send: Sequence::new(send),
            recv: Sequence::new(recv),
        }
    }
}

impl UplinkQueue for FaultQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn fd_generation(&self) -> u64 {
        self.inner.fd_generation()
    }

    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        self.inner.look_after(failed)
    }

    fn backlog(&self) -> usize {
        self.inner.backlog()
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
            Verdict::Mark => {
                let before = out.len();
                let end = self.inner.recv_batch(pool, budget, out)?;
                let new = out.get_mut(before..).unwrap_or_default();
                for (mark, frame) in (1..).zip(new) {
                    frame.meta.merge_mark = mark;
                }
                Ok(end)
            }
            Verdict::Swap => {
                let before = out.len();
                let end = self.inner.recv_batch(pool, budget, out)?;
                if let Some([.., one, other]) = out.get_mut(before..) {
                    std::mem::swap(one, other);
                }
                Ok(end)
            }
            Verdict::Full => Ok(RecvEnd::Empty),
            Verdict::NoMemory => Err(RecvError::Failed(Errno::NOMEM.into())),
            Verdict::Refuse | Verdict::TooLong => {
                Err(RecvError::Failed(io::ErrorKind::Other.into()))
            }
            Verdict::Down => Err(RecvError::Down),
            Verdict::Gone => Err(RecvError::Gone(io::ErrorKind::NotConnected.into())),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        match self.send.next() {
            Verdict::Pass | Verdict::Swap | Verdict::Mark => self.inner.send(frame),
            Verdict::Full => Err(SendError::Full),
            Verdict::NoMemory => Err(SendError::NoMemory),
            Verdict::Refuse => Err(SendError::Refused(Errno::INVAL.into())),
            Verdict::TooLong => Err(SendError::Refused(Errno::MSGSIZE.into())),
            Verdict::Down => Err(SendError::Down),
            Verdict::Gone => Err(SendError::Gone(io::ErrorKind::NotConnected.into())),
        }
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        self.inner.flush()
    }

    fn take_completed(&mut self) -> Option<u32> {
        self.inner.take_completed()
    }

    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.inner.set_offloads(offloads)
    }

    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        self.inner.set_active(is_active)
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.inner.events()
    }

    fn is_watched(&self) -> bool {
        self.inner.is_watched()
    }

    fn follow_device(&mut self) {
        self.inner.follow_device();
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
