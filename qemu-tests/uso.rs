//! Datagrams in a guest that takes them merged (USO), and in one that does not.
//!
//! The guest's own program reads one datagram at a time either way, so the boundaries are those
//! that its kernel found in what the daemon delivered.

use anyhow::{Context, Result, bail, ensure};
use etherparse::{SlicedPacket, TransportSlice};

use crate::Case;
use crate::harness::capture::{Frame, GuestCapture};
use crate::harness::counters::parse_snmp;
use crate::harness::{Vm, Wire};
use crate::payload::{self, Family};
use crate::scene::{Plot, Scene, Stage};
use crate::train::Receiver;

pub(crate) const CASES: &[Case] = &[
    Case::new("uso_trains_are_merged", merged).daemon_only(),
    Case::new("uso_excluded_ports_stay_apart", excluded_ports).daemon_only(),
    Case::new("uso_off_merges_nothing", off).daemon_only(),
    Case::new("uso_not_acked_merges_nothing", not_acked).on_older_too(),
    Case::new("uso_ends_with_the_reset", ends_with_the_reset).daemon_only(),
    Case::new("uso_trains_that_the_host_merged", host_merged).daemon_only(),
];

const PORT: u16 = 9001;

/// Long against what a sender needs between two datagrams.
const OPTIONS: &str = "--gro-flush-timeout-ns 5000000 --napi-defer-hard-irqs 0";

fn open<'a>(stage: &Stage<'a>, options: &str) -> Result<Scene<'a>> {
    stage.open_with(&Plot {
        options: format!("{OPTIONS} {options}"),
        uso: true,
        ..Plot::default()
    })
}

/// Payloads of the datagrams as they came out of the device, `total` bytes in all: longer ones are
/// merged.
fn delivered(
    vm: &Vm,
    port: u16,
    total: usize,
    act: impl FnOnce() -> Result<()>,
) -> Result<Vec<usize>> {
    let capture = GuestCapture::start(vm, &format!("udp dst port {port}"))?;
    act()?;
    let payloads = |frames: &[Frame]| -> Result<Vec<usize>> {
        frames.iter().map(|frame| payload(&frame.bytes)).collect()
    };
    let frames = capture
        .wait(|frames| payloads(frames).is_ok_and(|sizes| sizes.iter().sum::<usize>() >= total))?;
    payloads(&frames)
}

/// Bytes behind the UDP header.
fn payload(frame: &[u8]) -> Result<usize> {
    match SlicedPacket::from_ethernet(frame)?.transport {
        Some(TransportSlice::Udp(udp)) => Ok(udp.payload().len()),
        _ => bail!("not UDP: {frame:02x?}"),
    }
}

/// Errors that the guest's kernel counted for datagrams, of both address families.
fn errors(vm: &Vm) -> Result<u64> {
    let text = vm.run("cat /proc/net/snmp; echo @; cat /proc/net/snmp6")?;
    let (ip4, ip6) = text.split_once("@\n").context("no second part")?;
    let ip4 = parse_snmp(ip4);
    let of_ip4 = ["Udp.InErrors", "Udp.InCsumErrors", "Udp.RcvbufErrors"]
        .iter()
        .map(|name| ip4.get(*name).copied().context("no such counter"))
        .sum::<Result<u64>>()?;
    let is_error =
        |name: &str| ["Udp6InErrors", "Udp6InCsumErrors", "Udp6RcvbufErrors"].contains(&name);
    let of_ip6 = ip6
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .filter(|(name, _)| is_error(name))
        .map(|(_, value)| Ok(value.trim().parse::<u64>()?))
        .sum::<Result<u64>>()?;
    Ok(of_ip4 + of_ip6)
}

/// One train for each rule that ends a merged packet.
fn trains() -> Vec<Vec<usize>> {
    let mut short_at_the_end = vec![1200; 20];
    short_at_the_end.push(300);
    let short_in_between = [1000, 1000, 400, 1000, 1000].to_vec();
    let longer = [500, 500, 600, 600, 600].to_vec();
    let more_than_64 = vec![700; 70];
    let tiny = vec![1; 30];
    let alone = vec![1400];
    vec![
        short_at_the_end,
        short_in_between,
        longer,
        more_than_64,
        tiny,
        alone,
    ]
}

fn merged(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage, "")?;
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    for family in Family::BOTH {
        let receiver = Receiver::start(vm, sender, family, PORT)?;
        let before = errors(vm)?;
        let packets = delivered(vm, PORT, trains().concat().iter().sum(), || {
            receiver.check(sender, &trains())
        })?;
        // A sender that was interrupted leaves a gap; most of the trains have none.
        let datagrams = trains().concat().len();
        let longest = packets.iter().max().copied().unwrap_or(0);
        ensure!(
            packets.len() * 3 < datagrams && longest > 10 * 1200,
            "{family:?}: {datagrams} datagrams came in {packets:?}"
        );
        ensure!(
            !packets.iter().any(|&size| size > 64 * 700),
            "{family:?}: more than 64 datagrams in one: {packets:?}"
        );
        ensure!(errors(vm)? == before, "the guest counted errors");
    }
    payload::all_ways(vm, sender)
}

/// The tunnels' ports, or those that the operator gave instead.
fn excluded_ports(stage: &Stage<'_>) -> Result<()> {
    for (options, excluded) in [
        ("", [4789, 6081]),
        ("--udp-exclude-ports 53,9001", [53, 9001]),
    ] {
        let scene = open(stage, options)?;
        for port in excluded {
            stays_apart(&scene, port)?;
        }
    }
    Ok(())
}

fn off(stage: &Stage<'_>) -> Result<()> {
    stays_apart(&open(stage, "--udp-gro off")?, PORT)
}

/// QEMU lets no guest ack USO over vhost-user; with its own tap the guest does so, but a tap
/// merges nothing.
fn not_acked(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        options: OPTIONS.into(),
        ..Plot::default()
    })?;
    stays_apart(&scene, PORT)
}

fn stays_apart(scene: &Scene<'_>, port: u16) -> Result<()> {
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    let receiver = Receiver::start(vm, sender, Family::V4, port)?;
    let before = errors(vm)?;
    let packets = delivered(vm, port, trains().concat().iter().sum(), || {
        receiver.check(sender, &trains())
    })?;
    ensure!(
        packets == trains().concat(),
        "to port {port} came {packets:?}"
    );
    ensure!(errors(vm)? == before, "the guest counted errors");
    Ok(())
}

/// What a guest acked ends when its driver does.
fn ends_with_the_reset(stage: &Stage<'_>) -> Result<()> {
    let mut scene = open(stage, "")?;
    is_merged(&scene, true)?;
    for acks in [false, true] {
        reload(&scene, acks)?;
        is_merged(&scene, acks)?;
    }
    scene.middleman.as_ref().context("no middleman")?.ack(false);
    scene.vm.reboot()?;
    scene.vm.configure()?;
    is_merged(&scene, false)
}

/// Lets the guest's driver start again, now with USO or without.
fn reload(scene: &Scene<'_>, acks: bool) -> Result<()> {
    scene.middleman.as_ref().context("no middleman")?.ack(acks);
    let again = "rmmod virtio_net && insmod /modules/virtio_net.ko";
    scene.vm.run(again)?;
    scene.vm.configure()
}

fn is_merged(scene: &Scene<'_>, wanted: bool) -> Result<()> {
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    let trains = [vec![1200; 40], vec![1200; 40]];
    for family in Family::BOTH {
        let receiver = Receiver::start(vm, sender, family, PORT)?;
        let total = trains.concat().iter().sum();
        let packets = delivered(vm, PORT, total, || receiver.check(sender, &trains))?;
        let is_merged = packets.iter().any(|&size| size > 1200);
        ensure!(is_merged == wanted, "{family:?}: {packets:?}");
    }
    Ok(())
}

/// A sender on the same host hands over trains that nobody cut; they are passed on if the guest
/// takes them, else the kernel cuts them before we see them.
fn host_merged(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        wire: Wire::Bulk,
        // So that nobody but the host merges.
        options: "--gro off".into(),
        uso: true,
        ..Plot::default()
    })?;
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    let (size, total) = (1000, 20_300);
    for acks in [true, false] {
        reload(&scene, acks)?;
        for family in Family::BOTH {
            let receiver = Receiver::start(vm, sender, family, PORT)?;
            let before = errors(vm)?;
            let packets = delivered(vm, PORT, total, || {
                receiver.check_segmented(stage.kit, sender, size, total)
            })?;
            let expected = if acks {
                vec![total]
            } else {
                [vec![size; 20], vec![300]].concat()
            };
            ensure!(packets == expected, "{family:?}, acked {acks}: {packets:?}");
            ensure!(errors(vm)? == before, "the guest counted errors");
        }
    }
    Ok(())
}
