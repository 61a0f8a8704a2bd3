//! Shows what merging does for a guest: `make demo`.
//!
//! Boots one guest for each setting, lets netperf run against them in turn, and prints a line a
//! measurement and one table at the end. Everything goes into `target/demo/results.json`, too.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;

#[path = "../harness/mod.rs"]
mod harness;
mod measure;
mod report;
mod setting;
mod verdict;

use harness::{Cpus, Kit, Lab, Wire, kit, sandbox, wait};
use measure::{Sample, Test};
use setting::Contender;

/// Measure a guest's receive path with merging off and on, and on QEMU's own tap device.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Options {
    /// Also measure with packets of 64 KiB that the host hands over unsegmented.
    #[arg(long)]
    all: bool,

    /// Times that every setting gets its turn.
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Length of one measurement, in seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,

    /// Only these settings, separated by commas: off, on-0, on, qemu-tap.
    #[arg(long, value_delimiter = ',')]
    settings: Vec<String>,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            say(&format!("demo: {error:#}"));
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
    sandbox::enter()
}

fn run(options: &Options) -> Result<()> {
    let settings: Vec<_> = setting::ALL
        .iter()
        .filter(|setting| {
            options.settings.is_empty() || options.settings.iter().any(|name| name == setting.name)
        })
        .collect();
    if settings.is_empty() {
        bail!("none of the settings {:?} is known", options.settings);
    }
    let began = wait::now();
    let kit = Kit::open()?;
    let cpus = Cpus::choose()?;
    let facts = report::Facts::gather(&kit, &settings, cpus, options.rounds, options.seconds)?;
    say(&facts.headline());

    let lab = Lab::new(&kit, Wire::Frames, 1500)?;
    let bulk = lab.add_sender(2, Wire::Bulk)?;
    // One after the other: a guest takes its clock's rate from a moment that must not be disturbed.
    let contenders = settings
        .iter()
        .zip(10..)
        .map(|(setting, number)| Contender::start(&kit, &lab, setting, number))
        .collect::<Result<Vec<_>>>()?;
    if let Some(cpus) = cpus {
        for contender in &contenders {
            contender.station.pin(cpus)?;
        }
    }
    for contender in &contenders {
        contender.station.vm.run("netserver")?;
    }
    say(&format!(
        "{} guests are up after {:.0} s",
        contenders.len(),
        began.elapsed().as_secs_f64()
    ));

    let mut tests = vec![
        (Test::TcpStream4, Wire::Frames),
        (Test::TcpStream6, Wire::Frames),
        (Test::TcpRr, Wire::Frames),
    ];
    if options.all {
        tests.push((Test::TcpStream4, Wire::Bulk));
    }
    let length = Duration::from_secs(options.seconds);
    for contender in &contenders {
        // The emulator translates the guest's code when it first runs.
        measure::run(
            &kit,
            &lab.sender,
            contender,
            Test::TcpStream4,
            Wire::Frames,
            Duration::from_secs(1),
        )?;
    }
    let mut samples: Vec<Sample> = Vec::new();
    for round in 1..=options.rounds {
        for &(test, wire) in &tests {
            let sender = if wire == Wire::Bulk {
                &bulk
            } else {
                &lab.sender
            };
            for contender in &contenders {
                if wire == Wire::Bulk && !contender.setting.with_bulk {
                    continue;
                }
                let mut sample = measure::run(&kit, sender, contender, test, wire, length)
                    .with_context(|| {
                        format!(
                            "{} of {}\n{}",
                            test.title(),
                            contender.setting.name,
                            contender.station.vm.last_words()
                        )
                    })?;
                sample.round = round;
                say(&sample.line());
                samples.push(sample);
            }
        }
    }
    let folder = kit::target_dir()?.join("demo");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("results.json");
    let counters = daemon_counters(&contenders)?;
    std::fs::write(&file, report::json(&facts, &samples, &counters)?)?;
    say(&report::tables(&facts, &samples));
    say(&format!(
        "{} in {:.0} s",
        file.display(),
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// What the daemons counted over the whole run, by setting.
fn daemon_counters(contenders: &[Contender<'_>]) -> Result<serde_json::Value> {
    let mut counters = serde_json::Map::new();
    for contender in contenders {
        if let Some(daemon) = &contender.station.daemon {
            counters.insert(contender.setting.name.to_owned(), daemon.counters()?);
        }
    }
    Ok(counters.into())
}

fn say(text: &str) {
    // A reader that went away must not keep the rest from being cleaned up.
    let _ = writeln!(std::io::stdout(), "{text}");
}
