//! Millions of frames between the daemon and DPDK's testpmd, which drives it as a guest's driver does
//! and counts them: none may get lost unseen.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Case;
use crate::harness::kit::Kit;
use crate::harness::netns::ip;
use crate::harness::testpmd::{PortCount, Testpmd, TestpmdConfig};
use crate::harness::wait::{wait_for, wait_until};
use crate::harness::{Daemon, DaemonConfig};
use crate::scene::Stage;

pub(crate) const CASES: &[Case] = &[
    Case::new("testpmd_sends_to_null", sends_to_null).daemon_only(),
    Case::new("testpmd_receives_from_generator", receives_from_generator).daemon_only(),
    Case::new("testpmd_gets_back_from_loopback", gets_back_from_loopback).daemon_only(),
    Case::new("testpmd_through_two_taps", through_two_taps).daemon_only(),
    Case::new("testpmd_two_pairs", two_pairs).daemon_only(),
];

/// Frames of one run.
const FRAMES: u64 = 300_000;
/// How long they may take: the daemon under test may be a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Entries of each of testpmd's rings.
const RING: u64 = 256;

/// Ways in which a driver may use its rings.
const RINGS: [&str; 4] = [
    "mrg_rxbuf=1,in_order=1",
    "mrg_rxbuf=1,in_order=0",
    "mrg_rxbuf=0,in_order=1",
    "mrg_rxbuf=0,in_order=0",
];

/// A daemon with testpmd as its guest.
struct Pair {
    daemon: Daemon,
    testpmd: Testpmd,
}

impl Pair {
    fn start(kit: &Kit, uplink: &str, change: impl Fn(&Path) -> TestpmdConfig) -> Result<Self> {
        let mut config = DaemonConfig::on(uplink);
        let guest = change(&config.socket);
        config.queue_pairs = guest.queues;
        Ok(Pair {
            daemon: Daemon::start(&config)?,
            testpmd: Testpmd::start(kit, &guest)?,
        })
    }

    /// The sum over all queue pairs of the counter at `path`, such as `/rx/frames`.
    fn count(&self, path: &str) -> Result<u64> {
        sum(&self.daemon.counters()?, path)
    }

    fn await_count(&self, path: &str, at_least: u64) -> Result<()> {
        wait_until(path, LIMIT, || Ok(self.count(path)? >= at_least))
            .with_context(|| format!("{:?}", self.daemon.counters()))
    }

    /// Makes sure that all frames that testpmd sent since the counter was at `before` were sent on.
    fn check_sent(&self, before: u64, count: PortCount) -> Result<()> {
        let expected = before + count.sent;
        // A driver may send on a ring that it has not enabled yet.
        let known = |counters: &Value| -> Result<u64> {
            Ok(sum(counters, "/tx/frames")? + sum(counters, "/tx/dropped/ring_disabled")?)
        };
        wait_until("every frame", LIMIT, || {
            Ok(known(&self.daemon.counters()?)? >= expected)
        })
        .with_context(|| format!("{:?}", self.daemon.counters()))?;
        let counters = self.daemon.counters()?;
        ensure!(known(&counters)? == expected, "{expected}: {counters}");
        ensure!(
            sum(&counters, "/tx/completed_frames")? == expected,
            "{counters}"
        );
        Ok(())
    }

    /// Makes sure that testpmd got all frames but those that may still lie in its rings.
    fn check_received(&self, before: u64, count: PortCount, queues: u16) -> Result<()> {
        let counters = self.daemon.counters()?;
        let filled = sum(&counters, "/rx/packets")? - before;
        let waiting = filled.checked_sub(count.received);
        ensure!(
            waiting.is_some_and(|waiting| waiting <= RING * u64::from(queues)),
            "testpmd received {count:?}, {waiting:?} wait: {counters}"
        );
        Ok(())
    }

    /// Ends testpmd. Nothing that came from the uplink is unaccounted for then, and nothing was
    /// wrong with a frame or a ring.
    fn end(self) -> Result<()> {
        self.testpmd.quit()?;
        let counters = wait_for("the last frame", LIMIT, || {
            let counters = self.daemon.counters()?;
            // What the guest had no buffers for waits for the next one.
            let known = ["/rx/frames", "/rx/dropped/at_stop", "/rx/pool_in_use"]
                .iter()
                .map(|path| sum(&counters, path))
                .sum::<Result<u64>>()?;
            Ok((sum(&counters, "/rx/gro/frames")? == known).then_some(counters))
        })
        .with_context(|| format!("{:?}", self.daemon.counters()))?;
        let pairs = counters["queue_pairs"].as_array().context("no pairs")?;
        for path in [
            "/internal_errors",
            "/rx/bad_chains",
            "/rx/spoilt_chains",
            "/rx/dropped/too_big",
            "/rx/dropped/above_mtu",
            "/tx/dropped/bad_frame",
            "/tx/dropped/misfit",
            "/tx/dropped/refused_by_host",
            "/tx/dropped/link_down",
        ] {
            let counts: Option<Vec<_>> = pairs.iter().map(|pair| pair.pointer(path)).collect();
            let counts = counts.with_context(|| path.to_owned())?;
            ensure!(
                counts.into_iter().map(total).sum::<u64>() == 0,
                "{path}: {counters}"
            );
        }
        ensure!(self.daemon.terminate()?.success(), "the daemon failed");
        Ok(())
    }
}

/// Everything counted below a name.
fn total(counts: &Value) -> u64 {
    match counts {
        Value::Object(parts) => parts.values().map(total).sum(),
        count => count.as_u64().unwrap_or(0),
    }
}

fn sum(counters: &Value, path: &str) -> Result<u64> {
    let pairs = counters["queue_pairs"].as_array().context("no pairs")?;
    let one = |pair: &Value| pair.pointer(path).and_then(Value::as_u64);
    let counts: Option<Vec<u64>> = pairs.iter().map(one).collect();
    Ok(counts.with_context(|| path.to_owned())?.iter().sum())
}

fn sends_to_null(stage: &Stage<'_>) -> Result<()> {
    for (rings, len) in RINGS.into_iter().zip([64, 1518, 64, 1518]) {
        let mut pair = Pair::start(stage.kit, "--null", |socket| TestpmdConfig {
            frame_len: len,
            ..TestpmdConfig::driver(socket, rings, "txonly")
        })?;
        for frames in [FRAMES, 2 * FRAMES] {
            let before = pair.count("/tx/frames")?;
            pair.testpmd.go()?;
            pair.await_count("/tx/frames", frames)?;
            let count = pair.testpmd.stop()?;
            pair.check_sent(before, count).context(rings)?;
        }
        let bytes = pair.count("/tx/completed_bytes")?;
        ensure!(
            bytes == pair.count("/tx/frames")? * u64::from(len),
            "{bytes} bytes"
        );
        pair.end().context(rings)?;
    }
    Ok(())
}

fn receives_from_generator(stage: &Stage<'_>) -> Result<()> {
    for (rings, payload) in RINGS.into_iter().zip([1, 1448, 1448, 1]) {
        let uplink = format!("--generator 3 --generator-payload-bytes {payload}");
        let mut pair = Pair::start(stage.kit, &uplink, |socket| {
            TestpmdConfig::driver(socket, rings, "rxonly")
        })?;
        pair.testpmd.go()?;
        pair.await_count("/rx/packets", FRAMES)?;
        let count = pair.testpmd.stop()?;
        pair.check_received(0, count, 1).context(rings)?;
        pair.end().context(rings)?;
    }
    Ok(())
}

/// The same few frames go round and round.
fn gets_back_from_loopback(stage: &Stage<'_>) -> Result<()> {
    for rings in RINGS {
        let mut pair = Pair::start(stage.kit, "--loopback", |socket| {
            TestpmdConfig::driver(socket, rings, "io")
        })?;
        // No more than a loopback holds, or it would have to refuse some.
        pair.testpmd.go_with(4)?;
        pair.await_count("/rx/packets", FRAMES)?;
        let count = pair.testpmd.stop()?;
        pair.check_sent(0, count).context(rings)?;
        pair.check_received(0, count, 1).context(rings)?;
        pair.end().context(rings)?;
    }
    Ok(())
}

/// What one sends over a tap arrives at the other, or the second tap has counted it as lost.
fn through_two_taps(stage: &Stage<'_>) -> Result<()> {
    let kit = stage.kit;
    ip(kit, "link add pmdbr type bridge mcast_snooping 0")?;
    for device in ["pmdbr", "pmd0", "pmd1"] {
        if device != "pmdbr" {
            ip(kit, &format!("tuntap add dev {device} mode tap vnet_hdr"))?;
            ip(kit, &format!("link set {device} master pmdbr"))?;
        }
        // The kernel would send something of its own.
        std::fs::write(
            format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"),
            "1",
        )?;
        ip(kit, &format!("link set {device} up"))?;
    }
    let from = Pair::start(kit, "--tap pmd0", |socket| {
        TestpmdConfig::driver(socket, "", "txonly")
    })?;
    let to = Pair::start(kit, "--tap pmd1", |socket| {
        TestpmdConfig::driver(socket, "", "rxonly")
    })?;
    let (mut from, mut to) = (from, to);
    let announced = TapCount::read("pmd0")?.from_daemon;
    to.testpmd.go()?;
    from.testpmd.go()?;
    from.await_count("/tx/frames", FRAMES)?;
    let sent = from.testpmd.stop()?;
    from.check_sent(0, sent)?;
    let arrived = TapCount::read("pmd0")?.from_daemon - announced;
    ensure!(
        arrived == sent.sent,
        "{sent:?}, {arrived} arrived at the host"
    );
    let mut read = 0;
    wait_until("the last frame", LIMIT, || {
        let count = TapCount::read("pmd1")?;
        read = count.to_daemon;
        Ok(count.to_daemon + count.dropped >= arrived)
    })?;
    to.await_count("/rx/packets", read)?;
    wait_until("the last packet", LIMIT, || {
        Ok(to.testpmd.show()?.received >= read)
    })?;
    let received = to.testpmd.stop()?;
    ensure!(received.received == read, "{received:?} of {read}");
    ensure!(read > 0, "nothing went through");
    from.end()?;
    to.end()?;
    ip(kit, "link del pmdbr")?;
    ip(kit, "link del pmd0")?;
    ip(kit, "link del pmd1")
}

/// What the host counted at a tap: frames of the daemon, frames for it, and those of them that the
/// tap had no room for.
#[derive(Debug, Clone, Copy)]
struct TapCount {
    from_daemon: u64,
    to_daemon: u64,
    dropped: u64,
}

impl TapCount {
    fn read(device: &str) -> Result<Self> {
        // `/proc/net` is that of the process, which is the same; `/sys` is that of the outer program.
        let text = std::fs::read_to_string("/proc/net/dev")?;
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
        let counts: Vec<u64> = line
            .context("no such device")?
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        // Eight of what was received, eight of what was sent: bytes, packets, errors, drops, ...
        let [
            _,
            from_daemon,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            to_daemon,
            _,
            dropped,
            ..,
        ] = counts[..]
        else {
            anyhow::bail!("{text}");
        };
        Ok(TapCount {
            from_daemon,
            to_daemon,
            dropped,
        })
    }
}

fn two_pairs(stage: &Stage<'_>) -> Result<()> {
    for (uplink, mode) in [("--null", "txonly"), ("--generator 2", "rxonly")] {
        let mut pair = Pair::start(stage.kit, uplink, |socket| TestpmdConfig {
            queues: 2,
            ..TestpmdConfig::driver(socket, "", mode)
        })?;
        pair.testpmd.go()?;
        let path = if mode == "txonly" {
            "/tx/frames"
        } else {
            "/rx/packets"
        };
        pair.await_count(path, FRAMES)?;
        let count = pair.testpmd.stop()?;
        if mode == "txonly" {
            pair.check_sent(0, count)?;
        } else {
            pair.check_received(0, count, 2)?;
        }
        let counters = pair.daemon.counters()?;
        for number in 0..2 {
            let one = counters.pointer(&format!("/queue_pairs/{number}{path}"));
            ensure!(
                one.and_then(Value::as_u64) > Some(0),
                "pair {number} is idle: {counters}"
            );
        }
        pair.end()?;
    }
    Ok(())
}
