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
    Case::new("multiqueue_one_worker", one_worker),
    Case::new("multiqueue_steered", steered).on_every_uplink(),
];

/// The daemon's counters of each pair.
fn counters(scene: &Scene<'_>) -> Result<Vec<serde_json::Value>> {
    let daemon = scene.daemon.as_ref().context("the daemon runs")?;
    let counters = daemon.counters()?;
    let pairs = counters["queue_pairs"].as_array().context("pairs")?;
    Ok(pairs.clone())
}

/// Two pairs on one thread, the second of which comes and goes.
fn one_worker(stage: &Stage<'_>) -> Result<()> {
    let plot = Plot {
        queues: 2,
        vcpus: 2,
        options: "--workers 1".to_owned(),
        ..Plot::default()
    };
    let scene = change_pairs(stage, &plot)?;
    for pair in counters(&scene)? {
        ensure!(pair["worker"] == 0, "the thread of a pair: {pair}");
        ensure!(pair["rx"]["frames"].as_u64() > Some(0), "unused: {pair}");
    }
    Ok(())
}

/// Two pairs in front of one queue of the host.
fn steered(stage: &Stage<'_>) -> Result<()> {
    let plot = Plot {
        queues: 2,
        vcpus: 2,
        options: "--uplink-queues 1".to_owned(),
        ..Plot::default()
    };
    let scene = change_pairs(stage, &plot)?;
    for pair in counters(&scene)? {
        ensure!(pair["rx"]["frames"].as_u64() > Some(0), "unused: {pair}");
    }
    Ok(())
}

/// Two pairs are in use, then one, then two again.
fn two_pairs(stage: &Stage<'_>) -> Result<()> {
    let plot = Plot {
        queues: 2,
        vcpus: 2,
        ..Plot::default()
    };
    change_pairs(stage, &plot).map(drop)
}

fn change_pairs<'a>(stage: &Stage<'a>, plot: &Plot) -> Result<Scene<'a>> {
    let scene = stage.open_with(plot)?;
    check_pairs(&scene, 2)?;
    for pairs in [1, 2] {
        scene.vm.run(&format!("ethtool -L eth0 combined {pairs}"))?;
        check_pairs(&scene, pairs).context("after a change while in use")?;
    }
    Ok(scene)
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
