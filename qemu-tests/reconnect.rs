//! Either side goes away, in order or killed, and comes back.

use anyhow::{Result, ensure};

use crate::Case;
use crate::front_end::{self, FrontEnd};
use crate::harness::{Daemon, DaemonConfig, Lab, Netdev, Vm, VmConfig, Wire};
use crate::lifecycle::wait_for_carrier;
use crate::payload::{self, Family};
use crate::scene::Stage;

pub(crate) const CASES: &[Case] = &[
    Case::new("reconnect_next_qemu", next_qemu)
        .daemon_only()
        .on_older_too()
        .on_interface_too(),
    Case::new("reconnect_after_qemu_is_killed", after_qemu_is_killed).daemon_only(),
    Case::new("reconnect_after_daemon_is_killed", after_daemon_is_killed)
        .daemon_only()
        .on_older_too()
        .on_interface_too(),
    Case::new("reconnect_after_daemon_ends", after_daemon_ends).daemon_only(),
    Case::new(
        "reconnect_200_sessions_leave_nothing",
        sessions_leave_nothing,
    )
    .daemon_only(),
];

/// QEMU ends and another one connects to the same daemon.
fn next_qemu(stage: &Stage<'_>) -> Result<()> {
    let lab = Lab::new(stage.kit, Wire::Frames, 1500)?;
    let config = DaemonConfig::on(&stage.uplink(&lab, 1)?);
    let daemon = Daemon::start(&config)?;
    for _ in 0..3 {
        let vm = Vm::start(
            stage.kit,
            stage.qemu,
            &VmConfig::new(Netdev::VhostUser(config.socket.clone())),
        )?;
        vm.configure()?;
        payload::all_ways(&vm, &lab.sender)?;
        vm.quit()?;
    }
    let status = daemon.terminate()?;
    ensure!(status.success(), "the daemon ended with {status}");
    Ok(())
}

/// QEMU is killed in the middle of a transfer.
fn after_qemu_is_killed(stage: &Stage<'_>) -> Result<()> {
    let lab = Lab::new(stage.kit, Wire::Frames, 1500)?;
    let config = DaemonConfig::on(&stage.uplink(&lab, 1)?);
    let _daemon = Daemon::start(&config)?;
    for _ in 0..2 {
        let vm = Vm::start(
            stage.kit,
            stage.qemu,
            &VmConfig::new(Netdev::VhostUser(config.socket.clone())),
        )?;
        vm.configure()?;
        vm.run("(ping -i 0.01 10.77.0.1 >/dev/null &)")?;
        drop(vm);
    }
    let vm = Vm::start(
        stage.kit,
        stage.qemu,
        &VmConfig::new(Netdev::VhostUser(config.socket.clone())),
    )?;
    vm.configure()?;
    payload::all_ways(&vm, &lab.sender)
}

/// The guest keeps running while its daemon is killed; a new one finds everything as it was.
fn after_daemon_is_killed(stage: &Stage<'_>) -> Result<()> {
    replace_daemon(stage, |daemon| {
        drop(daemon);
        Ok(())
    })
}

/// As [`after_daemon_is_killed`], but the daemon is asked to end.
fn after_daemon_ends(stage: &Stage<'_>) -> Result<()> {
    replace_daemon(stage, |daemon| {
        let status = daemon.terminate()?;
        ensure!(status.success(), "the daemon ended with {status}");
        Ok(())
    })
}

fn replace_daemon(stage: &Stage<'_>, end: fn(Daemon) -> Result<()>) -> Result<()> {
    let lab = Lab::new(stage.kit, Wire::Frames, 1500)?;
    let config = DaemonConfig {
        client: true,
        ..DaemonConfig::on(&stage.uplink(&lab, 1)?)
    };
    // QEMU boots only when its back end is there, and the daemon waits for QEMU's socket.
    let mut daemon = Daemon::start(&config)?;
    let netdev = Netdev::VhostUserServer(config.socket.clone());
    let vm = Vm::start(stage.kit, stage.qemu, &VmConfig::new(netdev))?;
    vm.configure()?;
    payload::all_ways(&vm, &lab.sender)?;
    for _ in 0..3 {
        // Traffic is under way when the daemon goes.
        vm.run("(ping -i 0.01 -w 20 10.77.0.1 >/dev/null &)")?;
        end(daemon)?;
        wait_for_carrier(&vm, false)?;
        daemon = Daemon::start(&config)?;
        wait_for_carrier(&vm, true)?;
        payload::tcp_in(&vm, &lab.sender, Family::V4, 4 << 20)?;
        payload::tcp_out(&vm, &lab.sender, Family::V6, 4 << 20)?;
    }
    payload::all_ways(&vm, &lab.sender)
}

/// 200 sessions, each with memory, two running rings and no good-bye, leave the daemon's descriptors,
/// threads and memory where they were after the tenth. Guests come before and after.
fn sessions_leave_nothing(stage: &Stage<'_>) -> Result<()> {
    let lab = Lab::new(stage.kit, Wire::Frames, 1500)?;
    let config = DaemonConfig::on(&stage.uplink(&lab, 1)?);
    let daemon = Daemon::start(&config)?;
    let guest = || -> Result<()> {
        let netdev = Netdev::VhostUser(config.socket.clone());
        let vm = Vm::start(stage.kit, stage.qemu, &VmConfig::new(netdev))?;
        vm.configure()?;
        payload::all_ways(&vm, &lab.sender)?;
        vm.quit()
    };
    let sessions = |count| {
        for _ in 0..count {
            let front = FrontEnd::connect(&config.socket);
            front.prepare(&front_end::memory());
            let _events = [0, 1].map(|ring| front.start_ring(ring, 0));
            [0, 1].into_iter().for_each(|ring| front.enable(ring, 1));
        }
    };
    // An answer to this one says that the former session is done with.
    let resources = || -> Result<(usize, usize, u64)> {
        let front = FrontEnd::connect(&config.socket);
        front.ask_number(front_end::Req::GET_FEATURES);
        let process = &daemon.process;
        Ok((
            process.descriptors()?,
            process.threads()?.len(),
            process.resident_kib()?,
        ))
    };
    guest()?;
    sessions(10);
    let (descriptors, threads, resident) = resources()?;
    sessions(190);
    guest()?;
    sessions(1);
    let after = resources()?;
    ensure!(
        (after.0, after.1) == (descriptors, threads),
        "{after:?} after {descriptors}, {threads}"
    );
    // Pages that the allocator keeps.
    ensure!(
        after.2 <= resident + 256,
        "{} KiB resident after {resident}",
        after.2
    );
    Ok(())
}
