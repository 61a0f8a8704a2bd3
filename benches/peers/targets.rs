//! What the engine may cost, and whether it does.

use std::io::{self, Write};

use crate::dpdk::Mode;
use crate::report::{PAYLOAD, Row, Side, Yardsticks};
use crate::spread::Spread;

/// Says of each target whether the median of the turns meets it.
pub(crate) fn print(out: &mut impl Write, yardsticks: &Yardsticks, rows: &[Row]) -> io::Result<()> {
    let row = |name| {
        let row = rows.iter().find(|row| row.traffic.name == name);
        row.expect("a kind of traffic")
    };
    let one_flow = row("tcp4_in_order");
    let unmergeable = row("tcp4_unmergeable");
    let many_flows = row("tcp4_1000_flows");

    for (name, row) in [("one flow", one_flow), ("64 flows", row("tcp4_64_flows"))] {
        let Some((mode, side)) = cheapest_merge(row) else {
            continue;
        };
        let ratio = row.vouched.ns.ratio_to(&side.ns);
        let what = format!("{name}, as a part of DPDK {mode}, where it merges cheapest");
        print_target(out, &what, &ratio, Limit::AtMost(0.5))?;
    }
    let ratio = unmergeable.vouched.ns.ratio_to(&unmergeable.layout);
    let what = "unmergeable, to the layout parser alone";
    print_target(out, what, &ratio, Limit::AtMost(1.3))?;
    let added = unmergeable.vouched.ns.less(&unmergeable.merge_off.ns);
    let ratio = added.ratio_to(&unmergeable.layout);
    let what = "what merging adds to it above the same frame with merging off, likewise";
    print_target(out, what, &ratio, Limit::AtMost(1.3))?;
    let ratio = many_flows.vouched.ns.ratio_to(&one_flow.vouched.ns);
    print_target(out, "1000 flows, to one flow", &ratio, Limit::AtMost(2.0))?;
    // Bytes in a nanosecond are gigabytes in a second.
    let speed = yardsticks.checksum.map(|ns| PAYLOAD as f64 / ns);
    print_target(out, "checksum in GB/s", &speed, Limit::AtLeast(10.0))?;
    writeln!(
        out,
        "a missed target is no failure; CHANGELOG.md says which are known"
    )
}

/// Of the ways to use librte_gro that merge anything, the cheapest.
fn cheapest_merge(row: &Row) -> Option<(Mode, &Side)> {
    row.modes()
        .filter(|(_, side)| row.merges(side))
        .min_by(|(_, a), (_, b)| a.ns.median().total_cmp(&b.ns.median()))
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

fn print_target(out: &mut impl Write, what: &str, value: &Spread, limit: Limit) -> io::Result<()> {
    let (is_met, limit) = match limit {
        Limit::AtMost(most) => (value.median() <= most, format!("at most {most}")),
        Limit::AtLeast(least) => (value.median() >= least, format!("at least {least}")),
    };
    let verdict = if is_met { "met" } else { "MISSED" };
    writeln!(out, "{verdict:8}{limit:14}{:20}{what}", value.show(2))
}
