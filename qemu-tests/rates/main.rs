//! Frames per second with DPDK's testpmd as the guest's driver: `make rates`.
//!
//! The daemon with an uplink that costs nothing, the daemon on a tap, and DPDK's own vhost-user
//! device take turns, in both directions and with small and large frames. Driver and device have a
//! processor each. The table goes to `docs/results/rates.md` as well.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

#[path = "../harness/mod.rs"]
mod harness;
mod report;
mod rig;

use harness::{Cpus, Kit, kit, sandbox};
use rig::{Device, Direction, Pages};

/// Frames per second between testpmd and the daemon, beside testpmd's own device.
#[derive(Debug, Parser)]
#[command(name = "rates")]
struct Options {
    /// Times that every device gets its turn.
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Length of one measurement, in seconds.
    #[arg(long, default_value_t = 2)]
    seconds: u64,

    /// File of the table.
    #[arg(long, default_value = "docs/results/rates.md")]
    output: PathBuf,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Sample {
    device: Device,
    direction: Direction,
    frame_len: u16,
    round: u32,
    frames_per_second: f64,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            say(&format!("rates: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode> {
    let options = Options::parse();
    if sandbox::is_inside() {
        sandbox::furnish()?;
        run(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    kit::set_up()?;
    // Given back by the outer program, which outlives the other.
    let _pages = Pages::reserve();
    sandbox::enter()
}

fn run(options: &Options) -> Result<()> {
    let kit = Kit::open()?;
    let cpus = Cpus::choose()?.context("rates need two processors")?;
    let length = Duration::from_secs(options.seconds.max(1));
    let mut samples = Vec::new();
    for round in 1..=options.rounds.max(1) {
        for frame_len in [64, 1518] {
            for direction in Direction::ALL {
                for device in Device::ALL {
                    let rate = rig::measure(&kit, cpus, (device, direction), frame_len, length)
                        .with_context(|| format!("{} {}", device.name(), direction.name()))?;
                    let sample = Sample {
                        device,
                        direction,
                        frame_len,
                        round,
                        frames_per_second: rate,
                    };
                    say(&report::line(&sample));
                    samples.push(sample);
                }
            }
        }
    }
    let table = report::table(&samples, options.rounds, options.seconds)?;
    say(&table);
    ensure!(!samples.is_empty(), "nothing was measured");
    write(&options.output, &table)
}

fn write(path: &Path, table: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, table).with_context(|| path.display().to_string())
}

fn say(text: &str) {
    // A reader that went away must not keep the rest from being cleaned up.
    let _ = writeln!(std::io::stdout(), "{text}");
}
