//! What a guest sends, on uplinks and with guests that make it hard.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Case;
use crate::harness::Daemon;
use crate::payload::{self, Family};
use crate::scene::{Plot, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_guest_that_negotiated_nothing", nothing_negotiated)
        .on_older_too()
        .on_every_uplink(),
    Case::new("tx_guest_that_segments_itself", segments_itself)
        .daemon_only()
        .on_every_uplink(),
    Case::new("tx_uplink_that_refuses", refuses)
        .daemon_only()
        .on_every_uplink(),
];

/// Everything that a guest can be denied.
const NOTHING: &str = "csum=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,\
    guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,\
    mrg_rxbuf=off,event_idx=off,indirect_desc=off";

fn nothing_negotiated(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        properties: NOTHING.into(),
        ..Plot::default()
    })?;
    payload::all_ways(&scene.vm, &scene.lab.sender)
}

/// The counters of the way from the guest.
fn sent(daemon: Option<&Daemon>) -> Result<Value> {
    let counters = daemon.context("a daemon")?.counters()?;
    Ok(counters["queue_pairs"][0]["tx"].clone())
}

/// Frames of an MTU in place of packets of 64 KiB: these are what bulks are made of.
fn segments_itself(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open()?;
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    vm.run("ethtool -K eth0 tso off gso off")?;
    for family in Family::BOTH {
        payload::tcp_out(vm, sender, family, 8 << 20)?;
    }
    let tx = sent(scene.daemon.as_ref())?;
    let (frames, bulks) = (tx["completed_frames"].as_u64(), tx["bulks"].as_u64());
    ensure!(
        bulks > Some(0) && frames > bulks,
        "no frames together: {tx}"
    );
    ensure!(tx["bulks_ended"]["packets"].as_u64() > Some(0), "{tx}");
    Ok(())
}

/// Nothing is damaged, and nothing stops, when the host refuses in every way that it has.
fn refuses(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        options: "--fault-one-in 50 --fault-seed 7".into(),
        ..Plot::default()
    })?;
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    // More frames, more to be refused.
    vm.run("ethtool -K eth0 tso off gso off")?;
    for family in Family::BOTH {
        payload::tcp_out(vm, sender, family, 4 << 20)?;
        payload::tcp_in(vm, sender, family, 4 << 20)?;
    }
    let tx = sent(scene.daemon.as_ref())?;
    let refused = &tx["dropped"]["refused_by_host"];
    for count in [
        &tx["uplink_full"],
        &tx["uplink_no_memory"],
        &tx["left_over"],
        &refused["invalid"],
        &refused["too_long"],
        &tx["dropped"]["link_down"],
    ] {
        ensure!(count.as_u64() > Some(0), "not met: {tx}");
    }
    Ok(())
}
