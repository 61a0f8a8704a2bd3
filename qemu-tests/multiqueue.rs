//! Guests with several queue pairs.

use anyhow::{Context, Result, ensure};

use crate::Case;
use crate::payload;
use crate::scene::{Plot, Stage};

pub(crate) const CASES: &[Case] = &[Case::new("multiqueue_two_pairs", two_pairs)];

fn two_pairs(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        queues: 2,
        ..Plot::default()
    })?;
    let channels = scene.vm.run("ethtool -l eth0 | tail -n 2")?;
    ensure!(
        channels.contains("Combined:\t2"),
        "the guest's queues: {channels}"
    );
    payload::all_ways(&scene.vm, &scene.lab.sender).context("with two pairs from the start")?;
    // Back to one pair and on again, while the device is in use.
    for pairs in [1, 2] {
        scene.vm.run(&format!("ethtool -L eth0 combined {pairs}"))?;
        payload::all_ways(&scene.vm, &scene.lab.sender)
            .with_context(|| format!("after a change to {pairs} pairs"))?;
    }
    Ok(())
}
