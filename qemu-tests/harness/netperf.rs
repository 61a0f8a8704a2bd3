//! Netperf between the sender and a guest, in either direction.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::kit::Kit;
use super::netns::Sender;
use super::process::output_of;
use super::vm::Vm;

/// A netperf test and what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    TcpStream,
    /// Datagrams of 1472 bytes, which fill an MTU of 1500.
    UdpStream,
    /// Requests and responses of so many bytes.
    TcpRr(u32),
}

impl Workload {
    fn test(self) -> &'static str {
        match self {
            Workload::TcpStream => "TCP_STREAM",
            Workload::UdpStream => "UDP_STREAM",
            Workload::TcpRr(_) => "TCP_RR",
        }
    }

    /// What is asked of the test.
    fn own_words(self) -> String {
        match self {
            Workload::TcpStream => "-k THROUGHPUT,ELAPSED_TIME".into(),
            Workload::UdpStream => {
                "-m 1472 -k REMOTE_RECV_THROUGHPUT,LOCAL_SEND_THROUGHPUT,ELAPSED_TIME".into()
            }
            Workload::TcpRr(bytes) => format!(
                "-r {bytes},{bytes} -k THROUGHPUT,ELAPSED_TIME,P50_LATENCY,P90_LATENCY,P99_LATENCY"
            ),
        }
    }

    /// The command line behind `netperf`.
    fn words(self, address: &str, length: Duration) -> String {
        let family = if address.contains(':') {
            "inet6"
        } else {
            "inet"
        };
        format!(
            "-P 0 -j -t {} -l {} -H {address},{family} -- {}",
            self.test(),
            length.as_secs(),
            self.own_words()
        )
    }
}

/// What netperf found, by its own names.
#[derive(Debug)]
pub(crate) struct Outcome(BTreeMap<String, f64>);

impl Outcome {
    fn parse(text: &str) -> Self {
        let pair = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Outcome(text.lines().filter_map(pair).collect())
    }

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
    let mut netperf = kit.tool("netperf")?;
    netperf.args(workload.words(address, length).split_whitespace());
    let text = sender.inside(|| output_of(&mut netperf))?;
    Ok(Outcome::parse(&text))
}

/// Runs `count` tests of the same kind at once.
pub(crate) fn run_many(
    kit: &Kit,
    sender: &Sender,
    address: &str,
    (workload, count): (Workload, usize),
    length: Duration,
) -> Result<Vec<Outcome>> {
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..count)
            .map(|_| scope.spawn(|| run(kit, sender, address, workload, length)))
            .collect();
        runs.into_iter()
            .map(|run| {
                run.join()
                    .map_err(|_| anyhow!("a thread of netperf panicked"))?
            })
            .collect()
    })
}

/// Runs one test in a guest, against `address`.
pub(crate) fn run_in_guest(
    vm: &Vm,
    address: &str,
    workload: Workload,
    length: Duration,
) -> Result<Outcome> {
    let text = vm.run(&format!("netperf {}", workload.words(address, length)))?;
    Ok(Outcome::parse(&text))
}

/// Runs one test in a guest while another one is under way there, and gives both outcomes.
pub(crate) fn run_beside(
    vm: &Vm,
    address: &str,
    workload: Workload,
    background: Workload,
    length: Duration,
) -> Result<(Outcome, Outcome)> {
    // The other one begins a second earlier and goes on until about the same time.
    let longer = length + Duration::from_secs(1);
    let text = vm.run(&format!(
        "netperf {} >/tmp/beside & sleep 1; netperf {}; status=$?; wait $!; echo @; cat /tmp/beside; exit $status",
        background.words(address, longer),
        workload.words(address, length),
    ))?;
    let (one, other) = text.split_once("@\n").context("two outcomes")?;
    Ok((Outcome::parse(one), Outcome::parse(other)))
}
