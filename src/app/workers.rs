//! The data threads, and which queue pair is served by which.
//!
//! Pairs are dealt out in turn, so that a guest that uses the first few of its pairs keeps as many
//! threads at work as it can.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::config::Config;
use crate::backend::LinkHandle;
use crate::sys::Placement;
use crate::uplink::Uplink;
use crate::worker::{
    DataThread, LinkReport, PairConfig, PairControl, PairStats, Seat, SpawnError, ThreadConfig,
    Tracer,
};

/// Receive buffers of each queue pair. Sixteen full budgets: what is held and what waits for the
/// guest together; when they run out, the oldest packet is flushed (rule ENG-7).
const POOL_FRAMES: usize = 1024;

/// The running data threads.
pub(super) struct Workers {
    threads: Vec<DataThread>,
    pairs: usize,
}

impl Workers {
    /// Starts them, with a queue pair for each queue of `uplink`. Through `link` it is said when there is
    /// no host to talk to.
    pub(super) fn start(
        config: &Config,
        uplink: &mut dyn Uplink,
        link: &LinkHandle,
        tracers: Vec<Tracer>,
    ) -> Result<Self, SpawnError> {
        let uplink_offloads = uplink.caps().tx;
        let queues = uplink.take_queues();
        let pairs = queues.len();
        let workers = config.workers.min(pairs).max(1);
        let reports = reports(link, pairs);
        let mut tracers = tracers.into_iter();
        let mut seats: Vec<Vec<Seat>> = (0..workers).map(|_| Vec::new()).collect();
        for (index, (queue, link)) in queues.into_iter().zip(reports).enumerate() {
            seats[index % workers].push(Seat {
                index,
                queue,
                link,
                tracer: tracers.next(),
            });
        }
        let pair = PairConfig {
            gro: config.gro,
            napi: config.napi,
            pool_frames: POOL_FRAMES,
            mtu: config.mtu,
            tx: config.tx,
            uplink_offloads,
        };
        let start = |(index, seats)| {
            let thread = ThreadConfig {
                index,
                placement: Placement {
                    cpu: config.cpus.as_ref().and_then(|cpus| cpus.for_thread(index)),
                    policy: config.sched.as_ref().and_then(|all| all.for_thread(index)),
                },
                pair: pair.clone(),
            };
            DataThread::spawn(thread, seats)
        };
        let threads = seats.into_iter().enumerate().map(start);
        Ok(Self {
            threads: threads.collect::<Result<_, _>>()?,
            pairs,
        })
    }

    /// The handles of all pairs, in their order.
    pub(super) fn controls(&self) -> Vec<Arc<dyn PairControl>> {
        let control = |(thread, nth): (&DataThread, usize)| thread.control(nth);
        self.seats().map(|(_, seat)| control(seat)).collect()
    }

    /// The counters of all pairs, each with the number of its thread; `None` for those that are not
    /// there in the time that `left` gives.
    pub(super) fn stats(
        &self,
        left: impl Fn() -> Duration,
    ) -> impl Iterator<Item = (usize, Option<PairStats>)> {
        self.seats()
            .map(move |(worker, (thread, nth))| (worker, thread.stats_within(nth, left())))
    }

    /// Number and thread of each pair, and which one of the thread's it is.
    fn seats(&self) -> impl Iterator<Item = (usize, (&DataThread, usize))> {
        let workers = self.threads.len();
        (0..self.pairs).map(move |pair| {
            let worker = pair % workers;
            (worker, (&self.threads[worker], pair / workers))
        })
    }
}

/// Who is told of the link of each pair: it is up for the guest as long as it is up for all.
fn reports(link: &LinkHandle, pairs: usize) -> impl Iterator<Item = LinkReport> {
    // One bit for each pair whose link is down; there are at most 32 of them.
    let down = Arc::new(Mutex::new(0_u32));
    (0..pairs).map(move |pair| -> LinkReport {
        let (link, down) = (link.clone(), Arc::clone(&down));
        let bit = 1 << pair;
        Arc::new(move |is_up| {
            let mut down = down.lock().unwrap_or_else(PoisonError::into_inner);
            *down = if is_up { *down & !bit } else { *down | bit };
            link.hold_down(*down != 0);
        })
    })
}
