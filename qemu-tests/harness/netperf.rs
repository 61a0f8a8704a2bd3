//! Netperf from the sender to a guest.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::kit::Kit;
use super::netns::Sender;
use super::process::output_of;

/// A netperf test and what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    TcpStream,
    TcpRr,
}

/// What netperf found, by its own names.
#[derive(Debug)]
pub(crate) struct Outcome(BTreeMap<String, f64>);

impl Outcome {
    pub(crate) fn value(&self, name: &str) -> Result<f64> {
        self.0
            .get(name)
            .copied()
            .with_context(|| format!("netperf tells no {name}"))
    }
}

/// Runs one test against `address`, where a netserver listens.
pub(crate) fn run(
    kit: &Kit,
    sender: &Sender,
    address: &str,
    workload: Workload,
    length: Duration,
) -> Result<Outcome> {
    let family = if address.contains(':') {
        "inet6"
    } else {
        "inet"
    };
    let (test, values) = match workload {
        Workload::TcpStream => ("TCP_STREAM", "THROUGHPUT,ELAPSED_TIME"),
        Workload::TcpRr => (
            "TCP_RR",
            "THROUGHPUT,ELAPSED_TIME,P50_LATENCY,P90_LATENCY,P99_LATENCY",
        ),
    };
    let mut netperf = kit.tool("netperf")?;
    netperf
        .args([
            "-P",
            "0",
            "-j",
            "-t",
            test,
            "-l",
            &length.as_secs().to_string(),
        ])
        .args(["-H", &format!("{address},{family}"), "--", "-k", values]);
    let text = sender.inside(|| output_of(&mut netperf))?;
    let pair = |line: &str| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    Ok(Outcome(text.lines().filter_map(pair).collect()))
}
