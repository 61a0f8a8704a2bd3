//! The experiments behind the rules of merging, run again on guests: `make experiment NAME=T4`.
//!
//! An experiment is a list of parts, each with settings that take turns for some rounds. What was
//! found goes into a table and a plot below `docs/results`. T1 to T5 are the definitions; all else
//! is the frame they share:
//!
//! ```text
//!   t1 .. t5 -> Bench: guests, daemons -> Part: settings, each with what it does
//!            -> turns: rounds -> Outcome -> table (ratios by welch), plot, raw data
//! ```

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

mod bench;
#[path = "../harness/mod.rs"]
mod harness;
mod head;
mod measures;
mod part;
mod pktgen;
mod plot;
mod t1;
mod t2;
mod t3;
mod t4;
mod t5;
mod table;
mod turns;
mod welch;
mod works;

use bench::{Bench, Pace};
use harness::{Cpus, Kit, kit, sandbox, wait};
use head::Head;
use turns::Outcome;

/// Run one of the experiments on guests, and write its table and plot.
///
/// With the default rounds and seconds each takes up to 12 minutes on two quiet cores: T1 9, T2 11,
/// T3 6, T4 12, T5 6.
#[derive(Debug, Parser)]
#[command(name = "experiments")]
struct Options {
    /// Which one.
    #[arg(value_enum, ignore_case = true)]
    name: Name,

    /// Times that every setting gets its turn; fewer than 5 say little.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Length of one measurement, in seconds [default: by experiment, 2 or more].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,

    /// Only these parts, by their letters, separated by commas.
    #[arg(long, value_delimiter = ',')]
    parts: Vec<String>,

    /// Folder for the table and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/results"))]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Name {
    #[value(name = "T1")]
    T1,
    #[value(name = "T2")]
    T2,
    #[value(name = "T3")]
    T3,
    #[value(name = "T4")]
    T4,
    #[value(name = "T5")]
    T5,
}

/// What an experiment is about and how it is done.
struct Experiment {
    name: &'static str,
    title: &'static str,
    /// What was found where it was first done, and what is hoped for here.
    story: &'static str,
    /// Length of one measurement.
    seconds: u64,
    run: fn(&Bench<'_>) -> Result<Vec<Outcome>>,
}

impl Name {
    fn experiment(self) -> &'static Experiment {
        match self {
            Name::T1 => &t1::EXPERIMENT,
            Name::T2 => &t2::EXPERIMENT,
            Name::T3 => &t3::EXPERIMENT,
            Name::T4 => &t4::EXPERIMENT,
            Name::T5 => &t5::EXPERIMENT,
        }
    }
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            say(&format!("experiments: {error:#}"));
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
    let began = wait::now();
    let experiment = options.name.experiment();
    let pace = Pace {
        rounds: options.rounds,
        seconds: options.seconds.unwrap_or(experiment.seconds),
    };
    let kit = Kit::open()?;
    let cpus = Cpus::choose()?;
    let head = Head::gather(&kit, cpus, pace)?;
    say(&format!(
        "{}: {}\n{}",
        experiment.name,
        experiment.title,
        head.lines()
    ));

    let bench = Bench::new(&kit, cpus, pace, &options.parts);
    let outcomes = (experiment.run)(&bench)?;
    if outcomes.iter().all(Outcome::is_empty) {
        bail!("nothing was measured; are there parts {:?}?", options.parts);
    }

    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let file =
        |folder: &PathBuf, ending: &str| folder.join(format!("{}.{ending}", experiment.name));
    let tables = table::markdown(experiment, &head, &outcomes)?;
    std::fs::write(file(&options.out, "md"), &tables)?;
    plot::draw(&file(&options.out, "svg"), &outcomes)?;
    let raw = kit::target_dir()?.join("experiments");
    std::fs::create_dir_all(&raw)?;
    std::fs::write(file(&raw, "json"), turns::json(&head, &outcomes)?)?;
    say(&tables);
    say(&format!(
        "{} and .svg, each round in {}, in {:.0} s",
        file(&options.out, "md").display(),
        file(&raw, "json").display(),
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn say(text: &str) {
    // A reader that went away must not keep the rest from being cleaned up.
    let _ = writeln!(std::io::stdout(), "{text}");
}
