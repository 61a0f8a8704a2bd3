//! Guests on stream sockets, everything run by an ordinary user: passt, and two guests joined.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::Case;
use crate::harness::process::{Process, output_of};
use crate::harness::user::User;
use crate::harness::wait::wait_until;
use crate::harness::{Daemon, DaemonConfig, Kit, Lab, Netdev, Sender, Vm, VmConfig, Wire};
use crate::payload::{self, Family};
use crate::scene::Stage;

pub(crate) const CASES: &[Case] = &[
    Case::new("stream_passt_as_ordinary_user", passt).daemon_only(),
    Case::new("stream_passt_that_restarts", passt_restarts).daemon_only(),
    Case::new("stream_two_guests", two_guests).daemon_only(),
    Case::new("stream_guest_of_qemu", guest_of_qemu).daemon_only(),
];

/// The guest's address, which is the one of the host that passt runs on.
const GUEST: u8 = 10;

/// passt on a host of its own, from which it speaks for the guest. All of it is the user's.
struct Passt<'a> {
    user: User,
    kit: Kit,
    host: Sender,
    socket: PathBuf,
    lab: Lab<'a>,
}

impl<'a> Passt<'a> {
    fn new(stage: &Stage<'a>, socket: &str) -> Result<Self> {
        let user = User::new()?;
        let lab = Lab::new(stage.kit, Wire::Frames, 1500)?;
        Ok(Passt {
            kit: user.kit(stage.kit)?,
            host: lab.add_sender(GUEST, Wire::Frames)?,
            socket: user.home().join(socket),
            user,
            lab,
        })
    }

    /// Boots the guest of a daemon.
    fn guest(&self, daemon: &DaemonConfig) -> Result<Vm> {
        let config = VmConfig {
            number: GUEST,
            user: Some(self.user.clone()),
            ..VmConfig::new(daemon.netdev())
        };
        Vm::start(&self.kit, self.kit.newest(), &config)
    }

    fn start(&self) -> Result<Process> {
        let mut command = self.kit.tool("passt")?;
        self.user.run(&mut command);
        // Pings are for groups that the host names.
        (self.host).inside(|| std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 65535"))?;
        command
            .args(["--foreground", "--stderr", "--socket"])
            .arg(&self.socket)
            .args([
                "-i",
                "eth0",
                "-a",
                &self.host.ip4,
                "-n",
                "24",
                "-g",
                "10.77.0.1",
            ])
            .args(["-a", &self.host.ip6, "-g", "fd77::1", "-m", "1500"])
            .args(["--no-map-gw", "--tcp-ports", "9000", "--udp-ports", "9001"]);
        let log = self.user.home().join("passt.log");
        let mut passt = self
            .host
            .inside(|| Process::start("passt", &mut command, log))?;
        wait_until("passt's socket", Duration::from_secs(10), || {
            passt.check_alive()?;
            Ok(self.socket.exists())
        })?;
        Ok(passt)
    }
}

/// The daemon of the user, and where QEMU finds it.
fn daemon(user: &User, uplink: &str, is_client: bool) -> Result<DaemonConfig> {
    let config = DaemonConfig::on(uplink);
    let name = config.socket.file_name().unwrap_or_default();
    Ok(DaemonConfig {
        socket: user.home().join(name),
        client: is_client,
        user: Some(user.clone()),
        ..config
    })
}

/// Address by DHCP, and payload both ways, with nobody privileged on the guest's side.
fn passt(stage: &Stage<'_>) -> Result<()> {
    let passt = Passt::new(stage, "passt.sock")?;
    let Passt { user, lab, .. } = &passt;
    let mut process = passt.start()?;
    let trace = user.home().join("passt.pcapng");
    let (socket, file) = (passt.socket.display(), trace.display());
    let config = daemon(user, &format!("--stream {socket} --pcap {file}"), false)?;
    let daemon = Daemon::start(&config)?;
    let vm = passt.guest(&config)?;
    user.check(&daemon.process)?;
    user.check(vm.process())?;
    lease(&vm)?;
    vm.run("ping -c 2 -W 5 10.77.0.1")?;
    for family in Family::BOTH {
        payload::tcp_in(&vm, &lab.sender, family, 8 << 20)?;
        payload::tcp_out(&vm, &lab.sender, family, 8 << 20)?;
    }
    payload::udp_in(&vm, &lab.sender, Family::V4, 64)?;
    payload::udp_out(&vm, &lab.sender, Family::V4, 64)?;
    process.check_alive()?;
    let counters = daemon.counters()?;
    let pair = &counters["queue_pairs"][0];
    ensure!(pair["uplink"]["connects"] == 1, "{counters}");
    ensure!(pair["uplink"]["rx_out_of_step"] == 0, "{counters}");
    ensure!(
        pair["rx"]["gro"]["merged"].as_u64() > Some(0),
        "nothing was merged: {counters}"
    );
    ensure!(
        pair["tx"]["segmented"].as_u64() > Some(0),
        "nothing was cut: {counters}"
    );
    ensure!(pair["trace"]["packets"].as_u64() > Some(0), "{counters}");
    vm.quit()?;
    ensure!(daemon.terminate()?.success(), "the daemon failed");
    let mut tcpdump = stage.kit.tool("tcpdump")?;
    tcpdump.args(["-Z", "root", "-nr"]).arg(&trace);
    let merged = output_of(tcpdump.args(["tcp", "and", "greater", "9000"]))?;
    ensure!(!merged.is_empty(), "no merged packet was traced");
    Ok(())
}

/// Gets the guest's addresses from passt.
fn lease(vm: &Vm) -> Result<()> {
    vm.run(&format!(
        "ip link set eth0 up; printf '#!/bin/sh\\n[ $1 != bound ] || ip addr add $ip/24 dev eth0\\n' >/tmp/bound && \
         chmod +x /tmp/bound && udhcpc -i eth0 -n -q -t 10 -T 1 -s /tmp/bound && ip addr add {}/64 dev eth0",
        vm.ip6
    ))?;
    let addresses = vm.run("ip addr show dev eth0")?;
    ensure!(
        addresses.contains(&format!("inet {}/24", vm.ip4)),
        "no address by DHCP: {addresses}"
    );
    Ok(())
}

/// The guest sees its link go and come back, and goes on.
fn passt_restarts(stage: &Stage<'_>) -> Result<()> {
    let passt = Passt::new(stage, "passt-again.sock")?;
    let sender = &passt.lab.sender;
    // The daemon is there before both of the others.
    let uplink = format!("--stream {}", passt.socket.display());
    let config = daemon(&passt.user, &uplink, true)?;
    let _daemon = Daemon::start(&config)?;
    let mut process = passt.start()?;
    let vm = passt.guest(&config)?;
    for _ in 0..3 {
        wait_until("the guest's link", Duration::from_secs(20), || carrier(&vm))?;
        lease(&vm)?;
        payload::tcp_in(&vm, sender, Family::V4, 1 << 20)?;
        payload::tcp_out(&vm, sender, Family::V4, 1 << 20)?;
        drop(process);
        std::fs::remove_file(&passt.socket)?;
        wait_until("the end of the link", Duration::from_secs(20), || {
            Ok(!carrier(&vm)?)
        })?;
        vm.run("ip addr flush dev eth0")?;
        process = passt.start()?;
    }
    Ok(())
}

fn carrier(vm: &Vm) -> Result<bool> {
    Ok(vm
        .run("ip link set eth0 up; cat /sys/class/net/eth0/carrier")?
        .trim()
        == "1")
}

/// A daemon that listens and one that connects, a guest on each.
fn two_guests(stage: &Stage<'_>) -> Result<()> {
    let user = User::new()?;
    let kit = user.kit(stage.kit)?;
    let link = user.home().join("link.sock");
    let guest = |number: u8, uplink: String| -> Result<(Daemon, Vm)> {
        let config = daemon(&user, &uplink, false)?;
        let daemon = Daemon::start(&config)?;
        let vm = VmConfig {
            number,
            user: Some(user.clone()),
            memory_mib: 192,
            mtu: 9000,
            ..VmConfig::new(config.netdev())
        };
        let vm = Vm::start(&kit, kit.newest(), &vm)?;
        vm.configure()?;
        Ok((daemon, vm))
    };
    let (left, a) = guest(10, format!("--stream listen:{}", link.display()))?;
    let (right, b) = guest(11, format!("--stream {}", link.display()))?;
    a.run(&format!("ping -c 2 -W 5 -s 8900 {}", b.ip4))?;
    b.run(&format!("ping6 -c 2 -W 5 {}", a.ip6))?;
    for (from, to) in [(&a, &b), (&b, &a)] {
        payload::between(from, to, 8 << 20)?;
    }
    for daemon in [left, right] {
        let counters = daemon.counters()?;
        let uplink = &counters["queue_pairs"][0]["uplink"];
        ensure!(
            uplink["connects"] == 1 && uplink["rx_out_of_step"] == 0,
            "{counters}"
        );
    }
    Ok(())
}

/// The other guest is on QEMU's own stream socket.
fn guest_of_qemu(stage: &Stage<'_>) -> Result<()> {
    let user = User::new()?;
    let kit = user.kit(stage.kit)?;
    let link = user.home().join("netdev.sock");
    let config = daemon(&user, &format!("--stream {}", link.display()), false)?;
    let _daemon = Daemon::start(&config)?;
    let start = |number: u8, netdev: Netdev| -> Result<Vm> {
        let config = VmConfig {
            number,
            user: Some(user.clone()),
            memory_mib: 192,
            ..VmConfig::new(netdev)
        };
        let vm = Vm::start(&kit, kit.newest(), &config)?;
        vm.configure()?;
        Ok(vm)
    };
    let theirs = start(11, Netdev::Stream(link))?;
    let ours = start(10, config.netdev())?;
    ours.run(&format!("ping -c 2 -W 5 -s 4000 {}", theirs.ip4))?;
    theirs.run(&format!("ping6 -c 2 -W 5 {}", ours.ip6))?;
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        payload::between(from, to, 8 << 20)?;
    }
    Ok(())
}
