//! T2: merging with a flush timeout in front of a guest.

use anyhow::Result;

use crate::Experiment;
use crate::bench::{Bench, Contender, plain_guest};
use crate::harness::netperf::Workload;
use crate::harness::{Lab, Sender, Wire};
use crate::measures::{
    BACKEND_PER_KB, BACKEND_PER_TRANSACTION, BYTES_PER_PACKET, GUEST_PER_KB, OFO_QUEUE, P50, P90,
    P99, THROUGHPUT, TRANSACTIONS, VCPU_PER_KB,
};
use crate::part::{Part, Trial};
use crate::turns::Outcome;
use crate::works::{self, Scene};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "T2",
    title: "merging with a flush timeout in front of a guest",
    story: "A guest behind an overlay, for which nothing had been merged on the way, got GRO with a flush timeout of \
1000 ns (2015): throughput rose from 1364 / 1686 / 1678 / 1938 (min / median / average / max, Mbit/s) to 1824 / 2269 / \
2275 / 2647, the guest's receive demand fell from 1.906 / 2.188 / 2.191 / 2.531 us/KB to 0.448 / 0.529 / 0.533 / 0.692; \
where the host merged already nothing changed. Hoped for here: median throughput at least 1.35 times, receive demand at \
least 1/4.1 with the guest's own GRO off, no change beyond 1 % for packets of 64 KiB. The settings are \
`gro_flush_timeout_ns`, in us, with `off` for `--gro off`.",
    seconds: 2,
    run,
};

const TIMEOUTS_US: [u32; 6] = [0, 1, 10, 20, 50, 200];
/// Of packets that the host has merged already, and for latencies.
const FEWER: [&str; 4] = ["off", "0 us", "20 us", "200 us"];
/// Timeouts, each with these numbers of polls without a frame.
const DEFERRED_US: [u32; 2] = [20, 50];
const DEFERRALS: [u32; 3] = [0, 1, 10];

/// A guest under a setting.
struct Guest {
    setting: String,
    contender: Contender,
}

fn run(bench: &Bench<'_>) -> Result<Vec<Outcome>> {
    let lab = Lab::new(bench.kit, Wire::Frames, 1500)?;
    let tunnelled = lab.add_sender(2, Wire::Tunnelled)?;
    let bulk = lab.add_sender(3, Wire::Bulk)?;
    let wires = [
        ("ab", "frames of the MTU", &lab.sender),
        ("cd", "frames out of VXLAN", &tunnelled),
        ("ef", "packets of 64 KiB", &bulk),
    ];
    let wanted = |letters: &str| {
        letters
            .chars()
            .any(|letter| bench.wants(&letter.to_string()))
    };
    let timeouts = if wanted("abcdefh") {
        timeouts(bench, &lab)?
    } else {
        Vec::new()
    };
    let deferrals = if wanted("g") {
        deferrals(bench, &lab)?
    } else {
        Vec::new()
    };

    let mut parts = Vec::new();
    for (letters, wire, sender) in wires {
        let guests = timeouts.iter().filter(|guest| {
            !std::ptr::eq(sender, &bulk) || FEWER.contains(&guest.setting.as_str())
        });
        let guests: Vec<_> = guests.collect();
        for (letter, own_gro) in [(&letters[..1], "on"), (&letters[1..], "off")] {
            if wanted(letter) {
                parts.push(stream(bench, &guests, (letter, wire), sender, own_gro));
            }
        }
    }
    if wanted("g") {
        let guests: Vec<_> = deferrals.iter().collect();
        let title = "deferral, frames of the MTU";
        parts.push(stream(bench, &guests, ("g", title), &lab.sender, "on"));
    }
    if wanted("h") {
        parts.push(latency(bench, &timeouts, &lab.sender));
    }
    Ok(bench.take_turns(&parts))
}

fn timeouts(bench: &Bench<'_>, lab: &Lab<'_>) -> Result<Vec<Guest>> {
    let on = TIMEOUTS_US.map(|us| {
        let options = format!("--gro-flush-timeout-ns {}", us * 1000);
        (format!("{us} us"), options)
    });
    let off = ("off".to_owned(), "--gro off".to_owned());
    guests(bench, lab, std::iter::once(off).chain(on))
}

fn deferrals(bench: &Bench<'_>, lab: &Lab<'_>) -> Result<Vec<Guest>> {
    let settings = DEFERRED_US.iter().flat_map(|us| {
        DEFERRALS.map(|polls| {
            let timeout = format!("--gro-flush-timeout-ns {}", us * 1000);
            let options = format!("{timeout} --napi-defer-hard-irqs {polls}");
            (format!("{us} us, {polls}"), options)
        })
    });
    guests(bench, lab, settings)
}

fn guests(
    bench: &Bench<'_>,
    lab: &Lab<'_>,
    settings: impl Iterator<Item = (String, String)>,
) -> Result<Vec<Guest>> {
    let guest = |(setting, options): (String, String)| {
        let uplink = format!("--tap {}", lab.add_tap(1)?);
        Ok(Guest {
            setting,
            contender: bench.daemon(&uplink, &options, &plain_guest()),
        })
    };
    settings.map(guest).collect()
}

/// One stream into each guest, whose own GRO is `own_gro`.
fn stream<'a>(
    bench: &'a Bench<'a>,
    guests: &[&'a Guest],
    (letter, wire): (&str, &str),
    sender: &'a Sender,
    own_gro: &'static str,
) -> Part<'a> {
    let trials = guests.iter().map(|guest| {
        Trial::new(&guest.setting, &guest.contender, move |station, length| {
            station.vm.run(&format!("ethtool -K eth0 gro {own_gro}"))?;
            let scene = Scene {
                bench,
                sender,
                station,
            };
            works::inbound(&scene, (Workload::TcpStream, 1), length)
        })
    });
    Part {
        letter: letter.to_owned(),
        title: format!("{wire}, the guest's own GRO {own_gro}"),
        measures: &[
            THROUGHPUT,
            GUEST_PER_KB,
            VCPU_PER_KB,
            BACKEND_PER_KB,
            BYTES_PER_PACKET,
            OFO_QUEUE,
        ],
        trials: trials.collect(),
        most_rounds: None,
    }
}

fn latency<'a>(bench: &'a Bench<'a>, guests: &'a [Guest], sender: &'a Sender) -> Part<'a> {
    let fewer = guests
        .iter()
        .filter(|guest| FEWER.contains(&guest.setting.as_str()));
    let trials = fewer.map(|guest| {
        Trial::new(&guest.setting, &guest.contender, move |station, length| {
            station.vm.run("ethtool -K eth0 gro on")?;
            let scene = Scene {
                bench,
                sender,
                station,
            };
            works::requests(&scene, (1, 1), length)
        })
    });
    Part {
        letter: "h".into(),
        title: "TCP_RR".into(),
        measures: &[P50, P90, P99, TRANSACTIONS, BACKEND_PER_TRANSACTION],
        trials: trials.collect(),
        most_rounds: None,
    }
}
