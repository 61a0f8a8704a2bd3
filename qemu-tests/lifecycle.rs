//! The guest's driver stops and starts in every way there is.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::Case;
use crate::harness::Vm;
use crate::harness::wait::wait_until;
use crate::payload::{self, Family};
use crate::scene::{Scene, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::new("lifecycle_guest_reboot", guest_reboot).on_older_too(),
    Case::new("lifecycle_driver_reload", driver_reload).on_older_too(),
    Case::new("lifecycle_set_link", set_link).on_older_too(),
    Case::on_guest("lifecycle_stop_cont", stop_cont).on_every_uplink(),
    Case::new("lifecycle_interface_down_up", interface_down_up),
];

fn guest_reboot(stage: &Stage<'_>) -> Result<()> {
    let mut scene = stage.open()?;
    payload::all_ways(&scene.vm, &scene.lab.sender)?;
    for _ in 0..2 {
        scene.vm.reboot()?;
        scene.vm.configure()?;
        payload::all_ways(&scene.vm, &scene.lab.sender)?;
    }
    Ok(())
}

fn driver_reload(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open()?;
    for _ in 0..5 {
        scene
            .vm
            .run("rmmod virtio_net && insmod /modules/virtio_net.ko")?;
        scene.vm.configure()?;
        payload::tcp_in(&scene.vm, &scene.lab.sender, Family::V4, 1 << 20)?;
    }
    payload::all_ways(&scene.vm, &scene.lab.sender)
}

fn set_link(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open()?;
    for _ in 0..3 {
        scene
            .vm
            .qmp("set_link", &json!({"name": "nic", "up": false}))?;
        wait_for_carrier(&scene.vm, false)?;
        scene
            .vm
            .qmp("set_link", &json!({"name": "nic", "up": true}))?;
        wait_for_carrier(&scene.vm, true)?;
        payload::tcp_in(&scene.vm, &scene.lab.sender, Family::V4, 1 << 20)?;
    }
    payload::all_ways(&scene.vm, &scene.lab.sender)
}

/// The guest is paused in the middle of a transfer, again and again.
fn stop_cont(_: &Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    std::thread::scope(|scope| {
        let transfer = scope.spawn(|| payload::tcp_in(vm, sender, Family::V4, 64 << 20));
        let mut pauses = 0;
        while !transfer.is_finished() || pauses == 0 {
            vm.qmp("stop", &json!({}))?;
            // Long enough for the ring to run full and the sender to notice.
            std::thread::sleep(Duration::from_millis(100));
            vm.qmp("cont", &json!({}))?;
            std::thread::sleep(Duration::from_millis(200));
            pauses += 1;
        }
        transfer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    payload::all_ways(vm, sender)
}

fn interface_down_up(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open()?;
    for _ in 0..5 {
        scene
            .vm
            .run("ip link set eth0 down && ip link set eth0 up")?;
        payload::tcp_in(&scene.vm, &scene.lab.sender, Family::V4, 1 << 20)?;
    }
    let dropped = scene
        .vm
        .run("cat /sys/class/net/eth0/statistics/rx_errors")?;
    ensure!(
        dropped.trim() == "0",
        "the guest counted {dropped} receive errors"
    );
    Ok(())
}

/// Waits until the guest sees its link as `up` says.
pub(crate) fn wait_for_carrier(vm: &Vm, up: bool) -> Result<()> {
    let wanted = if up { "1" } else { "0" };
    wait_until(
        "the change of the guest's carrier",
        Duration::from_secs(20),
        || Ok(vm.run("cat /sys/class/net/eth0/carrier")?.trim() == wanted),
    )
}
