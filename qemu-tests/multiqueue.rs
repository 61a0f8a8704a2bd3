//! Guests with several queue pairs, some of which they may not use.

use anyhow::{Context, Result, ensure};

use crate::Case;
use crate::harness::attachment::Need;
use crate::payload;
use crate::scene::{Plot, Scene, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::new("multiqueue_two_pairs", two_pairs)
        .needs(Need::Queues)
        .on_every_uplink(),
    Case::new("multiqueue_one_of_two_pairs", one_of_two_pairs),
];

/// Two pairs are in use, then one, then two again.
fn two_pairs(stage: &Stage<'_>) -> Result<()> {
    let plot = Plot {
        queues: 2,
        vcpus: 2,
        ..Plot::default()
    };
    let scene = stage.open_with(&plot)?;
    check_pairs(&scene, 2)?;
    for pairs in [1, 2] {
        scene.vm.run(&format!("ethtool -L eth0 combined {pairs}"))?;
        check_pairs(&scene, pairs).context("after a change while in use")?;
    }
    Ok(())
}

/// A guest with one processor never enables the second pair.
fn one_of_two_pairs(stage: &Stage<'_>) -> Result<()> {
    let plot = Plot {
        queues: 2,
        ..Plot::default()
    };
    check_pairs(&stage.open_with(&plot)?, 1)
}

/// Traffic both ways; the host spreads the flows over all queues that it believes to be in use.
fn check_pairs(scene: &Scene<'_>, pairs: u16) -> Result<()> {
    let channels = scene.vm.run("ethtool -l eth0 | tail -n 1")?;
    ensure!(
        channels.trim() == format!("Combined:\t{pairs}"),
        "the guest's queues: {channels}"
    );
    for _ in 0..2 {
        payload::all_ways(&scene.vm, &scene.lab.sender)
            .with_context(|| format!("with {pairs} pairs in use"))?;
    }
    Ok(())
}
