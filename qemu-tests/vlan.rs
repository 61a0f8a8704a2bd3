//! Tagged frames go through as they are, both ways.
//!
//! Raw frames, so that neither kernel needs VLAN devices.

use anyhow::{Result, ensure};

use crate::Case;
use crate::harness::capture::{self, GuestCapture, SenderCapture};
use crate::scene::{Scene, Stage};

pub(crate) const CASES: &[Case] = &[
    Case::on_guest("vlan_into_guest", f62_into_guest)
        .on_older_too()
        .on_every_uplink(),
    Case::on_guest("vlan_out_of_guest", f62_out_of_guest).on_every_uplink(),
];

/// Broadcasts with tags of 802.1Q, of 802.1ad, one in the other, and an untagged one for
/// comparison, with the EtherType for local experiments.
fn frames() -> Vec<Vec<u8>> {
    // Priority and number 0 included, and the highest number with the highest priority.
    let tags: [&[u8]; 7] = [
        &[0x81, 0x00, 0x00, 0x00],
        &[0x81, 0x00, 0xa0, 0x01],
        &[0x81, 0x00, 0xef, 0xff],
        &[0x88, 0xa8, 0x00, 0x07],
        &[0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x00, 0x08],
        &[0x81, 0x00, 0x00, 0x07, 0x81, 0x00, 0x00, 0x08],
        &[],
    ];
    let frame = |tag: &[u8], size: usize| {
        let payload = (0..=255).cycle().take(size);
        let addresses = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0x77, 0, 99];
        addresses
            .into_iter()
            .chain(tag.iter().copied())
            .chain([0x88, 0xb5])
            .chain(payload)
            .collect()
    };
    // A packet socket allows a full payload behind one tag of 802.1Q, and nothing longer.
    let full = |tag: &[u8]| match tag {
        [] | [0x81, 0x00, _, _] => 1500,
        _ => 1492,
    };
    tags.iter()
        .flat_map(|tag| [46, 700, full(tag)].map(|size| frame(tag, size)))
        .collect()
}

/// All of them: a filter for `ether proto` would look at the outermost type only.
const FILTER: &str = "ether src 02:00:00:77:00:63";

fn f62_into_guest(stage: &Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let capture = GuestCapture::start(&scene.vm, FILTER)?;
    capture::send_from_sender(stage.kit, &scene.lab.sender, &frames())?;
    let received = capture.wait(|received| received.len() >= frames().len())?;
    let received: Vec<_> = received.into_iter().map(|frame| frame.bytes).collect();
    ensure!(received == frames(), "received {received:02x?}");
    Ok(())
}

fn f62_out_of_guest(stage: &Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let capture = SenderCapture::start(stage.kit, &scene.lab.sender, FILTER)?;
    capture::send_from_guest(&scene.vm, &frames())?;
    let received = capture.wait(|received| received.len() >= frames().len())?;
    let mut received: Vec<_> = received.into_iter().map(|frame| frame.bytes).collect();
    // The host's kernel keeps an order for each of its processors, and we may be moved from one to
    // another in the middle.
    let mut sent = frames();
    received.sort();
    sent.sort();
    ensure!(received == sent, "received {received:02x?}");
    Ok(())
}
