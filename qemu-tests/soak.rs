//! One guest under mixed traffic for a stated time: `make soak SECONDS=600`; some seconds of it
//! otherwise, so that it can't rot.
//!
//! ```text
//!   frames     MTU-sized, as from another machine; echo requests and datagrams as well
//!   packets    of 64 KiB that the sender's kernel did not segment
//!   far, VLAN  MTU-sized, through a mangler that marks congestion and, in the second phase,
//!              loses, doubles and swaps frames
//! ```
//!
//! In the first phase nothing is lost, so the guest must not see a single segment out of order.
//!
//! What the daemon is attached to stays as it is here; `outages` is about that.

mod flows;
mod mangler;
mod outages;
mod reading;
mod together;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vhost_user_gro::uplink::BUF_LEN;

use crate::Case;
use crate::harness::netns::ip;
use crate::harness::{Cpus, Daemon, Lab, Sender, Vm, Wire};
use crate::scene::{Plot, Scene, Stage};
use flows::Portion;
use mangler::{Faults, Mangler};
use reading::Reading;
use together::{Flow, say};

pub(crate) const CASES: &[Case] = &[
    Case::new("soak_mixed_traffic", soak).daemon_only(),
    Case::new("soak_outages", outages::soak)
        .daemon_only()
        .on_every_uplink(),
];

/// Length of a soak without [`SECONDS`].
const SHORT: Duration = Duration::from_secs(20);
/// The variable that says how long it takes.
const SECONDS: &str = "QEMU_TESTS_SOAK_SECONDS";

/// The far sender's network and the guest's VLAN device.
const FAR: [&str; 2] = ["10.78.0.1", "fd78::1"];
const VLAN: [&str; 2] = ["10.78.0.10", "fd78::10"];

/// More frames than all connections together have under way, so that none is lost on a tap.
const TAP_QUEUE: u32 = 10_000;
/// Bytes that a connection towards the guest has under way at most: the sender's buffer, because a
/// window only says what the guest would take.
const UNDER_WAY: u32 = 131_072;
/// Payload of a full segment over IPv6, the smaller one.
const FULL_SEGMENT: u32 = 1428;
/// What TCP in the guest may take for all connections, in pages: 128 of its 256 MiB.
const GUEST_PAGES: u32 = 32_768;
/// What the daemon's memory may grow by: its pool of 1024 frames, of which each is in memory as far
/// as it was ever used, and a little that its allocator keeps.
const GROWTH_KIB: u64 = 1024 * (BUF_LEN as u64).div_ceil(1024) + 1024;

fn soak(stage: &Stage<'_>) -> Result<()> {
    let length = length()?;
    // The processor that this thread is bound to is none of the next test's business.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| run(stage, length));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn length() -> Result<Duration> {
    Ok(match std::env::var(SECONDS) {
        Ok(text) => Duration::from_secs(text.parse().with_context(|| SECONDS.to_owned())?),
        Err(_) => SHORT,
    })
}

/// Everything that takes part.
struct Cast<'a> {
    stage: &'a Stage<'a>,
    scene: Scene<'a>,
    packets: Sender,
    far: Lab<'a>,
    faults: Faults,
    portion: Portion,
    hash_of_source: String,
}

fn run(stage: &Stage<'_>, length: Duration) -> Result<()> {
    let (cast, mangler) = Cast::gather(stage, Portion::of(length))?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let wire = scope.spawn(|| mangler.run(&cast.faults, &stop));
        let result = phases(&cast, length);
        stop.store(true, Relaxed);
        let wire = wire
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and(wire)
    })
}

fn phases(cast: &Cast<'_>, length: Duration) -> Result<()> {
    let start = cast.reading()?;
    let clean = cast.phase("without loss", length * 3 / 5)?;
    clean.compare(&start)?;
    clean.check_order(&start, UNDER_WAY.div_ceil(FULL_SEGMENT))?;
    let refused = cast.faults.refused.load(Relaxed);
    ensure!(refused == 0, "the wire lost {refused} frames");

    cast.faults.is_lossy.store(true, Relaxed);
    let lossy = cast.phase("with loss and disorder", length * 2 / 5)?;
    lossy.compare(&clean)?;
    let disorder = lossy.since(&clean, "TcpExt.TCPOFOQueue");
    let [lost, marked] = [&cast.faults.lost, &cast.faults.marked].map(|count| count.load(Relaxed));
    ensure!(
        lost > 0 && disorder > 0 && marked > 0,
        "was there any fault? {disorder} segments came out of order, {:?}",
        cast.faults
    );
    let levels = [&start, &clean, &lossy].map(|reading| reading.resident_kib);
    ensure!(
        levels[2] <= levels[0] + GROWTH_KIB,
        "the daemon's memory grew: {levels:?} KiB"
    );
    complaints(&cast.scene.vm)?;
    let [before, between, after] = levels;
    say(&format!(
        "  {:?}\n  daemon's memory: {before} KiB before, {between} between, {after} after\n",
        cast.faults
    ));
    Ok(())
}

/// Fails with what the guest's kernel complained of, if it did.
fn complaints(vm: &Vm) -> Result<()> {
    let said = vm.run("dmesg | grep -iE 'bad gso|bug:|warning:|call trace|oops' || true")?;
    ensure!(said.is_empty(), "the guest's kernel complained: {said}");
    Ok(())
}

impl<'a> Cast<'a> {
    fn gather(stage: &'a Stage<'a>, portion: Portion) -> Result<(Self, Mangler)> {
        let scene = stage.open_with(&Plot {
            uso: true,
            ..Plot::default()
        })?;
        if let Some(cpus) = Cpus::choose()? {
            cpus.pin(&scene.vm, scene.daemon.as_ref())?;
        }
        let (kit, lab, vm) = (stage.kit, &scene.lab, &scene.vm);
        let packets = lab.add_sender(2, Wire::Bulk)?;

        let far = Lab::new(kit, Wire::Frames, 1500)?;
        far.sender.inside(|| -> Result<()> {
            std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1")?;
            ip(kit, &format!("addr add {}/24 dev eth0", FAR[0]))?;
            ip(kit, &format!("addr add {}/64 dev eth0 nodad", FAR[1]))
        })?;
        let wire = [lab.add_tap(1)?, far.add_tap(1)?];
        for tap in wire.iter().chain([&lab.tap(0)]) {
            ip(kit, &format!("link set {tap} txqueuelen {TAP_QUEUE}"))?;
        }
        for sender in [&lab.sender, &packets, &far.sender] {
            let limits = format!("4096 16384 {UNDER_WAY}");
            sender.inside(|| std::fs::write("/proc/sys/net/ipv4/tcp_wmem", limits))?;
        }
        let mangler = Mangler::new(&wire[0], &wire[1])?;
        let room = portion.guest_memory();
        vm.run(&format!(
            "for module in $(cat /modules/vlan); do insmod /modules/$module.ko; done; \
             ip link add link eth0 name vlan5 type vlan id 5 && ip link set vlan5 up && \
             ip addr add {}/24 dev vlan5 && ip addr add {}/64 dev vlan5 && \
             cd /proc/sys/net/ipv4 && echo 4096 {room} {room} >tcp_rmem && \
             echo {GUEST_PAGES} {GUEST_PAGES} {GUEST_PAGES} >tcp_mem",
            VLAN[0], VLAN[1]
        ))?;
        flows::serve(vm, portion)?;
        let hash_of_source = flows::hash_of_source(vm)?;
        let cast = Cast {
            stage,
            scene,
            packets,
            far,
            faults: Faults::default(),
            portion,
            hash_of_source,
        };
        Ok((cast, mangler))
    }

    fn reading(&self) -> Result<Reading> {
        let Scene { vm, port, lab, .. } = &self.scene;
        let port = port.as_ref().context("no port")?;
        Reading::take(vm, self.daemon()?, port, lab)
    }

    /// Everything at once for `length`.
    fn phase(&self, name: &str, length: Duration) -> Result<Reading> {
        together::run(name, &self.flows(), |watch| {
            watch.pass(length);
            Ok(())
        })?;
        let end = self.reading()?;
        say(&format!("{end}"));
        Ok(end)
    }

    fn flows(&self) -> Vec<Flow<'_>> {
        let (vm, kit) = (&self.scene.vm, self.stage.kit);
        let (frames, packets, far) = (&self.scene.lab.sender, &self.packets, &self.far.sender);
        let (ip4, ip6) = (vm.ip4.as_str(), vm.ip6.as_str());
        let portion = self.portion;
        let into = |name, sender, to| Flow::into(name, sender, to, portion);
        let out = |name, sender, from| Flow::out_of(name, sender, from, &self.hash_of_source);
        vec![
            into("frames, bulk in, IPv4", frames, ip4),
            into("frames, bulk in, IPv6", frames, ip6),
            out("frames, bulk out, IPv4", frames, ip4),
            Flow::dialogue("frames, requests, IPv4", frames, ip4),
            Flow::dialogue("frames, requests, IPv6", frames, ip6),
            Flow::new("frames, datagrams", move |stop, done| {
                flows::trains(vm, frames, portion, stop, done)
            }),
            Flow::new("frames, echo requests", |stop, done| {
                flows::pings(kit, frames, ip4, stop, done)
            }),
            into("packets of 64 KiB, bulk in, IPv4", packets, ip4),
            into("packets of 64 KiB, bulk in, IPv6", packets, ip6),
            out("packets of 64 KiB, bulk out, IPv6", packets, ip6),
            into("VLAN with CE, bulk in, IPv4", far, VLAN[0]),
            into("VLAN with CE, bulk in, IPv6", far, VLAN[1]),
            out("VLAN with CE, bulk out, IPv4", far, VLAN[0]),
            Flow::dialogue("VLAN with CE, requests, IPv6", far, VLAN[1]),
        ]
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.scene.daemon.as_ref().context("no daemon")
    }
}
