//! What guest, daemon and tap have counted, read while nothing moves, and whether it fits together.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::counters::GuestCounters;
use crate::harness::wait::wait_for;
use crate::harness::{Daemon, Vm};

/// Counters of the guest's kernel that stay where they are, whatever is lost on the way.
const NEVER: [&str; 9] = [
    "Tcp.InCsumErrors",
    "Udp.InCsumErrors",
    "Udp.InErrors",
    "Udp.RcvbufErrors",
    "Ip.InHdrErrors",
    "Icmp.InCsumErrors",
    "Udp6InCsumErrors",
    "Udp6InErrors",
    "Ip6InHdrErrors",
];

/// Counters of segments that a guest's TCP threw away itself; what follows one is out of order.
///
/// Source: `tcp_add_backlog`, `tcp_data_queue` and `tcp_prune_ofo_queue`, `net/ipv4`.
const THROWN_AWAY: [&str; 4] = [
    "TcpExt.TCPBacklogDrop",
    "TcpExt.TCPRcvQDrop",
    "TcpExt.TCPZeroWindowDrop",
    "TcpExt.OfoPruned",
];

/// Counters that tell how near the guest came to that, and what came of it.
const TELLING: [&str; 4] = [
    "TcpExt.PruneCalled",
    "TcpExt.RcvPruned",
    "TcpExt.TCPOFOQueue",
    "Tcp.RetransSegs",
];

/// Segments of the longest packet: 64 KiB of full ones.
const MOST_SEGMENTS: u64 = 64;

/// One moment.
#[derive(Debug)]
pub(super) struct Reading {
    guest: GuestCounters,
    daemon: Value,
    /// Frames that the tap handed out, and that it had no room for.
    tap: [u64; 2],
    /// Frames that the host's kernel lost between two devices, on all of the machine.
    backlog_drops: u64,
    /// The daemon's.
    pub(super) resident_kib: u64,
    descriptors: usize,
    threads: usize,
}

impl Reading {
    /// Waits until nothing moves, and reads everything.
    pub(super) fn take(vm: &Vm, daemon: &Daemon, tap: &str) -> Result<Self> {
        wait_for("a moment of quiet", Duration::from_secs(60), || {
            let before = daemon.counters()?;
            let guest = counters(vm)?;
            let counted = tap_counters(tap)?;
            let after = daemon.counters()?;
            let is_quiet = before["queue_pairs"][0]["rx"] == after["queue_pairs"][0]["rx"];
            if !is_quiet {
                return Ok(None);
            }
            Ok(Some(Reading {
                guest,
                daemon: after["queue_pairs"][0].clone(),
                tap: counted,
                backlog_drops: backlog_drops()?,
                resident_kib: daemon.process.resident_kib()?,
                descriptors: daemon.process.descriptors()?,
                threads: daemon.process.threads()?.len(),
            }))
        })
    }

    /// How far a counter of the guest's kernel went.
    pub(super) fn since(&self, before: &Reading, name: &str) -> u64 {
        self.guest.snmp(name) - before.guest.snmp(name)
    }

    /// Whether the guest got every segment of every connection in its place.
    ///
    /// Its TCP also counts one that came in its place, behind one that it had thrown away
    /// itself; at most `under_way` segments are behind such a one.
    pub(super) fn check_order(&self, before: &Reading, under_way: u32) -> Result<()> {
        let disorder = self.since(before, "TcpExt.TCPOFOQueue");
        let own = THROWN_AWAY.map(|name| (name, self.since(before, name)));
        let excused = own.iter().map(|(_, count)| count).sum::<u64>() * u64::from(under_way);
        ensure!(
            disorder <= excused,
            "{disorder} segments came out of order; the guest itself threw away {own:?}, the host {}",
            self.backlog_drops - before.backlog_drops
        );
        Ok(())
    }

    /// Whether nothing has gone wrong since `before` and every frame is accounted for.
    pub(super) fn compare(&self, before: &Reading) -> Result<()> {
        for name in NEVER {
            ensure!(
                self.guest.snmp.contains_key(name),
                "the guest has no {name}"
            );
            let count = self.since(before, name);
            ensure!(count == 0, "the guest counted {count} {name}");
        }
        let full = self.tap[1] - before.tap[1];
        ensure!(full == 0, "the tap had no room for {full} frames");

        let rx = &self.daemon["rx"];
        let gro = &rx["gro"];
        let (frames, read) = (self.tap[0], number(&gro["frames"])?);
        let truncated = number(&self.daemon["uplink"]["rx_truncated"])?;
        ensure!(
            frames == read + truncated,
            "of {frames} frames from the tap {read} were read and {truncated} truncated"
        );
        // Each is within a packet of another, is one itself, or was dropped; nothing is held. Packets
        // that were cut because a guest without processor time added no buffers count as pieces.
        let (merged, packets) = (number(&gro["merged"])?, number(&rx["packets"])?);
        let dropped = sum(&rx["dropped"])? + sum(&gro["dropped"])?;
        let cut = number(&rx["resegmented"])?;
        let pieces = (merged + packets + dropped).checked_sub(read);
        ensure!(
            pieces.is_some_and(|more| (cut..=cut * MOST_SEGMENTS).contains(&more)),
            "{read} frames were read, {merged} merged, {packets} delivered, {dropped} dropped, {cut} cut"
        );
        ensure!(
            cut * 1000 <= packets,
            "{cut} of {packets} packets were cut apart"
        );
        let seen = self.guest.rx_packets;
        ensure!(
            packets == seen,
            "the guest saw {seen} packets of the {packets} that it was given"
        );
        for none in ["pool_in_use", "bad_chains", "spoilt_chains"] {
            ensure!(number(&rx[none])? == 0, "{none}: {}", rx[none]);
        }
        ensure!(
            number(&self.daemon["internal_errors"])? == 0,
            "internal errors: {}",
            self.daemon
        );
        ensure!(
            (self.descriptors, self.threads) == (before.descriptors, before.threads),
            "the daemon has {} descriptors and {} threads, and had {} and {}",
            self.descriptors,
            self.threads,
            before.descriptors,
            before.threads
        );
        let refused = sum(&self.daemon["tx"]["dropped"]["bad_frame"])?;
        ensure!(refused == 0, "{refused} frames of the guest were refused");
        Ok(())
    }
}

impl Display for Reading {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (rx, tx) = (&self.daemon["rx"], &self.daemon["tx"]);
        let gro = &rx["gro"];
        let share =
            |of: &Value, by: &Value| of.as_f64().unwrap_or(0.0) / by.as_f64().unwrap_or(1.0);
        writeln!(
            f,
            "  from the tap {} frames; to the guest {} packets, {:.1} frames each; super-frames {}, {:.1} frames each",
            self.tap[0],
            rx["packets"],
            share(&rx["frames"], &rx["packets"]),
            gro["super_frames"],
            share(&gro["super_frame_segs"], &gro["super_frames"]),
        )?;
        writeln!(f, "  what ended them {}", gro["completed"])?;
        writeln!(
            f,
            "  dropped {}, {}, cut apart {}",
            rx["dropped"], gro["dropped"], rx["resegmented"]
        )?;
        writeln!(
            f,
            "  from the guest {} frames, dropped {}",
            tx["frames"], tx["dropped"]
        )?;
        let names = NEVER.iter().chain(&THROWN_AWAY).chain(&TELLING);
        let counts = names.map(|name| format!("{name} {}", self.guest.snmp(name)));
        writeln!(f, "  guest: {}", counts.collect::<Vec<_>>().join(", "))
    }
}

/// The guest's counters, with those of IPv6.
fn counters(vm: &Vm) -> Result<GuestCounters> {
    let mut counters = GuestCounters::read(vm)?;
    let text = vm.run("cat /proc/net/snmp6")?;
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(char::is_whitespace)
            && let Ok(value) = value.trim().parse()
        {
            counters.snmp.insert(name.to_owned(), value);
        }
    }
    Ok(counters)
}

fn tap_counters(tap: &str) -> Result<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = text.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == tap).then_some(counters)
    });
    let line = line.with_context(|| format!("no {tap}"))?;
    let columns: Vec<u64> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // Eight columns for what came in, then bytes, packets, errors and drops of what went out.
    let [_, packets, _, dropped] = columns[8..12] else {
        anyhow::bail!("{line}");
    };
    Ok([packets, dropped])
}

/// Source: `net/core/net-procfs.c`, `softnet_seq_show`: the second column, a line for each CPU.
fn backlog_drops() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/net/softnet_stat")?;
    let drops = text.lines().map(|line| {
        let column = line.split_whitespace().nth(1).context("no second column")?;
        Ok(u64::from_str_radix(column, 16)?)
    });
    drops.sum()
}

fn number(value: &Value) -> Result<u64> {
    value
        .as_u64()
        .with_context(|| format!("no number: {value}"))
}

fn sum(object: &Value) -> Result<u64> {
    let object = object.as_object().context("no counters")?;
    object.values().map(number).sum()
}
