//! What guests are given to do, with what it cost.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::bench::Bench;
use crate::harness::account::{Spent, count as exact};
use crate::harness::netperf::{self, Outcome, Workload};
use crate::harness::strace::{Calls, Strace};
use crate::harness::{Account, Sender, Spread, Station};
use crate::measures::{
    BACKEND_PER_KB, BACKEND_PER_TRANSACTION, BYTES_PER_PACKET, DROPPED, GUEST_PER_KB, OFO_QUEUE,
    P50, P90, P99, RETRANSMISSIONS, THROUGHPUT, TRANSACTIONS, VCPU_PER_KB, VCPU_PER_TRANSACTION,
};
use crate::part::Reading;

/// A guest at work with somebody at the other end of the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) bench: &'a Bench<'a>,
    pub(crate) sender: &'a Sender,
    pub(crate) station: &'a Station,
}

/// What the daemon counted meanwhile; all 0 for QEMU's own device.
#[derive(Debug)]
pub(crate) struct Counted {
    before: Value,
    after: Value,
}

impl Scene<'_> {
    /// Does `work` between two accounts.
    pub(crate) fn observe<T>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Spent, Counted)> {
        let before = self.counters()?;
        let start = Account::take(self.sender, self.station, self.bench.cpus)?;
        let done = work()?;
        let spent = Account::take(self.sender, self.station, self.bench.cpus)?.since(start);
        let after = self.counters()?;
        ensure!(
            self.station.daemon.is_none() || after.is_object(),
            "the daemon does not answer"
        );
        Ok((done, spent, Counted { before, after }))
    }

    fn counters(&self) -> Result<Value> {
        let daemon = self.station.daemon.as_ref();
        daemon.map_or(Ok(Value::Null), |daemon| daemon.counters())
    }

    /// Counts the daemon's system calls while `work` is done, which takes longer for it.
    pub(crate) fn trace<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Calls)> {
        let daemon = self.station.daemon.as_ref().context("no daemon")?;
        let strace = Strace::attach(self.bench.kit, &daemon.process)?;
        let done = work();
        let calls = strace.detach()?;
        Ok((done?, calls))
    }

    /// Switches the guest's own segmentation, by which it hands over up to 64 KiB at once.
    pub(crate) fn segmentation(&self, is_offloaded: bool) -> Result<()> {
        let to = if is_offloaded { "on" } else { "off" };
        let features = format!("tso {to} gso {to}");
        let vm = &self.station.vm;
        vm.run(&format!("ethtool -K eth0 {features}")).map(drop)
    }
}

impl Counted {
    /// By how much a counter rose, over all queue pairs; `pointer` is that of JSON within one.
    pub(crate) fn rose(&self, pointer: &str) -> f64 {
        let sum = |counters: &Value| -> u64 {
            let pairs = counters["queue_pairs"].as_array();
            let values = pairs.into_iter().flatten();
            values
                .filter_map(|pair| pair.pointer(pointer)?.as_u64())
                .sum()
        };
        exact(sum(&self.after).saturating_sub(sum(&self.before)))
    }
}

/// KB of payload that a netperf run moved, by its own throughput in Mbit/s.
pub(crate) fn kilobytes(outcome: &Outcome, throughput: &str) -> Result<f64> {
    let mbit = outcome.value(throughput)? * outcome.value("ELAPSED_TIME")?;
    Ok(mbit * 1e6 / 8.0 / 1024.0)
}

/// `count` streams at once from the sender into the guest.
pub(crate) fn inbound(
    scene: &Scene<'_>,
    (work, count): (Workload, usize),
    length: Duration,
) -> Result<Reading> {
    let (kit, to) = (scene.bench.kit, &scene.station.vm.ip4);
    let (outcomes, spent, _) =
        scene.observe(|| netperf::run_many(kit, scene.sender, to, (work, count), length))?;
    let kb: f64 = outcomes
        .iter()
        .map(|outcome| kilobytes(outcome, "THROUGHPUT"))
        .sum::<Result<f64>>()?;
    Ok(Reading::default()
        .with(THROUGHPUT, sum(&outcomes, "THROUGHPUT")?)
        .with(GUEST_PER_KB, spent.guest_us / kb)
        .with(VCPU_PER_KB, spent.vcpu_us / kb)
        .with(BACKEND_PER_KB, spent.backend_us / kb)
        .with(BYTES_PER_PACKET, spent.rx_bytes / spent.rx_packets)
        .with(OFO_QUEUE, exact(spent.guest("TcpExt.TCPOFOQueue")))
        .with(RETRANSMISSIONS, exact(spent.sender_retransmissions))
        .with(DROPPED, exact(spent.rx_dropped)))
}

/// `count` connections at once, on each of which the sender asks and the guest answers. Latencies
/// are the median of what the connections have.
pub(crate) fn requests(
    scene: &Scene<'_>,
    (bytes, count): (u32, usize),
    length: Duration,
) -> Result<Reading> {
    let (kit, to) = (scene.bench.kit, &scene.station.vm.ip4);
    let work = (Workload::TcpRr(bytes), count);
    let (outcomes, spent, _) =
        scene.observe(|| netperf::run_many(kit, scene.sender, to, work, length))?;
    let transactions = sum(&outcomes, "THROUGHPUT")?;
    let done = transactions * length.as_secs_f64();
    Ok(Reading::default()
        .with(TRANSACTIONS, transactions)
        .with(P50, median(&outcomes, "P50_LATENCY")?)
        .with(P90, median(&outcomes, "P90_LATENCY")?)
        .with(P99, median(&outcomes, "P99_LATENCY")?)
        .with(VCPU_PER_TRANSACTION, spent.vcpu_us / done)
        .with(BACKEND_PER_TRANSACTION, spent.backend_us / done))
}

/// `.0` connections of requests beside `.1` streams, all into the guest.
pub(crate) fn mixed(
    scene: &Scene<'_>,
    (requests, streams): (usize, usize),
    length: Duration,
) -> Result<Reading> {
    let (kit, to) = (scene.bench.kit, &scene.station.vm.ip4);
    let run = |work| netperf::run_many(kit, scene.sender, to, work, length);
    let ((asked, streamed), spent, _) = scene.observe(|| {
        std::thread::scope(|scope| {
            let streamed = scope.spawn(|| run((Workload::TcpStream, streams)));
            let asked = run((Workload::TcpRr(1), requests));
            let streamed = streamed.join().map_err(|_| anyhow!("a thread panicked"))?;
            Ok((asked?, streamed?))
        })
    })?;
    let kb: f64 = streamed
        .iter()
        .map(|outcome| kilobytes(outcome, "THROUGHPUT"))
        .sum::<Result<f64>>()?;
    Ok(Reading::default()
        .with(THROUGHPUT, sum(&streamed, "THROUGHPUT")?)
        .with(TRANSACTIONS, sum(&asked, "THROUGHPUT")?)
        .with(P50, median(&asked, "P50_LATENCY")?)
        .with(P90, median(&asked, "P90_LATENCY")?)
        .with(P99, median(&asked, "P99_LATENCY")?)
        .with(BYTES_PER_PACKET, spent.rx_bytes / spent.rx_packets)
        .with(VCPU_PER_KB, spent.vcpu_us / kb)
        .with(BACKEND_PER_KB, spent.backend_us / kb)
        .with(OFO_QUEUE, exact(spent.guest("TcpExt.TCPOFOQueue"))))
}

fn values(outcomes: &[Outcome], name: &str) -> Result<Vec<f64>> {
    outcomes.iter().map(|outcome| outcome.value(name)).collect()
}

/// Over all connections.
fn sum(outcomes: &[Outcome], name: &str) -> Result<f64> {
    Ok(values(outcomes, name)?.iter().sum())
}

/// Of all connections.
fn median(outcomes: &[Outcome], name: &str) -> Result<f64> {
    let spread = Spread::of(values(outcomes, name)?);
    Ok(spread.context("no connection")?.median)
}
