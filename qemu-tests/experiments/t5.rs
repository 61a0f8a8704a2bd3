//! T5: merging in workers that a reader spreads frames over.

use anyhow::Result;

use crate::Experiment;
use crate::bench::{Bench, Contender, plain_guest};
use crate::harness::{Lab, VmConfig, Wire};
use crate::measures::{
    BACKEND_PER_KB, BYTES_PER_PACKET, OFO_QUEUE, P50, P90, P99, THROUGHPUT, TRANSACTIONS,
    VCPU_PER_KB, shown,
};
use crate::part::{Measure, Part, Trial};
use crate::turns::Outcome;
use crate::works::{self, Scene};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "T5",
    title: "merging in workers that a reader spreads frames over",
    story: "GRO in pinned threads, each for a processor, to which frames were steered (2024): with 8 flows of requests \
beside 16 streams throughput rose by 30.5 %, transactions by 1.0 %, p50 went from 84.9 to 81.8 us and p99 from 125.4 to \
136.2; where a timestamp was left in each frame's metadata nothing merged, and throughput fell by 41.3 %. Here a guest \
has two queue pairs. `1 reader` is a tap of one queue, read by a thread that spreads flows over 1 or 2 workers; \
`not steered` is a tap of two queues. `marks` gives each frame another metadata on purpose, which must show the loss. \
Look at the bytes per packet first. All threads of the daemon share one processor: what a second worker costs is \
seen here, not what it gains.",
    seconds: 3,
    run,
};

/// Connections with requests, and streams beside them.
const FLOWS: (usize, usize) = (8, 16);
const PAIRS: u16 = 2;

const MEASURES: &[Measure] = &[
    THROUGHPUT,
    shown(BYTES_PER_PACKET),
    shown(TRANSACTIONS),
    P50,
    P90,
    P99,
    VCPU_PER_KB,
    BACKEND_PER_KB,
    OFO_QUEUE,
];

/// Name, options, queues of the tap.
const SETTINGS: [(&str, &str, u16); 7] = [
    ("off, not steered", "--gro off", 2),
    ("on, not steered", "--gro on", 2),
    ("on, not steered, marks", "--gro on --fault-marks", 2),
    (
        "off, 1 reader, 1 worker",
        "--gro off --uplink-queues 1 --workers 1",
        1,
    ),
    (
        "on, 1 reader, 1 worker",
        "--gro on --uplink-queues 1 --workers 1",
        1,
    ),
    (
        "off, 1 reader, 2 workers",
        "--gro off --uplink-queues 1 --workers 2",
        1,
    ),
    (
        "on, 1 reader, 2 workers",
        "--gro on --uplink-queues 1 --workers 2",
        1,
    ),
];

fn run(bench: &Bench<'_>) -> Result<Vec<Outcome>> {
    let lab = Lab::new(bench.kit, Wire::Frames, 1500)?;
    let two_pairs = VmConfig {
        queues: PAIRS,
        vcpus: PAIRS,
        ..plain_guest()
    };
    let guest = |(name, options, queues): (&'static str, &str, u16)| {
        let uplink = format!("--tap {}", lab.add_tap(queues)?);
        Ok((name, bench.daemon(&uplink, options, &two_pairs)))
    };
    let guests: Vec<(&str, Contender)> = SETTINGS.into_iter().map(guest).collect::<Result<_>>()?;
    let trials = guests.iter().map(|(name, contender)| {
        let sender = &lab.sender;
        Trial::new(*name, contender, move |station, length| {
            let scene = Scene {
                bench,
                sender,
                station,
            };
            works::mixed(&scene, FLOWS, length)
        })
    });
    let part = Part {
        letter: "a".into(),
        title: format!("TCP_RR over {} connections, {} streams", FLOWS.0, FLOWS.1),
        measures: MEASURES,
        trials: trials.collect(),
        most_rounds: None,
    };
    Ok(bench.take_turns(&[part]))
}
