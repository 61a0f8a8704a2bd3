//! Steering: an uplink with few queues, made into one with many (rules THR-2, THR-3, THR-5).
//!
//! A reader thread owns each queue of the device. It spreads the frames by the hash of their flow
//! over bounded rings, one to each worker, and sends what the workers hand over. What a worker gets
//! is a `port` that looks like a queue of a device, so neither worker nor engine know of any of
//! this: each has its own engine, polls its port and flushes as for any other queue. Up to `batch`
//! frames are taken from a ring at once; a poll takes its budget, and when the ring is empty the
//! poll model says what is flushed: everything if `gro_flush_timeout` is 0, else what is due.
//!
//! - `lane`: a ring of frames between two threads, which are copied in and out;
//! - `doorbell`: how one thread wakes another that sleeps;
//! - `gate`: what the threads know of each other;
//! - `reader`, `port`: the two sides.
//!
//! A ring that is full drops, and counts, the frames of its own worker; nobody waits for it, so the
//! flows of other workers are not delayed. Frames of one flow go one way: to the same port as long as
//! the same ports are active. When that changes flows may move, as they do on any device with
//! several queues.
//!
//! Nothing is lost when a port becomes inactive, but counted: its worker takes what is in the ring
//! before ([`UplinkQueue::backlog`]), what comes later carries the number of a run that is over.

mod doorbell;
mod gate;
mod lane;
mod options;
mod port;
mod reader;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use log::{error, warn};
use rustix::thread::set_current_timer_slack;

pub use options::{SteerConfig, SteerOptions};

use self::gate::{Desk, Gate};
use self::lane::{LaneReceiver, lane};
use self::port::Port;
use self::reader::{Exit, Reader, Spreading};
use super::{Uplink, UplinkCaps, UplinkQueue};
use crate::sys::{EpollSet, Placement, PlacementError};

/// Why there can be no readers.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum SteerError {
    /// A reader cannot be where it should.
    #[error("reader {index} cannot be placed")]
    Placement {
        index: usize,
        source: PlacementError,
    },
    /// No thread or descriptor can be had.
    #[error("the readers cannot be started")]
    Resources(#[from] io::Error),
}

/// A device with readers in front of its queues.
pub struct Steered {
    name: String,
    caps: UplinkCaps,
    ports: Vec<Port>,
}

impl Steered {
    /// Starts a reader for each queue of `device`, and gives it `ports` queues, at most 32.
    ///
    /// # Errors
    /// See [`SteerError`].
    pub fn around(
        mut device: Box<dyn Uplink>,
        ports: usize,
        config: &SteerConfig,
    ) -> Result<Self, SteerError> {
        let queues = device.take_queues();
        let name = format!("{}, steered", device.name());
        let caps = UplinkCaps {
            queues: ports,
            batches: true,
            ..device.caps()
        };
        let gates = (0..ports).map(|_| Gate::new().map(Arc::new));
        let gates: Vec<_> = gates.collect::<io::Result<_>>()?;
        let desks = queues.iter().map(|_| Desk::new());
        let desks: Vec<_> = desks.collect::<io::Result<_>>()?;
        let (homes, questions): (Vec<_>, Vec<_>) = desks
            .into_iter()
            .map(|(desk, questions)| (Arc::new(desk), questions))
            .unzip();
        let readers = Arc::new(Readers {
            desks: homes.clone(),
            threads: Mutex::default(),
        });

        let mut into_ports: Vec<Vec<LaneReceiver>> = (0..ports).map(|_| Vec::new()).collect();
        let mut exits: Vec<Vec<Exit>> = queues.iter().map(|_| Vec::new()).collect();
        for exits in &mut exits {
            for (gate, lanes) in gates.iter().zip(&mut into_ports) {
                let (sender, receiver) = lane(config.ring);
                lanes.push(receiver);
                exits.push(Exit {
                    lane: sender,
                    gate: Arc::clone(gate),
                });
            }
        }
        let mut entries: Vec<Vec<LaneReceiver>> = queues.iter().map(|_| Vec::new()).collect();
        let mut made = Vec::with_capacity(ports);
        for (nth, (gate, lanes)) in gates.into_iter().zip(into_ports).enumerate() {
            let home = nth % homes.len();
            let (out, entry) = lane(config.ring);
            entries[home].push(entry);
            made.push(Port::new(
                (lanes, out),
                (gate, Arc::clone(&homes[home])),
                nth == home,
                Arc::clone(&readers),
                config.batch,
            ));
        }

        let spreading = Spreading {
            scope: config.scope,
            batch: config.batch,
        };
        let ends = homes.into_iter().zip(questions);
        let lanes = exits.into_iter().zip(entries);
        for (index, ((queue, end), lanes)) in queues.into_iter().zip(ends).zip(lanes).enumerate() {
            let set = EpollSet::new()?;
            let start = move || Reader::new(queue, end, lanes, spreading, set);
            readers.start(index, config.placement(index), start)?;
        }
        Ok(Self {
            name,
            caps,
            ports: made,
        })
    }
}

impl Uplink for Steered {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn caps(&self) -> UplinkCaps {
        self.caps
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.ports.drain(..))
    }
}

/// The running readers. They end with the last port.
struct Readers {
    desks: Vec<Arc<Desk>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Starts a reader; when this returns it is in its place.
    fn start(
        &self,
        index: usize,
        placement: Placement,
        make: impl FnOnce() -> Reader + Send + 'static,
    ) -> Result<(), SteerError> {
        let (placed, is_placed) = std::sync::mpsc::sync_channel(1);
        let run = move || {
            let result = placement.take();
            let is_right = result.is_ok();
            // Whoever starts a reader waits for this.
            let _ = placed.send(result);
            if is_right {
                // Waits of a millisecond and less are to be kept.
                if let Err(error) = set_current_timer_slack(core::num::NonZeroU64::new(1)) {
                    warn!("reader {index}: timers stay coarse: {error}");
                }
                let mut reader = make();
                if catch_unwind(AssertUnwindSafe(|| reader.run())).is_err() {
                    // A defect of ours. The guest loses its link, and nothing hangs.
                    error!("reader {index}: internal error, the uplink is given up");
                    reader.abandon();
                }
            }
        };
        let thread = Builder::new().name(format!("steer-{index}")).spawn(run)?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        match is_placed.recv() {
            Ok(Err(source)) => Err(SteerError::Placement { index, source }),
            _ => Ok(()),
        }
    }

    /// Those of a test that plays them.
    #[cfg(test)]
    fn none() -> Arc<Self> {
        Arc::new(Self {
            desks: Vec::new(),
            threads: Mutex::default(),
        })
    }

    /// Tells all readers that something was changed at a gate.
    fn note_change(&self) {
        self.desks.iter().for_each(|desk| desk.note_change());
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.desks.iter().for_each(|desk| desk.end());
        let threads = self.threads.get_mut();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            if thread.join().is_err() {
                warn!("a reader ended with an internal error");
            }
        }
    }
}
