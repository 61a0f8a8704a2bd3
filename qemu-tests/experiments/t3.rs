//! T3: one ordered list, handed over in the right order.

use anyhow::Result;

use crate::Experiment;
use crate::bench::{Bench, Contender, plain_guest};
use crate::harness::netperf::Workload;
use crate::harness::{Lab, Wire};
use crate::measures::{BYTES_PER_PACKET, DROPPED, OFO_QUEUE, RETRANSMISSIONS, THROUGHPUT, shown};
use crate::part::{Measure, Part, Trial};
use crate::turns::Outcome;
use crate::works::{self, Scene};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "T3",
    title: "one ordered list, handed over in the right order",
    story: "Completed frames had overtaken those that waited in a list (2020): over one flow 831 Mbit/s with 335 \
retransmissions, over ten 855 with 34314; with everything in one list, handed over after the flush, 881 with 104 and \
865 with 11340. Hoped for here: TCPOFOQueue and retransmissions 0 where nothing is dropped. `broken order` is a daemon \
that swaps two frames in one read of 100 on purpose: there the counters must rise, or the experiment would be blind. \
`--seconds 600 --rounds 1` is the long form.",
    seconds: 8,
    run,
};

/// Frames that wait in a tap: more than ten flows ever have on their way, so that none is dropped.
const QUEUE: u32 = 40_000;

const MEASURES: &[Measure] = &[
    THROUGHPUT,
    shown(OFO_QUEUE),
    shown(RETRANSMISSIONS),
    DROPPED,
    BYTES_PER_PACKET,
];

fn run(bench: &Bench<'_>) -> Result<Vec<Outcome>> {
    let lab = Lab::new(bench.kit, Wire::Frames, 1500)?;
    let guest = |options: &str| -> Result<Contender> {
        let tap = lab.add_tap(1)?;
        lab.lengthen(&tap, QUEUE)?;
        let uplink = format!("--tap {tap}");
        Ok(bench.daemon(&uplink, options, &plain_guest()))
    };
    let guests = [
        ("in order", guest("")?),
        ("merging off", guest("--gro off")?),
        ("broken order", guest("--fault-swap-one-in 100")?),
    ];
    let parts = [("a", 1), ("b", 10)].map(|(letter, flows)| {
        let trials = guests.iter().map(|(name, contender)| {
            let lab = &lab;
            Trial::new(*name, contender, move |station, length| {
                let scene = Scene {
                    bench,
                    sender: &lab.sender,
                    station,
                };
                works::inbound(&scene, (Workload::TcpStream, flows), length)
            })
        });
        Part {
            letter: letter.into(),
            title: format!("TCP_STREAM, flows: {flows}"),
            measures: MEASURES,
            trials: trials.collect(),
            most_rounds: None,
        }
    });
    let wanted = parts.into_iter().filter(|part| bench.wants(&part.letter));
    Ok(bench.take_turns(&wanted.collect::<Vec<_>>()))
}
