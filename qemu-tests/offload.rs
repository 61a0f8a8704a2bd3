//! A guest without one of the features gets its traffic all the same, and nothing that it did not
//! ask for.

use anyhow::{Result, ensure};

use crate::Case;
use crate::harness::attachment::Need;
use crate::harness::counters::GuestCounters;
use crate::harness::{Netdev, VmConfig, Wire};
use crate::payload::{self, Family};
use crate::scene::{Backend, Plot, Scene, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::on_guest("offload_all", |stage, scene| {
        merged(stage, scene, [true, true])
    })
    .daemon_only()
    .on_older_too()
    .on_every_uplink(),
    Case::new("offload_guest_tso4_off", |stage| {
        merged_with(stage, "guest_tso4=off", [false, true])
    })
    .on_older_too(),
    Case::new("offload_guest_tso6_off", |stage| {
        merged_with(stage, "guest_tso6=off", [true, false])
    }),
    Case::new("offload_guest_csum_off", |stage| {
        merged_with(
            stage,
            "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off",
            [false, false],
        )
    }),
    Case::new("offload_guest_ecn_off", |stage| {
        merged_with(stage, "guest_ecn=off", [true, true])
    }),
    Case::new("offload_csum_off", |stage| {
        plain(stage, "csum=off,host_tso4=off,host_tso6=off,host_ecn=off")
    }),
    Case::new("offload_host_tso4_off", |stage| {
        plain(stage, "host_tso4=off")
    }),
    Case::new("offload_host_tso6_off", |stage| {
        plain(stage, "host_tso6=off")
    }),
    Case::new("offload_host_ecn_off", |stage| plain(stage, "host_ecn=off")),
    Case::new("ring_mrg_rxbuf_off", |stage| plain(stage, "mrg_rxbuf=off")).on_older_too(),
    Case::new("ring_event_idx_off", |stage| plain(stage, "event_idx=off")),
    Case::new("ring_indirect_desc_off", |stage| {
        plain(stage, "indirect_desc=off")
    }),
    Case::new("ring_all_off", |stage| {
        plain(stage, "mrg_rxbuf=off,event_idx=off,indirect_desc=off")
    }),
    Case::new("ring_rx_1024", rx_1024).on_older_too(),
    Case::new("offload_bulk_without_tso", bulk_without_tso)
        .needs(Need::LongPackets)
        .on_every_uplink(),
];

/// Everything both ways with properties of the device at another value.
fn plain(stage: &Stage<'_>, properties: &str) -> Result<()> {
    let scene = stage.open_with(&Plot {
        properties: properties.into(),
        ..Plot::default()
    })?;
    payload::all_ways(&scene.vm, &scene.lab.sender)
}

/// As [`merged`], with properties of the device at another value.
fn merged_with(stage: &Stage<'_>, properties: &str, wanted: [bool; 2]) -> Result<()> {
    let scene = stage.open_with(&Plot {
        properties: properties.into(),
        ..Plot::default()
    })?;
    merged(stage, &scene, wanted)
}

/// Everything both ways, and whether the guest got merged packets of IPv4 and IPv6.
fn merged(stage: &Stage<'_>, scene: &Scene<'_>, wanted: [bool; 2]) -> Result<()> {
    let (vm, sender) = (&scene.vm, &scene.lab.sender);
    for (family, wanted) in Family::BOTH.into_iter().zip(wanted) {
        let before = GuestCounters::read(vm)?;
        payload::tcp_in(vm, sender, family, 8 << 20)?;
        let after = GuestCounters::read(vm)?;
        let mean = (after.rx_bytes - before.rx_bytes) / (after.rx_packets - before.rx_packets);
        if matches!(stage.backend, Backend::Daemon(_)) {
            let full = u64::from(VmConfig::new(Netdev::None).mtu) + 14;
            ensure!(
                (mean > full) == wanted,
                "{family:?}: {mean} bytes a frame, merging wanted: {wanted}"
            );
        }
    }
    payload::all_ways(vm, sender)
}

fn rx_1024(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        rx_queue_size: 1024,
        ..Plot::default()
    })?;
    let rings = scene.vm.run("ethtool -g eth0")?;
    let rx = rings.lines().rfind(|line| line.starts_with("RX:"));
    ensure!(
        rx.is_some_and(|line| line.ends_with("1024")),
        "the guest's rings: {rings}"
    );
    payload::all_ways(&scene.vm, &scene.lab.sender)
}

/// The host has 64 KiB packets and the guest takes none of them.
fn bulk_without_tso(stage: &Stage<'_>) -> Result<()> {
    let properties = "guest_tso4=off,guest_tso6=off,guest_ecn=off".into();
    let scene = stage.open_with(&Plot {
        wire: Wire::Bulk,
        properties,
        ..Plot::default()
    })?;
    payload::all_ways(&scene.vm, &scene.lab.sender)
}
