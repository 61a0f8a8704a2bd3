//! The tables.

use std::io::{self, Write};

use crate::dpdk::{MODES, Mode};
use crate::round::Traffic;
use crate::spread::Spread;
use crate::targets;

/// Bytes of the yardsticks: the payload of a segment with timestamps.
pub(crate) const PAYLOAD: usize = 1448;

/// What is measured beside the traffic, in nanoseconds.
#[derive(Default)]
pub(crate) struct Yardsticks {
    /// Of reading the clock around a round.
    pub(crate) clock: Spread,
    /// Of a copy of [`PAYLOAD`] bytes.
    pub(crate) copy: Spread,
    /// Of the checksum of as many.
    pub(crate) checksum: Spread,
}

/// One way to treat one kind of traffic.
#[derive(Default)]
pub(crate) struct Side {
    /// Nanoseconds a frame.
    pub(crate) ns: Spread,
    /// Packets a round delivers.
    packets: usize,
}

impl Side {
    pub(crate) fn push(&mut self, ns: f64, packets: usize) {
        self.ns.push(ns);
        self.packets = packets;
    }
}

/// One kind of traffic.
pub(crate) struct Row {
    pub(crate) traffic: &'static Traffic,
    pub(crate) vouched: Side,
    pub(crate) verified: Side,
    pub(crate) merge_off: Side,
    /// Nanoseconds a frame of giving the buffers back, a part of all of ours.
    pub(crate) buffers: Spread,
    /// Nanoseconds a frame of the parser alone.
    pub(crate) layout: Spread,
    /// In the order of [`MODES`].
    dpdk: [Side; MODES.len()],
}

impl Row {
    pub(crate) fn new(traffic: &'static Traffic) -> Self {
        Self {
            traffic,
            vouched: Side::default(),
            verified: Side::default(),
            merge_off: Side::default(),
            buffers: Spread::default(),
            layout: Spread::default(),
            dpdk: Default::default(),
        }
    }

    pub(crate) fn modes(&self) -> impl Iterator<Item = (Mode, &Side)> {
        MODES.into_iter().zip(&self.dpdk)
    }

    pub(crate) fn modes_mut(&mut self) -> impl Iterator<Item = (Mode, &mut Side)> {
        MODES.into_iter().zip(&mut self.dpdk)
    }

    pub(crate) fn merges(&self, side: &Side) -> bool {
        side.packets < self.traffic.frames
    }

    fn title(&self) -> String {
        format!("{} {}", self.traffic.name, self.traffic.size)
    }

    /// Nanoseconds, and frames in a packet.
    fn cost(&self, side: &Side) -> String {
        let frames = self.traffic.frames as f64 / side.packets as f64;
        format!("{} x{frames:.1}", show_ns(&side.ns))
    }

    /// Of our cost to theirs.
    fn ratio(&self, side: &Side) -> String {
        let ratio = self.vouched.ns.ratio_to(&side.ns).show(2);
        let is_unequal = self.merges(&self.vouched) && !self.merges(side);
        format!("{ratio}{}", if is_unequal { " *" } else { "" })
    }
}

fn show_ns(ns: &Spread) -> String {
    ns.show(if ns.median() < 100.0 { 1 } else { 0 })
}

/// Prints everything.
pub(crate) fn print(dpdk: &str, yardsticks: &Yardsticks, rows: &[Row]) -> io::Result<()> {
    let out = &mut io::stdout().lock();
    writeln!(
        out,
        "ns per frame, median (min-max) of turns, and frames per packet delivered\n"
    )?;

    let ours = ["vouched", "verified", "merging off"];
    print_line(
        out,
        "this engine",
        ours.into_iter().chain(["buffers alone", "layout alone"]),
    )?;
    for row in rows {
        let sides = [&row.vouched, &row.verified, &row.merge_off];
        let cells = sides.map(|side| row.cost(side)).into_iter();
        print_line(
            out,
            &row.title(),
            cells.chain([show_ns(&row.buffers), show_ns(&row.layout)]),
        )?;
    }

    let title = format!("DPDK {dpdk}");
    writeln!(out)?;
    print_line(out, &title, MODES)?;
    for row in rows {
        print_line(
            out,
            &row.title(),
            row.modes().map(|(_, side)| row.cost(side)),
        )?;
    }

    writeln!(out)?;
    print_line(out, "vouched / DPDK", MODES)?;
    for row in rows {
        print_line(
            out,
            &row.title(),
            row.modes().map(|(_, side)| row.ratio(side)),
        )?;
    }
    writeln!(
        out,
        "light merges within a burst, heavy across bursts; of 64 or 32 frames\n\
         * merges nothing, where the engine does\n\n\
         {PAYLOAD} bytes in cache: copy {} ns, checksum {} ns\n\
         reading the clock: {} ns of each round, in all figures above\n",
        yardsticks.copy.show(1),
        yardsticks.checksum.show(1),
        yardsticks.clock.show(0)
    )?;
    targets::print(out, yardsticks, rows)
}

fn print_line<T: ToString>(
    out: &mut impl Write,
    title: &str,
    cells: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    write!(out, "{title:27}")?;
    for cell in cells {
        write!(out, "{:25}", cell.to_string())?;
    }
    writeln!(out)
}
