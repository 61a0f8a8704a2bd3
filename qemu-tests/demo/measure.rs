//! One measurement: netperf against one guest, with the counters of both sides before and after.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::harness::netperf::{self, Workload};
use crate::harness::{Account, Kit, Sender, Wire};
use crate::setting::Contender;

/// What netperf does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    TcpStream4,
    TcpStream6,
    TcpRr,
}

impl Test {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Test::TcpStream4 => "TCP_STREAM IPv4",
            Test::TcpStream6 => "TCP_STREAM IPv6",
            Test::TcpRr => "TCP_RR IPv4",
        }
    }

    fn workload(self) -> Workload {
        match self {
            Test::TcpStream4 | Test::TcpStream6 => Workload::TcpStream,
            Test::TcpRr => Workload::TcpRr(1),
        }
    }
}

/// The result of one measurement. A KB is 1024 bytes of payload, as in netperf.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) round: u32,
    pub(crate) setting: String,
    pub(crate) test: Test,
    /// The largest packet on the wire: `mtu` or `64k`.
    pub(crate) wire: &'static str,
    pub(crate) seconds: f64,
    /// Of a stream, in Mbit/s of payload.
    pub(crate) throughput_mbit: Option<f64>,
    pub(crate) transactions_per_second: Option<f64>,
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) latency_p90_us: Option<f64>,
    pub(crate) latency_p99_us: Option<f64>,
    /// Netperf's service demand, with the guest's own account of its time.
    pub(crate) guest_us_per_kb: Option<f64>,
    /// The same with the host's finer account of the guest's processors.
    pub(crate) vcpu_us_per_kb: Option<f64>,
    /// The daemon, or for QEMU's own device all threads but the guest's processors.
    pub(crate) backend_us_per_kb: Option<f64>,
    pub(crate) rx_frames_per_second: f64,
    pub(crate) rx_bytes_per_frame: f64,
    pub(crate) rx_interrupts_per_second: f64,
    pub(crate) rx_dropped: u64,
    pub(crate) tcp_ofo_queue: u64,
    pub(crate) retransmissions: u64,
}

/// Measures `test` for `length`. The round is the caller's to fill in.
pub(crate) fn run(
    kit: &Kit,
    sender: &Sender,
    contender: &Contender<'_>,
    test: Test,
    wire: Wire,
    length: Duration,
) -> Result<Sample> {
    let station = &contender.station;
    let address = if test == Test::TcpStream6 {
        &station.vm.ip6
    } else {
        &station.vm.ip4
    };
    let before = Account::take(sender, station, None)?;
    let outcome = netperf::run(kit, sender, address, test.workload(), length)?;
    let spent = Account::take(sender, station, None)?.since(before);

    let stream = test.workload() == Workload::TcpStream;
    let throughput = outcome.value("THROUGHPUT")?;
    let kb = throughput * 1e6 / 8.0 / 1024.0 * outcome.value("ELAPSED_TIME")?;
    let per_kb = |us: f64| stream.then_some(us / kb);
    let latency = |name: &str| (!stream).then(|| outcome.value(name)).transpose();
    Ok(Sample {
        round: 0,
        setting: contender.setting.name.to_owned(),
        test,
        wire: wire_name(wire),
        seconds: spent.seconds,
        throughput_mbit: stream.then_some(throughput),
        transactions_per_second: (!stream).then_some(throughput),
        latency_p50_us: latency("P50_LATENCY")?,
        latency_p90_us: latency("P90_LATENCY")?,
        latency_p99_us: latency("P99_LATENCY")?,
        guest_us_per_kb: per_kb(spent.guest_us),
        vcpu_us_per_kb: per_kb(spent.vcpu_us),
        backend_us_per_kb: per_kb(spent.backend_us),
        rx_frames_per_second: spent.rx_packets / spent.seconds,
        rx_bytes_per_frame: spent.rx_bytes / spent.rx_packets.max(1.0),
        rx_interrupts_per_second: spent.rx_interrupts / spent.seconds,
        rx_dropped: spent.rx_dropped,
        tcp_ofo_queue: spent.guest("TcpExt.TCPOFOQueue"),
        retransmissions: spent.sender_retransmissions,
    })
}

impl Sample {
    /// For the one who watches.
    pub(crate) fn line(&self) -> String {
        let head = format!(
            "{:>2} {:<15} {:<3} {:<8}",
            self.round,
            self.test.title(),
            self.wire,
            self.setting
        );
        let per_kb = |value: Option<f64>| value.unwrap_or(f64::NAN);
        match (self.throughput_mbit, self.transactions_per_second) {
            (Some(mbit), _) => format!(
                "{head} {mbit:>6.0} Mbit/s  guest {:.2} backend {:.2} us/KB  {:>6.0} frames/s of {:>5.0} bytes  {:>6.0} irq/s",
                per_kb(self.vcpu_us_per_kb),
                per_kb(self.backend_us_per_kb),
                self.rx_frames_per_second,
                self.rx_bytes_per_frame,
                self.rx_interrupts_per_second,
            ),
            (None, rate) => format!(
                "{head} {:>6.0} /s  p50 {:.0} p90 {:.0} p99 {:.0} us",
                per_kb(rate),
                per_kb(self.latency_p50_us),
                per_kb(self.latency_p90_us),
                per_kb(self.latency_p99_us),
            ),
        }
    }
}

/// The name of a mode in the results.
pub(crate) fn wire_name(wire: Wire) -> &'static str {
    match wire {
        Wire::Frames => "mtu",
        Wire::Bulk => "64k",
        Wire::Tunnelled => "vxlan",
    }
}
