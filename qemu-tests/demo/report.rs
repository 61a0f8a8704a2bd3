//! The tables and the file of results.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::harness::Kit;
use crate::harness::daemon;
use crate::measure::{Sample, Test};
use crate::setting::{Cpus, Setting};
use crate::spread::Spread;

/// What was measured, on what.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    processor: String,
    accelerator: &'static str,
    /// Processor of the guests; the other one has everything else. None if nothing is bound.
    guest_cpu: Option<usize>,
    host_cpu: Option<usize>,
    rounds: u32,
    seconds: u64,
    versions: Vec<(String, String)>,
    settings: Vec<SettingFacts>,
}

#[derive(Debug, Serialize)]
struct SettingFacts {
    name: &'static str,
    meaning: &'static str,
    daemon_options: Option<&'static str>,
}

impl Facts {
    pub(crate) fn gather(
        kit: &Kit,
        settings: &[&Setting],
        cpus: Option<Cpus>,
        rounds: u32,
        seconds: u64,
    ) -> Result<Self> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
        let processor = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, name)| name);
        let mut versions = vec![(
            "vhost-user-gro".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        )];
        versions.push(("build".into(), daemon::profile()?));
        versions.push(("qemu".into(), kit.newest().version.clone()));
        versions.push((
            "host".into(),
            std::fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .into(),
        ));
        versions.extend(kit.versions()?);
        Ok(Facts {
            processor: processor.to_owned(),
            accelerator: kit.accel.name(),
            guest_cpu: cpus.map(|cpus| cpus.guest),
            host_cpu: cpus.map(|cpus| cpus.host),
            rounds,
            seconds,
            versions,
            settings: settings
                .iter()
                .map(|s| SettingFacts {
                    name: s.name,
                    meaning: s.meaning,
                    daemon_options: s.daemon,
                })
                .collect(),
        })
    }

    /// A few lines for the one who watches.
    pub(crate) fn headline(&self) -> String {
        let mut text = format!("{}, guests under {}\n", self.processor, self.accelerator);
        match (self.guest_cpu, self.host_cpu) {
            (Some(guest), Some(host)) => {
                let _ = writeln!(
                    text,
                    "guest processors bound to CPU {guest}, everything else to CPU {host}"
                );
            }
            _ => text.push_str("only one CPU: nothing is bound, numbers are of little worth\n"),
        }
        let versions: Vec<_> = self
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        let _ = write!(text, "{}", versions.join(", "));
        for SettingFacts {
            name,
            meaning,
            daemon_options,
        } in &self.settings
        {
            let _ = write!(
                text,
                "\n  {name:<9} {meaning:<30} {}",
                daemon_options.unwrap_or("")
            );
        }
        text
    }
}

/// All of it, for programs.
pub(crate) fn json(facts: &Facts, samples: &[Sample], counters: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(&json!({
        "facts": facts,
        "samples": samples,
        "verdicts": verdicts(samples),
        "daemon_counters": counters,
    }))?)
}

/// The table of all rows and the table of comparisons.
pub(crate) fn tables(facts: &Facts, samples: &[Sample]) -> String {
    let mut text = String::new();
    for (test, wire) in GROUPS {
        let rows: Vec<_> = facts
            .settings
            .iter()
            .map(|setting| (setting.name, of(samples, test, wire, setting.name)))
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        if rows.is_empty() {
            continue;
        }
        let (rounds, seconds) = (facts.rounds, facts.seconds);
        let packets = if wire == "mtu" {
            "frames of the MTU"
        } else {
            "packets of 64 KiB from the host"
        };
        let _ = writeln!(
            text,
            "\n{}, {packets}, {rounds} rounds of {seconds} s",
            test.title()
        );
        let _ = writeln!(
            text,
            "{}",
            if test == Test::TcpRr {
                RR_HEAD
            } else {
                STREAM_HEAD
            }
        );
        for (name, rows) in rows {
            let _ = writeln!(
                text,
                "{name:<9}{}",
                if test == Test::TcpRr {
                    rr_row(&rows)
                } else {
                    stream_row(&rows)
                }
            );
        }
    }
    let _ = writeln!(
        text,
        "\nCompared round by round: median (smallest to largest)"
    );
    for verdict in verdicts(samples) {
        let _ = writeln!(text, "{}", verdict.line());
    }
    text
}

const GROUPS: [(Test, &str); 4] = [
    (Test::TcpStream4, "mtu"),
    (Test::TcpStream6, "mtu"),
    (Test::TcpRr, "mtu"),
    (Test::TcpStream4, "64k"),
];

const STREAM_HEAD: &str = "setting            Mbit/s of payload            us of CPU per KB                              guest
             min  median average     max   guest    vCPU backend   frames/s bytes/frame    irq/s  OFO retrans dropped";

const RR_HEAD: &str = "setting        transactions/s               latency, us (medians)                  guest
             min  median average     max     p50     p90     p99   frames/s bytes/frame    irq/s  OFO retrans dropped";

fn of<'a>(samples: &'a [Sample], test: Test, wire: &str, setting: &str) -> Vec<&'a Sample> {
    samples
        .iter()
        .filter(|s| s.test == test && s.wire == wire && s.setting == setting)
        .collect()
}

fn stream_row(rows: &[&Sample]) -> String {
    format!(
        "{}{}{}",
        spread_columns(rows, |s| s.throughput_mbit),
        decimals(
            2,
            rows,
            [
                |s| s.guest_us_per_kb,
                |s| s.vcpu_us_per_kb,
                |s| s.backend_us_per_kb
            ]
        ),
        guest_columns(rows),
    )
}

fn rr_row(rows: &[&Sample]) -> String {
    format!(
        "{}{}{}",
        spread_columns(rows, |s| s.transactions_per_second),
        decimals(
            0,
            rows,
            [
                |s| s.latency_p50_us,
                |s| s.latency_p90_us,
                |s| s.latency_p99_us
            ]
        ),
        guest_columns(rows),
    )
}

fn spread_columns(rows: &[&Sample], of: fn(&Sample) -> Option<f64>) -> String {
    Spread::of(rows.iter().filter_map(|s| of(s))).map_or_else(String::new, |spread| {
        format!(
            "{:>7.0} {:>7.0} {:>7.0} {:>7.0}",
            spread.min, spread.median, spread.average, spread.max
        )
    })
}

fn decimals(digits: usize, rows: &[&Sample], columns: [fn(&Sample) -> Option<f64>; 3]) -> String {
    columns
        .map(|of| format!(" {:>7.digits$}", median(rows, of)))
        .concat()
}

fn guest_columns(rows: &[&Sample]) -> String {
    let total = |of: fn(&Sample) -> u64| rows.iter().map(|s| of(s)).sum::<u64>();
    format!(
        " {:>10.0} {:>11.0} {:>8.0} {:>4} {:>7} {:>7}",
        median(rows, |s| Some(s.rx_frames_per_second)),
        median(rows, |s| Some(s.rx_bytes_per_frame)),
        median(rows, |s| Some(s.rx_interrupts_per_second)),
        total(|s| s.tcp_ofo_queue),
        total(|s| s.retransmissions),
        total(|s| s.rx_dropped),
    )
}

fn median(rows: &[&Sample], of: fn(&Sample) -> Option<f64>) -> f64 {
    Spread::of(rows.iter().filter_map(|s| of(s))).map_or(f64::NAN, |spread| spread.median)
}

/// One comparison, with what is to be had.
#[derive(Debug, Serialize)]
struct Verdict {
    what: String,
    wanted: String,
    found: Spread,
    holds: bool,
}

impl Verdict {
    fn line(&self) -> String {
        let Spread {
            min, median, max, ..
        } = self.found;
        let digits = if median < 100.0 { 3 } else { 0 };
        let holds = if self.holds { "yes" } else { "NO" };
        format!(
            "  {:<58} {median:>8.digits$} ({min:.digits$} to {max:.digits$})   wanted {:<10} {holds}",
            self.what, self.wanted
        )
    }
}

/// Which way a comparison has to go.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(limit) => value >= limit,
            Bound::AtMost(limit) => value <= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtLeast(limit) => format!(">= {limit}"),
            Bound::AtMost(limit) => format!("<= {limit}"),
        }
    }
}

type Column = (&'static str, fn(&Sample) -> Option<f64>);

const THROUGHPUT: Column = ("throughput", |s| s.throughput_mbit);
const GUEST_DEMAND: Column = ("guest us/KB", |s| s.guest_us_per_kb);
const VCPU_DEMAND: Column = ("vCPU us/KB", |s| s.vcpu_us_per_kb);
const BACKEND: Column = ("backend us/KB", |s| s.backend_us_per_kb);
const P50: Column = ("p50", |s| s.latency_p50_us);
const P99: Column = ("p99", |s| s.latency_p99_us);

fn verdicts(samples: &[Sample]) -> Vec<Verdict> {
    let mut all = Vec::new();
    for test in [Test::TcpStream4, Test::TcpStream6] {
        let rows = of(samples, test, "mtu", "on");
        let found = Spread::of(rows.iter().map(|s| s.rx_bytes_per_frame));
        let bound = Bound::AtLeast(12000.0);
        all.extend(found.map(|found| Verdict {
            what: format!("{} mtu: bytes per frame, on", test.title()),
            wanted: bound.text(),
            found,
            holds: bound.holds(found.median),
        }));
        let on_off = |column, bound| ratio(samples, test, "mtu", column, ("on", "off"), bound);
        all.extend(on_off(THROUGHPUT, Bound::AtLeast(1.35)));
        all.extend(on_off(GUEST_DEMAND, Bound::AtMost(0.4545)));
        all.extend(on_off(VCPU_DEMAND, Bound::AtMost(0.4545)));
    }
    let on_off = |column| {
        ratio(
            samples,
            Test::TcpRr,
            "mtu",
            column,
            ("on", "off"),
            Bound::AtMost(1.05),
        )
    };
    all.extend([P50, P99].into_iter().filter_map(on_off));
    let on_tap = |column, bound| {
        ratio(
            samples,
            Test::TcpStream4,
            "mtu",
            column,
            ("on", "qemu-tap"),
            bound,
        )
    };
    all.extend(on_tap(THROUGHPUT, Bound::AtLeast(1.3)));
    all.extend(on_tap(BACKEND, Bound::AtMost(1.0)));
    let bulk = |pair, bound| ratio(samples, Test::TcpStream4, "64k", THROUGHPUT, pair, bound);
    all.extend(bulk(("on", "off"), Bound::AtLeast(0.98)));
    all.extend(bulk(("on", "qemu-tap"), Bound::AtLeast(1.0)));
    let ofo = Spread::of(
        samples
            .iter()
            .map(|s| f64::from(u32::try_from(s.tcp_ofo_queue).unwrap_or(u32::MAX))),
    );
    all.extend(ofo.map(|found| Verdict {
        what: "TCPOFOQueue, largest of all rows".into(),
        wanted: "0".into(),
        found,
        holds: found.max == 0.0,
    }));
    all
}

/// A column of one setting over that of another, round by round. None without both.
fn ratio(
    samples: &[Sample],
    test: Test,
    wire: &str,
    (name, value): Column,
    (one, other): (&str, &str),
    bound: Bound,
) -> Option<Verdict> {
    let above = of(samples, test, wire, one);
    let below = of(samples, test, wire, other);
    let found = Spread::of(
        above
            .iter()
            .zip(&below)
            .filter_map(|(a, b)| Some(value(a)? / value(b)?)),
    )?;
    Some(Verdict {
        what: format!("{} {wire}: {name}, {one} / {other}", test.title()),
        wanted: bound.text(),
        found,
        holds: bound.holds(found.median),
    })
}
