//! T1: batched receive.

use anyhow::Result;

use crate::Experiment;
use crate::bench::{Bench, Contender, plain_guest};
use crate::harness::netperf::Workload;
use crate::harness::{Lab, Wire};
use crate::measures::{
    BACKEND_PER_KB, BACKEND_PER_TRANSACTION, BYTES_PER_PACKET, GUEST_PER_KB, P50, P90, P99,
    THROUGHPUT, TRANSACTIONS, VCPU_PER_KB, VCPU_PER_TRANSACTION,
};
use crate::part::{Part, Trial};
use crate::turns::Outcome;
use crate::works::{self, Scene};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "T1",
    title: "batched receive",
    story: "Packets were handed to the stack in batches of 8 (2019): four merged streams needed 8.4 % less CPU (p 0.136; \
13.7 % with the first patch alone, p 0.031), one stream that could not be merged gained 3.6 % (p 0.169), 13.3 % with busy \
polling (p 0.026), 100 connections with 8000 bytes a request changed by -1.9 % (p 0.254), with busy polling by +3.0 % (p < \
0.001). Hoped for here: throughput of what cannot be merged up or CPU per byte down with p < 0.05, latency not worse. The \
settings are `gro_normal_batch`.",
    seconds: 2,
    run,
};

const BATCHES: [u32; 3] = [1, 8, 64];
/// As many as an emulated guest answers in a few seconds.
const CONNECTIONS: usize = 24;
const BUSY: &str = "--busy-poll-usecs 50";

#[derive(Debug, Clone, Copy)]
enum Work {
    Streams(usize),
    Requests(u32),
}

impl Work {
    fn title(self) -> String {
        match self {
            Work::Streams(1) => "one stream".into(),
            Work::Streams(count) => format!("{count} streams"),
            Work::Requests(bytes) => {
                format!("TCP_RR of {bytes} bytes, {CONNECTIONS} connections")
            }
        }
    }
}

/// A way of receiving, on which batches are compared.
struct Mode {
    name: &'static str,
    options: String,
    works: &'static [(&'static str, Work)],
}

fn modes() -> [Mode; 4] {
    let mode = |name, options: &str, works| Mode {
        name,
        options: options.to_owned(),
        works,
    };
    [
        mode(
            "merging on",
            "--gro on",
            &[
                ("a", Work::Streams(1)),
                ("b", Work::Streams(4)),
                ("c", Work::Requests(1)),
            ],
        ),
        mode(
            "merging off",
            "--gro off",
            &[
                ("d", Work::Streams(1)),
                ("e", Work::Streams(4)),
                ("f", Work::Requests(1)),
                ("g", Work::Requests(8000)),
            ],
        ),
        mode(
            "merging on, busy polling",
            &format!("--gro on {BUSY}"),
            &[("h", Work::Streams(1))],
        ),
        mode(
            "merging off, busy polling",
            &format!("--gro off {BUSY}"),
            &[
                ("i", Work::Streams(1)),
                ("j", Work::Requests(1)),
                ("k", Work::Requests(8000)),
            ],
        ),
    ]
}

fn run(bench: &Bench<'_>) -> Result<Vec<Outcome>> {
    let lab = Lab::new(bench.kit, Wire::Frames, 1500)?;
    let mut modes: Vec<(Mode, Vec<(u32, Contender)>)> = Vec::new();
    for mode in modes_wanted(bench) {
        let mut guests = Vec::new();
        for batch in BATCHES {
            let uplink = format!("--tap {}", lab.add_tap(1)?);
            let options = format!("{} --gro-normal-batch {batch}", mode.options);
            guests.push((batch, bench.daemon(&uplink, &options, &plain_guest())));
        }
        modes.push((mode, guests));
    }
    let mut parts = Vec::new();
    for (mode, guests) in &modes {
        let wanted = mode.works.iter().filter(|(letter, _)| bench.wants(letter));
        parts.extend(
            wanted.map(|&(letter, work)| part(bench, &lab, (letter, mode.name), work, guests)),
        );
    }
    Ok(bench.take_turns(&parts))
}

/// Those of which a part was asked for.
fn modes_wanted(bench: &Bench<'_>) -> impl Iterator<Item = Mode> {
    let wanted = |mode: &Mode| mode.works.iter().any(|(letter, _)| bench.wants(letter));
    modes().into_iter().filter(wanted)
}

fn part<'a>(
    bench: &'a Bench<'a>,
    lab: &'a Lab<'a>,
    (letter, mode): (&str, &str),
    work: Work,
    guests: &'a [(u32, Contender)],
) -> Part<'a> {
    let trials = guests.iter().map(|(batch, contender)| {
        Trial::new(
            format!("batch {batch}"),
            contender,
            move |station, length| {
                let scene = Scene {
                    bench,
                    sender: &lab.sender,
                    station,
                };
                match work {
                    Work::Streams(count) => {
                        works::inbound(&scene, (Workload::TcpStream, count), length)
                    }
                    Work::Requests(bytes) => works::requests(&scene, (bytes, CONNECTIONS), length),
                }
            },
        )
    });
    Part {
        letter: letter.into(),
        title: format!("{}, {mode}", work.title()),
        measures: match work {
            Work::Streams(_) => &[
                THROUGHPUT,
                VCPU_PER_KB,
                BACKEND_PER_KB,
                GUEST_PER_KB,
                BYTES_PER_PACKET,
            ],
            Work::Requests(_) => &[
                P50,
                P99,
                P90,
                TRANSACTIONS,
                VCPU_PER_TRANSACTION,
                BACKEND_PER_TRANSACTION,
            ],
        },
        trials: trials.collect(),
        most_rounds: None,
    }
}
