//! The table of rates.

use std::fmt::Write;

use anyhow::{Context, Result};

use crate::Sample;
use crate::harness::spread::Spread;
use crate::harness::testpmd::Memory;
use crate::rig::{self, Device, Direction};

/// For the one who watches.
pub(crate) fn line(sample: &Sample) -> String {
    format!(
        "{:>2} {:>4} bytes {:<15} {:<24} {:>7.3} M/s",
        sample.round,
        sample.frame_len,
        sample.direction.name(),
        sample.device.name(),
        sample.frames_per_second / 1e6
    )
}

/// All of it as a file of Markdown.
pub(crate) fn table(samples: &[Sample], rounds: u32, seconds: u64) -> Result<String> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
    let processor = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let pages = match rig::memory() {
        Memory::Huge => "2 MiB",
        Memory::Ordinary => "ordinary",
    };
    let mut text = format!(
        "# Frames per second through virtio-user\n\n\
         Made by `make rates`: {rounds} rounds of {seconds} s, all devices in turn. testpmd with\n\
         `net_virtio_user` is the driver, on a processor of its own; the device has the other one.\n\
         To the guest, the null uplink is the generator, and the tap's sender is on the device's\n\
         processor. {processor}, Linux {}, {pages} pages.\n\n\
         Million frames a second and parts of what testpmd's own device does in the same round:\n\
         median (smallest to largest).\n\n\
         | bytes | direction | device | M/s | of net_vhost |\n|---|---|---|---|---|\n",
        kernel.trim()
    );
    for frame_len in [64, 1518] {
        for direction in Direction::ALL {
            for device in Device::ALL {
                let rates = of(samples, frame_len, direction, device);
                let yardstick = of(samples, frame_len, direction, Device::Dpdk);
                let rate = Spread::of(rates.iter().map(|rate| rate / 1e6)).context("no samples")?;
                let parts = rates
                    .iter()
                    .zip(&yardstick)
                    .map(|(rate, other)| rate / other);
                let part = Spread::of(parts).context("no samples")?;
                let _ = writeln!(
                    text,
                    "| {frame_len} | {} | {} | {} | {} |",
                    direction.name(),
                    device.name(),
                    cell(rate),
                    cell(part)
                );
            }
        }
    }
    Ok(text)
}

fn cell(spread: Spread) -> String {
    let Spread {
        min, median, max, ..
    } = spread;
    format!("{median:.2} ({min:.2} to {max:.2})")
}

/// The rates of one cell, round by round.
fn of(samples: &[Sample], frame_len: u16, direction: Direction, device: Device) -> Vec<f64> {
    let is_meant = |sample: &&Sample| {
        sample.frame_len == frame_len && sample.direction == direction && sample.device == device
    };
    let meant = samples.iter().filter(is_meant);
    meant.map(|sample| sample.frames_per_second).collect()
}
