//! What guest, daemon and host have counted, read while nothing moves, and whether it fits together.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::attachment::{Passed, Port};
use crate::harness::counters::GuestCounters;
use crate::harness::wait::wait_for;
use crate::harness::{Daemon, Lab, Vm};

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

/// Frames that the guest has not counted yet: it does when it takes their buffers back, and is in no
/// hurry to do that. There are no more than entries in its ring.
const LATE: i64 = 256;

/// One moment.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    guest: GuestCounters,
    daemon: Value,
    /// What the daemon is attached to.
    pub(super) passed: Passed,
    /// Frames that the host's kernel lost between two devices, on all of the machine.
    backlog_drops: u64,
    /// The daemon's.
    pub(super) resident_kib: u64,
    descriptors: usize,
    threads: usize,
}

impl Reading {
    /// Waits until nothing moves, and reads everything.
    pub(super) fn take(vm: &Vm, daemon: &Daemon, port: &Port, lab: &Lab<'_>) -> Result<Self> {
        wait_for("a moment of quiet", Duration::from_secs(60), || {
            let before = daemon.counters()?;
            let guest = counters(vm)?;
            let passed = port.passed(lab)?;
            let after = daemon.counters()?;
            if before != after {
                return Ok(None);
            }
            Ok(Some(Reading {
                guest,
                daemon: after["queue_pairs"][0].clone(),
                passed,
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

    /// Whether nothing has gone wrong since `before` and every frame is accounted for, with a port
    /// that stayed all the time.
    pub(super) fn compare(&self, before: &Reading) -> Result<()> {
        let full = self.passed.dropped - before.passed.dropped;
        ensure!(full == 0, "the host had no room for {full} frames");
        let refused = self.passed.refused - before.passed.refused;
        ensure!(refused == 0, "the host refused {refused} frames");
        let unseen = self.compare_with_outages(before)?;
        ensure!(
            unseen == 0,
            "{unseen} of the frames that the host handed out were never read: {:?}, {}",
            self.passed,
            self.daemon
        );
        let unsent = self.unsent(before)?;
        ensure!(
            unsent.abs() <= LATE,
            "the daemon knows nothing of {unsent} frames of the guest: {}",
            self.daemon["tx"]
        );
        let rx = &self.daemon["rx"];
        let (cut, packets) = (number(&rx["resegmented"])?, number(&rx["packets"])?);
        ensure!(
            cut * 1000 <= packets,
            "{cut} of {packets} packets were cut apart"
        );
        Ok(())
    }

    /// The same with a port that was away at times. Gives the number of frames that the host handed
    /// out while nobody was attached.
    pub(super) fn compare_with_outages(&self, before: &Reading) -> Result<u64> {
        for name in NEVER {
            ensure!(
                self.guest.snmp.contains_key(name),
                "the guest has no {name}"
            );
            let count = self.since(before, name);
            ensure!(count == 0, "the guest counted {count} {name}");
        }
        self.check_received()?;
        self.check_sent(before)?;
        for none in ["pool_in_use", "bad_chains", "spoilt_chains"] {
            let count = &self.daemon["rx"][none];
            ensure!(number(count)? == 0, "{none}: {count}");
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
        let handed_out = self.passed.to_daemon - before.passed.to_daemon;
        let seen = self.seen()? - before.seen()?;
        handed_out
            .checked_sub(seen)
            .with_context(|| format!("{seen} of {handed_out} frames were read"))
    }

    /// Frames that the daemon knows of, whatever became of them.
    fn seen(&self) -> Result<u64> {
        let (rx, uplink) = (&self.daemon["rx"], &self.daemon["uplink"]);
        let lost = ["rx_truncated", "rx_discarded", "rx_ring_full"].map(|name| &uplink[name]);
        let all = lost
            .into_iter()
            .chain([&rx["gro"]["frames"], &rx["dropped"]["above_mtu"]]);
        all.map(number).sum()
    }

    /// Each frame is within a packet of another, is one itself, or was dropped; nothing is held.
    /// Packets that were cut because a guest without processor time added no buffers count as
    /// pieces. All packets came to the guest.
    fn check_received(&self) -> Result<()> {
        let rx = &self.daemon["rx"];
        let gro = &rx["gro"];
        let (read, merged) = (number(&gro["frames"])?, number(&gro["merged"])?);
        let (packets, cut) = (number(&rx["packets"])?, number(&rx["resegmented"])?);
        let drops = &rx["dropped"];
        let dropped = number(&drops["at_stop"])? + number(&drops["too_big"])?;
        let dropped = dropped + sum(&gro["dropped"])?;
        let pieces = (merged + packets + dropped).checked_sub(read);
        ensure!(
            pieces.is_some_and(|more| (cut..=cut * MOST_SEGMENTS).contains(&more)),
            "{read} frames were read, {merged} merged, {packets} delivered, {dropped} dropped, {cut} cut"
        );
        let seen = self.guest.rx_packets;
        ensure!(
            packets == seen,
            "the guest saw {seen} packets of the {packets} that it was given"
        );
        Ok(())
    }

    /// What left the daemon came to the host, which may have refused it.
    fn check_sent(&self, before: &Reading) -> Result<()> {
        let bad = sum(&self.daemon["tx"]["dropped"]["bad_frame"])?;
        ensure!(bad == 0, "{bad} frames of the guest were refused");
        let on_the_way = |reading: &Reading| -> Result<u64> {
            let (tx, uplink) = (&reading.daemon["tx"], &reading.daemon["uplink"]);
            let whole = number(&tx["frames"])? - number(&tx["segmented"])?;
            Ok(whole + number(&tx["segments"])? - number(&uplink["tx_lost"])?)
        };
        let left = on_the_way(self)? - on_the_way(before)?;
        let came = self.passed.from_daemon - before.passed.from_daemon;
        let refused = self.passed.refused - before.passed.refused;
        ensure!(
            (came..=came + refused).contains(&left),
            "{left} frames left the daemon, {came} came to the host, which refused {refused}"
        );
        Ok(())
    }

    /// Frames that the guest sent since `before`, of which the daemon has sent none on and dropped
    /// none: QEMU throws frames away itself while the link is down.
    pub(super) fn unsent(&self, before: &Reading) -> Result<i64> {
        let known = |reading: &Reading| -> Result<u64> {
            let tx = &reading.daemon["tx"];
            let drops = &tx["dropped"];
            let reasons = ["misfit", "link_down", "ring_disabled"];
            let dropped = reasons.map(|reason| number(&drops[reason]));
            let dropped = dropped.into_iter().sum::<Result<u64>>()?;
            Ok(number(&tx["frames"])? + dropped + sum(&drops["refused_by_host"])?)
        };
        let unsent = |reading: &Reading| -> Result<i64> {
            Ok(i64::try_from(reading.guest.tx_packets)? - i64::try_from(known(reading)?)?)
        };
        Ok(unsent(self)? - unsent(before)?)
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
            "  from the host {} frames; to the guest {} packets, {:.1} frames each; super-frames {}, {:.1} frames each",
            self.passed.to_daemon,
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
            "  from the guest {} frames, dropped {}; uplink {}",
            tx["frames"], tx["dropped"], self.daemon["uplink"]
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
