//! What the daemon is attached to, or the peer of its socket, goes and comes back.

use anyhow::{Result, ensure};

use crate::Case;
use crate::lifecycle::wait_for_carrier;
use crate::payload;
use crate::scene::Stage;

pub(crate) const CASES: &[Case] = &[Case::new("outage_goes_and_comes_back", goes_and_comes_back)
    .daemon_only()
    .on_every_uplink()];

/// The guest sees it as the state of its link, and has its network again afterwards.
fn goes_and_comes_back(stage: &Stage<'_>) -> Result<()> {
    let mut site = stage.site(true)?;
    let daemon = site.daemon()?;
    let vm = site.guest()?;
    payload::all_ways(&vm, &site.lab.sender)?;
    for _ in 0..3 {
        // Traffic is under way when it goes.
        vm.run("(ping -i 0.01 -w 20 10.77.0.1 >/dev/null &)")?;
        site.port.remove(&site.lab)?;
        wait_for_carrier(&vm, false)?;
        site.port.make_again(&site.lab)?;
        wait_for_carrier(&vm, true)?;
        payload::all_ways(&vm, &site.lab.sender)?;
    }
    vm.quit()?;
    let status = daemon.terminate()?;
    ensure!(status.success(), "the daemon ended with {status}");
    Ok(())
}
