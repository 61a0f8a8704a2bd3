//! A steered queue: what a worker has in place of a queue of the device.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::Readers;
use super::gate::{Desk, Gate};
use super::lane::{Label, LaneReceiver, LaneSender, Refusal};
use crate::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
    UplinkStats,
};
use crate::wire::RxMeta;

/// Where a frame begins in a pool buffer, so that its IP header is on a 16-byte boundary.
pub(super) const FRAME_AT: usize = 18;

/// A queue that readers fill. It is owned by one worker, and shares rings with each reader.
pub(super) struct Port {
    /// One from each reader.
    lanes: Vec<LaneReceiver>,
    /// The lane at the head of the next look.
    next: usize,
    /// To the reader that sends for this port.
    out: LaneSender,
    gate: Arc<Gate>,
    /// That of the same reader.
    home: Arc<Desk>,
    /// Whether it is this port that shows the counters of the device's queue.
    shows_device: bool,
    readers: Arc<Readers>,
    /// Most frames that are taken before there is room for others.
    batch: usize,
    /// Something was sent since the last flush.
    unsent: bool,
    /// Frames that were meant for an earlier run.
    discarded: u64,
}

impl Port {
    pub(super) fn new(
        (lanes, out): (Vec<LaneReceiver>, LaneSender),
        (gate, home): (Arc<Gate>, Arc<Desk>),
        shows_device: bool,
        readers: Arc<Readers>,
        batch: usize,
    ) -> Self {
        Self {
            lanes,
            next: 0,
            out,
            gate,
            home,
            shows_device,
            readers,
            batch,
            unsent: false,
            discarded: 0,
        }
    }

    /// Takes frames from all lanes in turn, a batch from each, until they are empty.
    fn take(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<(), RecvEnd> {
        let epoch = self.gate.epoch();
        let end = out.len() + budget;
        let mut empty = 0;
        while empty < self.lanes.len() {
            let most = self.batch.min(end - out.len());
            if most == 0 {
                return Err(RecvEnd::Budget);
            }
            let mut is_pool_empty = false;
            let discarded = &mut self.discarded;
            let lane = &mut self.lanes[self.next];
            let taken = lane.take(most, |label, bytes| {
                if label.epoch != epoch {
                    *discarded += 1;
                    bytes.skip();
                    return true;
                }
                let Some(mut frame) = pool.take() else {
                    is_pool_empty = true;
                    return false;
                };
                let range = FRAME_AT..FRAME_AT + bytes.len();
                // The lane takes no frame that does not fit.
                if let Some(buffer) = frame.spare_mut().get_mut(range.clone()) {
                    bytes.copy_to(buffer);
                }
                frame.set_range(range.start, range.end);
                let meta = label.meta;
                out.push(RxFrame { frame, meta });
                true
            });
            if is_pool_empty {
                return Err(RecvEnd::PoolEmpty);
            }
            self.next = (self.next + 1) % self.lanes.len();
            empty = if taken == 0 { empty + 1 } else { 0 };
        }
        Ok(())
    }

    /// Throws away and counts what waits.
    fn discard(&mut self) {
        for lane in &mut self.lanes {
            let skip = |_, bytes: super::lane::Bytes<'_>| {
                bytes.skip();
                true
            };
            self.discarded += lane.take(usize::MAX, skip) as u64;
        }
    }
}

impl UplinkQueue for Port {
    fn fd(&self) -> BorrowedFd<'_> {
        self.gate.bell.fd()
    }

    fn look_after(&mut self, _failed: bool) -> Result<(), RecvError> {
        self.home
            .gone()
            .map_or(Ok(()), |why| Err(RecvError::Gone(why)))
    }

    fn carrier(&self) -> Option<bool> {
        self.home.carrier()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        let end = out.len() + budget;
        loop {
            if let Err(stopped) = self.take(pool, end - out.len(), out) {
                // The descriptor is readable as long as frames wait.
                self.gate.bell.ring();
                return Ok(stopped);
            }
            self.gate.bell.clear();
            self.gate.bell.want();
            if self.backlog() == 0 {
                self.look_after(false)?;
                return Ok(RecvEnd::Empty);
            }
        }
    }

    /// The frame is copied, so the guest has its buffers back at once; the reader sends it.
    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        if let Some(why) = self.home.gone() {
            return Err(SendError::Gone(why));
        }
        let label = Label {
            meta: RxMeta {
                vnet: frame.vnet,
                merge_mark: 0,
            },
            epoch: 0,
        };
        self.unsent = true;
        match self.out.push(label, frame.head, frame.rest) {
            Ok(()) => Ok(()),
            Err(Refusal::Full) => Err(SendError::Full),
            Err(Refusal::TooLong) => Err(SendError::Refused(Errno::MSGSIZE.into())),
        }
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        if core::mem::take(&mut self.unsent) {
            self.home.bell.ring();
        }
        Ok(Flushed::All)
    }

    /// Takes effect a moment later.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.gate.set_offloads(offloads);
        self.readers.note_change();
        Ok(())
    }

    /// Flows of a port that is not active are spread over the others. What still comes is counted,
    /// and so is what waits.
    fn set_active(&mut self, is_active: bool) -> io::Result<()> {
        self.gate.set_open(is_active);
        if !is_active {
            self.discard();
        }
        self.readers.note_change();
        Ok(())
    }

    fn backlog(&self) -> usize {
        self.lanes.iter().map(LaneReceiver::len).sum()
    }

    fn stats(&self) -> UplinkStats {
        let device = if self.shows_device {
            self.home.stats()
        } else {
            UplinkStats::default()
        };
        let late = self.gate.late.load(Ordering::Relaxed);
        UplinkStats {
            rx_steer_full: self.gate.ring_full.load(Ordering::Relaxed),
            rx_discarded: device.rx_discarded + self.discarded + late,
            ..device
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::{EpollSet, Interest};
    use crate::uplink::steer::lane::lane;

    /// A port with lanes from two readers, which this test plays.
    struct Rig {
        port: Port,
        lanes: Vec<LaneSender>,
        gate: Arc<Gate>,
        set: EpollSet,
        pool: FramePool,
        got: Vec<RxFrame>,
    }

    impl Rig {
        fn new() -> Self {
            let (lanes, receivers) = (0..2).map(|_| lane(8)).unzip();
            let (out, _) = lane(8);
            let gate = Arc::new(Gate::new().unwrap());
            let home = Arc::new(Desk::new().unwrap().0);
            let readers = Readers::none();
            let ends = (Arc::clone(&gate), home);
            let port = Port::new((receivers, out), ends, false, readers, 3);
            gate.set_open(true);
            let set = EpollSet::new().unwrap();
            set.add(port.fd(), 0, Interest::Read).unwrap();
            Self {
                port,
                lanes,
                gate,
                set,
                pool: FramePool::new(16),
                got: Vec::new(),
            }
        }

        fn push(&mut self, lane: usize, epoch: u32, byte: u8) {
            let label = Label {
                epoch,
                ..Label::default()
            };
            self.lanes[lane].push(label, &[byte; 60], &[]).unwrap();
        }

        /// Takes up to `budget` frames; the first byte of each.
        fn take(&mut self, budget: usize) -> (Vec<u8>, RecvEnd) {
            let end = self.port.recv_batch(&self.pool, budget, &mut self.got);
            let first = |received: RxFrame| received.frame.as_ref()[0];
            (self.got.drain(..).map(first).collect(), end.unwrap())
        }

        fn is_readable(&self) -> bool {
            self.set.wait(Some(Duration::ZERO)).unwrap().iter().count() == 1
        }
    }

    #[test]
    fn f37_a_frame_of_another_run_is_counted_and_not_given() {
        let mut rig = Rig::new();
        let run = rig.gate.epoch();
        rig.push(0, run.wrapping_sub(2), 1);
        rig.push(0, run, 2);
        rig.push(1, run + 2, 3);
        assert_eq!(rig.take(8), (vec![2], RecvEnd::Empty));
        assert_eq!(rig.port.stats().rx_discarded, 2);
    }

    #[test]
    fn f29_what_is_left_behind_keeps_the_descriptor_readable() {
        let mut rig = Rig::new();
        let run = rig.gate.epoch();
        // They came while nobody asked to be woken.
        rig.push(0, run, 1);
        rig.push(0, run, 2);
        assert_eq!(rig.take(1), (vec![1], RecvEnd::Budget));
        assert!(rig.is_readable());
        assert_eq!(rig.take(8), (vec![2], RecvEnd::Empty));
        assert!(!rig.is_readable());
    }

    #[test]
    fn readers_take_turns_batch_by_batch() {
        let mut rig = Rig::new();
        let run = rig.gate.epoch();
        for byte in 0..5 {
            rig.push(0, run, byte);
            rig.push(1, run, 10 + byte);
        }
        assert_eq!(rig.port.backlog(), 10);
        let all = vec![0, 1, 2, 10, 11, 12, 3, 4, 13, 14];
        assert_eq!(rig.take(64), (all, RecvEnd::Empty));
    }
}
