//! The guest kernel's own generator of frames.

use std::time::Duration;

use anyhow::Result;

use crate::harness::Vm;

/// Of the frame on the wire without its checksum: the smallest there is.
const SIZE: u32 = 60;
/// Frames that the driver gets before it tells the device.
const BURST: u32 = 64;

/// Sends the smallest frames to `mac` for as long as asked, as fast as the guest can. They are for
/// an address that nobody has, so that nobody answers.
pub(crate) fn run(vm: &Vm, mac: &str, length: Duration) -> Result<()> {
    let seconds = length.as_secs();
    let words = [
        "count 0".to_owned(),
        "delay 0".to_owned(),
        format!("pkt_size {SIZE}"),
        format!("burst {BURST}"),
        "dst 10.77.0.250".to_owned(),
        format!("dst_mac {mac}"),
    ];
    let words: String = words
        .iter()
        .map(|word| format!("put '{word}' && "))
        .collect();
    vm.run(&format!(
        "[ -d /proc/net/pktgen ] || insmod /modules/pktgen.ko || exit 1; cd /proc/net/pktgen; \
         put() {{ echo \"$1\" >eth0; }}; \
         echo rem_device_all >kpktgend_0 && echo add_device eth0 >kpktgend_0 && {words} true || exit 1; \
         (sleep {seconds}; echo stop >pgctrl) & echo start >pgctrl; wait"
    ))
    .map(drop)
}
