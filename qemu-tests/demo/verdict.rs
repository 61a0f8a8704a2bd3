//! Settings compared with each other, and with what is to be had.

use serde::Serialize;

use crate::harness::Spread;
use crate::measure::{Sample, Test};
use crate::report::of;

/// One comparison, with what is to be had.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    what: String,
    wanted: String,
    found: Spread,
    holds: bool,
}

impl Verdict {
    /// For the one who watches.
    pub(crate) fn line(&self) -> String {
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

/// All comparisons for which there are samples.
pub(crate) fn verdicts(samples: &[Sample]) -> Vec<Verdict> {
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
