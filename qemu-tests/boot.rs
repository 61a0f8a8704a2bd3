//! A guest comes up and reaches its neighbour.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::Case;
use crate::harness::attachment::Need;
use crate::harness::process::Process;
use crate::harness::sandbox::RUN_DIR;
use crate::harness::wait::wait_until;
use crate::payload::{self, Family};
use crate::scene::{Plot, Scene, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::on_guest("boot_ping", ping)
        .on_older_too()
        .on_every_uplink(),
    Case::on_guest("boot_dhcp", dhcp).on_every_uplink(),
    Case::new("boot_mtu9000", mtu9000)
        .on_every_uplink()
        .needs(Need::LongFrames),
    Case::new("boot_mtu_from_daemon", mtu_from_daemon).daemon_only(),
];

fn ping(_: &Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let sender = &scene.lab.sender;
    for (ping, address) in [("ping", &sender.ip4), ("ping6", &sender.ip6)] {
        for size in [0, 56, 1400, 4000] {
            scene
                .vm
                .run(&format!("{ping} -c 2 -W 5 -s {size} {address}"))?;
        }
    }
    Ok(())
}

/// A server on the sender's side gives the guest its address.
fn dhcp(stage: &Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let run = Path::new(RUN_DIR);
    let config = run.join("udhcpd.conf");
    let lines = format!(
        "start 10.77.0.200\nend 10.77.0.200\ninterface eth0\nlease_file {0}/udhcpd.leases\npidfile {0}/udhcpd.pid\n\
         option subnet 255.255.255.0\n",
        run.display()
    );
    std::fs::write(&config, lines)?;
    std::fs::write(run.join("udhcpd.leases"), "")?;
    let mut udhcpd = stage.kit.tool("busybox")?;
    udhcpd.args(["udhcpd", "-f"]).arg(&config);
    let mut server = scene
        .lab
        .sender
        .inside(|| Process::start("udhcpd", &mut udhcpd, run.join("udhcpd.log")))?;
    wait_until("udhcpd's start", Duration::from_secs(5), || {
        server.check_alive()?;
        Ok(server.log().contains("started"))
    })?;
    scene.vm.run(
        "ip addr flush dev eth0; printf '#!/bin/sh\\n[ $1 != bound ] || ip addr add $ip/24 dev eth0\\n' >/tmp/bound && \
         chmod +x /tmp/bound && udhcpc -i eth0 -n -q -t 10 -T 1 -s /tmp/bound",
    )?;
    let addresses = scene.vm.run("ip addr show dev eth0")?;
    ensure!(
        addresses.contains("inet 10.77.0.200/24"),
        "no address by DHCP: {addresses}"
    );
    let pinged = format!("ping -c 1 -W 5 {}", scene.lab.sender.ip4);
    scene
        .vm
        .run(&format!("{pinged} && ip addr flush dev eth0"))?;
    scene.vm.configure()
}

/// Frames of 9000 bytes go through whole.
fn mtu9000(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        mtu: 9000,
        ..Plot::default()
    })?;
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    vm.run(&format!("ping -c 2 -W 5 -s 8972 {}", sender.ip4))?;
    vm.run(&format!("ping6 -c 2 -W 5 -s 8952 {}", sender.ip6))?;
    let fragments = vm.run("awk '/^Ip: [0-9]/ { print $15 + $18 }' /proc/net/snmp")?;
    ensure!(
        fragments.trim() == "0",
        "fragments were needed: {fragments}"
    );
    for family in Family::BOTH {
        payload::tcp_in(vm, sender, family, 16 << 20)?;
        payload::tcp_out(vm, sender, family, 8 << 20)?;
    }
    Ok(())
}

/// The guest takes the MTU that the daemon was told.
fn mtu_from_daemon(stage: &Stage<'_>) -> Result<()> {
    let plot = Plot {
        properties: "host_mtu=1400".into(),
        options: "--mtu 1400".into(),
        mtu: 1400,
        ..Plot::default()
    };
    let scene = stage.open_with(&plot)?;
    let limit = scene
        .vm
        .run("ip link set eth0 mtu 1401; cat /sys/class/net/eth0/mtu")?;
    ensure!(
        limit.trim().ends_with("1400"),
        "the guest's MTU can be {limit}"
    );
    payload::tcp_in(&scene.vm, &scene.lab.sender, Family::V4, 1 << 20)
}
