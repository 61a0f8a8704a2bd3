//! Either side goes away, in order or killed, and comes back.

use anyhow::{Result, ensure};

use crate::Case;
use crate::front_end::{self, FrontEnd};
use crate::harness::Daemon;
use crate::lifecycle::wait_for_carrier;
use crate::payload::{self, Family};
use crate::scene::Stage;

pub(crate) const CASES: &[Case] = &[
    Case::new("reconnect_next_qemu", next_qemu)
        .daemon_only()
        .on_older_too()
        .on_every_uplink(),
    Case::new("reconnect_after_qemu_is_killed", after_qemu_is_killed).daemon_only(),
    Case::new("reconnect_after_daemon_is_killed", after_daemon_is_killed)
        .daemon_only()
        .on_older_too()
        .on_every_uplink(),
    Case::new("reconnect_after_daemon_ends", after_daemon_ends).daemon_only(),
    Case::new(
        "reconnect_200_sessions_leave_nothing",
        sessions_leave_nothing,
    )
    .daemon_only(),
];

/// QEMU ends and another one connects to the same daemon.
fn next_qemu(stage: &Stage<'_>) -> Result<()> {
    let site = stage.site(false)?;
    let daemon = site.daemon()?;
    for _ in 0..3 {
        let vm = site.guest()?;
        payload::all_ways(&vm, &site.lab.sender)?;
        vm.quit()?;
    }
    let status = daemon.terminate()?;
    ensure!(status.success(), "the daemon ended with {status}");
    Ok(())
}

/// QEMU is killed in the middle of a transfer.
fn after_qemu_is_killed(stage: &Stage<'_>) -> Result<()> {
    let site = stage.site(false)?;
    let _daemon = site.daemon()?;
    for _ in 0..2 {
        let vm = site.guest()?;
        vm.run("(ping -i 0.01 10.77.0.1 >/dev/null &)")?;
        drop(vm);
    }
    payload::all_ways(&site.guest()?, &site.lab.sender)
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
    // QEMU boots only when its back end is there, and the daemon waits for QEMU's socket.
    let site = stage.site(true)?;
    let mut daemon = site.daemon()?;
    let (vm, sender) = (site.guest()?, &site.lab.sender);
    payload::all_ways(&vm, sender)?;
    for _ in 0..3 {
        // Traffic is under way when the daemon goes.
        vm.run("(ping -i 0.01 -w 20 10.77.0.1 >/dev/null &)")?;
        end(daemon)?;
        wait_for_carrier(&vm, false)?;
        daemon = site.daemon()?;
        wait_for_carrier(&vm, true)?;
        payload::tcp_in(&vm, sender, Family::V4, 4 << 20)?;
        payload::tcp_out(&vm, sender, Family::V6, 4 << 20)?;
    }
    payload::all_ways(&vm, sender)
}

/// 200 sessions, each with memory, two running rings and no good-bye, leave the daemon's descriptors,
/// threads and memory where they were after the tenth. Guests come before and after.
fn sessions_leave_nothing(stage: &Stage<'_>) -> Result<()> {
    let site = stage.site(false)?;
    let daemon = site.daemon()?;
    let guest = || -> Result<()> {
        let vm = site.guest()?;
        payload::all_ways(&vm, &site.lab.sender)?;
        vm.quit()
    };
    let sessions = |count| {
        for _ in 0..count {
            let front = FrontEnd::connect(&site.config.socket);
            front.prepare(&front_end::memory());
            let _events = [0, 1].map(|ring| front.start_ring(ring, 0));
            [0, 1].into_iter().for_each(|ring| front.enable(ring, 1));
        }
    };
    // An answer to this one says that the former session is done with.
    let resources = || -> Result<(usize, usize, u64)> {
        let front = FrontEnd::connect(&site.config.socket);
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
