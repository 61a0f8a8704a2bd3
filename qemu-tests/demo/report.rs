//! The tables and the file of results.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::harness::facts::Machine;
use crate::harness::{Cpus, Kit, Spread};
use crate::measure::{Sample, Test};
use crate::setting::Setting;
use crate::verdict::verdicts;

/// What was measured, on what.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    #[serde(flatten)]
    machine: Machine,
    rounds: u32,
    seconds: u64,
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
        Ok(Facts {
            machine: Machine::gather(kit, cpus)?,
            rounds,
            seconds,
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
        let machine = &self.machine;
        let mut text = format!(
            "{}, guests under {}\n{}\n{}",
            machine.processor,
            machine.accelerator,
            machine.placement(),
            machine.version_line()
        );
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

/// The samples of one row.
pub(crate) fn of<'a>(
    samples: &'a [Sample],
    test: Test,
    wire: &str,
    setting: &str,
) -> Vec<&'a Sample> {
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
