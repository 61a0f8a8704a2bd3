//! The host's interface, to which the daemon is attached, goes and comes back.

use anyhow::{Result, ensure};

use crate::Case;
use crate::harness::{Daemon, DaemonConfig, Lab, Netdev, Vm, VmConfig, Wire};
use crate::lifecycle::wait_for_carrier;
use crate::payload;
use crate::scene::Stage;

pub(crate) const CASES: &[Case] =
    &[Case::new("interface_goes_and_comes_back", goes_and_comes_back).daemon_only()];

/// The guest sees it as the state of its link, and has its network again afterwards.
fn goes_and_comes_back(stage: &Stage<'_>) -> Result<()> {
    let lab = Lab::new(stage.kit, Wire::Frames, 1500)?;
    let config = DaemonConfig {
        client: true,
        ..DaemonConfig::on(&format!("--af-packet {}", lab.add_interface()?))
    };
    let daemon = Daemon::start(&config)?;
    let netdev = Netdev::VhostUserServer(config.socket.clone());
    let vm = Vm::start(stage.kit, stage.qemu, &VmConfig::new(netdev))?;
    vm.configure()?;
    payload::all_ways(&vm, &lab.sender)?;
    for _ in 0..3 {
        // Traffic is under way when it goes.
        vm.run("(ping -i 0.01 -w 20 10.77.0.1 >/dev/null &)")?;
        lab.remove_interface(0)?;
        wait_for_carrier(&vm, false)?;
        lab.make_interface(0)?;
        wait_for_carrier(&vm, true)?;
        payload::all_ways(&vm, &lab.sender)?;
    }
    vm.quit()?;
    let status = daemon.terminate()?;
    ensure!(status.success(), "the daemon ended with {status}");
    Ok(())
}
