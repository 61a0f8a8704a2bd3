//! Payload arrives unchanged, both ways, over both address families.

use anyhow::Result;

use crate::Case;
use crate::harness::Wire;
use crate::harness::attachment::Need;
use crate::payload::{self, Family};
use crate::scene::{Plot, Scene, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::on_guest("traffic_tcp_udp_ipv4", |_, scene| frames(scene, Family::V4))
        .on_older_too()
        .on_every_uplink(),
    Case::on_guest("traffic_tcp_udp_ipv6", |_, scene| frames(scene, Family::V6))
        .on_older_too()
        .on_every_uplink(),
    Case::new("traffic_tcp_udp_bulk_from_host", bulk)
        .needs(Need::LongPackets)
        .on_every_uplink(),
    Case::new("traffic_tcp_udp_gro_off", gro_off).daemon_only(),
    Case::new("traffic_tcp_udp_flush_timeout_0", flush_timeout_0).daemon_only(),
];

fn frames(scene: &Scene<'_>, family: Family) -> Result<()> {
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    payload::tcp_in(vm, sender, family, 64 << 20)?;
    payload::tcp_out(vm, sender, family, 32 << 20)?;
    payload::udp_in(vm, sender, family, 2000)?;
    payload::udp_out(vm, sender, family, 2000)
}

/// The host's kernel hands over 64 KiB packets without a complete checksum.
fn bulk(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        wire: Wire::Bulk,
        ..Plot::default()
    })?;
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    for family in Family::BOTH {
        payload::tcp_in(vm, sender, family, 64 << 20)?;
        payload::tcp_out(vm, sender, family, 32 << 20)?;
    }
    payload::all_ways(vm, sender)
}

fn gro_off(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        options: "--gro off".into(),
        ..Plot::default()
    })?;
    payload::all_ways(&scene.vm, &scene.lab.sender)
}

fn flush_timeout_0(stage: &Stage<'_>) -> Result<()> {
    let options = "--gro-flush-timeout-ns 0 --napi-defer-hard-irqs 0".into();
    let scene = stage.open_with(&Plot {
        options,
        ..Plot::default()
    })?;
    payload::all_ways(&scene.vm, &scene.lab.sender)
}
