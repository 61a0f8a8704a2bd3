//! What the guest sees of segments that were put on the wire by hand.
//!
//! The flush timeout is long, so that it doesn't matter whether the daemon saw the segments in one
//! poll or in several.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::Case;
use crate::harness::capture::{self, Frame, GuestCapture};
use crate::harness::counters::GuestCounters;
use crate::scene::{Plot, Scene, Stage};
use crate::segment::{self, FILTER, PAYLOAD, Received, Segment};

pub(crate) const CASES: &[Case] = &[
    Case::new("coalesce_stream_is_merged", stream_is_merged)
        .daemon_only()
        .on_older_too(),
    Case::new("coalesce_gro_off_merges_nothing", gro_off_merges_nothing).daemon_only(),
    Case::new(
        "coalesce_bad_checksum_passes_alone",
        bad_checksum_passes_alone,
    )
    .daemon_only(),
    Case::new("coalesce_psh_is_not_overtaken", psh_is_not_overtaken).daemon_only(),
    Case::new("coalesce_ce_mark_is_kept", ce_mark_is_kept).daemon_only(),
    Case::new("coalesce_other_ttl_stays_apart", other_ttl_stays_apart).daemon_only(),
    Case::new("coalesce_silence_is_flushed", silence_is_flushed).daemon_only(),
    Case::new(
        "coalesce_vlan_is_merged_with_its_tag",
        vlan_is_merged_with_its_tag,
    )
    .daemon_only(),
];

const PLAIN: Segment = Segment::PLAIN;

/// The longest there is: long against what an emulated guest on a busy machine adds.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

fn open<'a>(stage: &Stage<'a>) -> Result<Scene<'a>> {
    // Without deferral: it would keep what comes after the first poll waiting as well.
    let timeout = FLUSH_TIMEOUT.as_nanos();
    let options = format!("--gro-flush-timeout-ns {timeout} --napi-defer-hard-irqs 0");
    stage.open_with(&Plot {
        options,
        ..Plot::default()
    })
}

/// Sends the segments in one burst and gives what the guest received.
fn deliver(
    scene: &Scene<'_>,
    stage: &Stage<'_>,
    vlan: Option<u16>,
    segments: &[Segment],
) -> Result<Vec<Frame>> {
    let capture = GuestCapture::start(&scene.vm, FILTER)?;
    let frames = segment::frames(scene.vm.number(), vlan, segments)?;
    capture::send_from_sender(stage.kit, &scene.lab.sender, &frames)?;
    capture.wait(|frames| segment::has_all(frames, segments))
}

/// Payload sizes of what arrived, in order.
fn shape(packets: &[Received]) -> Vec<usize> {
    packets.iter().map(|packet| packet.payload).collect()
}

/// Nothing was left out, changed its place or came twice.
fn check_order(packets: &[Received]) -> Result<()> {
    let mut next = 1000;
    for packet in packets {
        ensure!(
            packet.sequence == next,
            "{} instead of {next}: {packets:?}",
            packet.sequence
        );
        next += u32::try_from(packet.payload)?;
    }
    Ok(())
}

fn stream_is_merged(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    let packets = segment::parse(&deliver(&scene, stage, None, &[PLAIN; 5])?)?;
    ensure!(shape(&packets) == [5 * PAYLOAD], "{packets:?}");
    Ok(())
}

fn gro_off_merges_nothing(stage: &Stage<'_>) -> Result<()> {
    let scene = stage.open_with(&Plot {
        options: "--gro off".into(),
        ..Plot::default()
    })?;
    let received = deliver(&scene, stage, None, &[PLAIN; 5])?;
    let sent = segment::frames(scene.vm.number(), None, &[PLAIN; 5])?;
    let received: Vec<_> = received.into_iter().map(|frame| frame.bytes).collect();
    ensure!(received == sent, "the frames changed");
    Ok(())
}

fn bad_checksum_passes_alone(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    let errors = || -> Result<u64> { Ok(GuestCounters::read(&scene.vm)?.snmp("Tcp.InCsumErrors")) };
    let before = errors()?;
    let segments = [
        PLAIN,
        PLAIN,
        Segment {
            bad_checksum: true,
            ..PLAIN
        },
        PLAIN,
        PLAIN,
    ];
    let received = deliver(&scene, stage, None, &segments)?;
    let packets = segment::parse(&received)?;
    check_order(&packets)?;
    ensure!(
        shape(&packets) == [2 * PAYLOAD, PAYLOAD, 2 * PAYLOAD],
        "{packets:?}"
    );
    let sent = segment::frames(scene.vm.number(), None, &segments)?;
    ensure!(received[1].bytes == sent[2], "the bad segment was changed");
    let counted = errors()? - before;
    ensure!(counted == 1, "the guest counted {counted} bad checksums");
    Ok(())
}

fn psh_is_not_overtaken(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    let psh = Segment {
        psh: true,
        payload: 300,
        ..PLAIN
    };
    let packets = segment::parse(&deliver(
        &scene,
        stage,
        None,
        &[PLAIN, PLAIN, psh, PLAIN, psh, psh, PLAIN],
    )?)?;
    check_order(&packets)?;
    ensure!(
        shape(&packets) == [2 * PAYLOAD + 300, PAYLOAD + 300, 300, PAYLOAD],
        "{packets:?}"
    );
    let marks: Vec<_> = packets.iter().map(|packet| packet.psh).collect();
    ensure!(marks == [true, true, true, false], "{packets:?}");
    Ok(())
}

fn ce_mark_is_kept(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    let marked = Segment { ecn: 3, ..PLAIN };
    let packets = segment::parse(&deliver(
        &scene,
        stage,
        None,
        &[PLAIN, PLAIN, marked, PLAIN, PLAIN],
    )?)?;
    check_order(&packets)?;
    let seen: Vec<_> = packets
        .iter()
        .map(|packet| (packet.payload, packet.ecn))
        .collect();
    ensure!(
        seen == [(2 * PAYLOAD, 2), (PAYLOAD, 3), (2 * PAYLOAD, 2)],
        "{packets:?}"
    );
    Ok(())
}

fn other_ttl_stays_apart(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    let other = Segment { ttl: 63, ..PLAIN };
    let packets = segment::parse(&deliver(
        &scene,
        stage,
        None,
        &[PLAIN, PLAIN, other, PLAIN, PLAIN],
    )?)?;
    check_order(&packets)?;
    let seen: Vec<_> = packets
        .iter()
        .map(|packet| (packet.payload, packet.ttl))
        .collect();
    ensure!(
        seen == [(2 * PAYLOAD, 64), (PAYLOAD, 63), (2 * PAYLOAD, 64)],
        "{packets:?}"
    );
    Ok(())
}

/// Three segments and then nothing: they come when the timeout is over, not later. A frame that is
/// never held marks by its own arrival when they were sent, so one clock is enough.
fn silence_is_flushed(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    // The keyword `vlan` moves what comes after it, so the marker is asked for first.
    let marker_filter = format!("ether proto 0x88b5 or {FILTER}");
    let capture = GuestCapture::start(&scene.vm, &marker_filter)?;
    let mut frames = segment::frames(scene.vm.number(), None, &[PLAIN; 3])?;
    let mut marker = frames[0][..60].to_vec();
    // The EtherType for local experiments of IEEE 802.
    marker[12..14].copy_from_slice(&[0x88, 0xb5]);
    frames.push(marker.clone());
    capture::send_from_sender(stage.kit, &scene.lab.sender, &frames)?;
    let arrived = capture.wait(|frames| {
        let (markers, segments): (Vec<_>, Vec<_>) = frames
            .iter()
            .cloned()
            .partition(|frame| frame.bytes[12..14] == marker[12..14]);
        !markers.is_empty() && segment::has_all(&segments, &[PLAIN; 3])
    })?;
    let (markers, segments): (Vec<_>, Vec<_>) = arrived
        .into_iter()
        .partition(|frame| frame.bytes[12..14] == marker[12..14]);
    let packets = segment::parse(&segments)?;
    ensure!(shape(&packets) == [3 * PAYLOAD], "{packets:?}");
    let held = segments[0]
        .time
        .checked_sub(markers[0].time)
        .context("the segments were not held")?;
    // A poll takes well below a millisecond; the rest is for the emulated guest.
    let latest = FLUSH_TIMEOUT + Duration::from_millis(300);
    let earliest = FLUSH_TIMEOUT - Duration::from_millis(300);
    ensure!((earliest..latest).contains(&held), "held for {held:?}");
    Ok(())
}

fn vlan_is_merged_with_its_tag(stage: &Stage<'_>) -> Result<()> {
    let scene = open(stage)?;
    let packets = segment::parse(&deliver(&scene, stage, Some(77), &[PLAIN; 4])?)?;
    ensure!(
        shape(&packets) == [4 * PAYLOAD] && packets[0].vlan == Some(77),
        "{packets:?}"
    );
    Ok(())
}
