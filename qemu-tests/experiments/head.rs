//! What stands above the results: how they were made, when, on what.

use std::process::Command;

use anyhow::Result;
use serde::Serialize;

use crate::bench::Pace;
use crate::harness::facts::Machine;
use crate::harness::process::output_of;
use crate::harness::{Cpus, Kit};

/// How, when and on what.
#[derive(Debug, Serialize)]
pub(crate) struct Head {
    command: String,
    date: String,
    commit: String,
    rustc: String,
    #[serde(flatten)]
    machine: Machine,
    rounds: u32,
    seconds: u64,
}

impl Head {
    pub(crate) fn gather(kit: &Kit, cpus: Option<Cpus>, pace: Pace) -> Result<Self> {
        let said = |program: &str, words: &str| {
            let mut command = Command::new(program);
            command
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .args(words.split(' '));
            // A source archive has no commit, and a copied program no compiler beside it.
            output_of(&mut command).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
        };
        let words: Vec<_> = std::env::args().skip(1).collect();
        Ok(Head {
            command: format!(
                "cargo run --release --example experiments -- {}",
                words.join(" ")
            ),
            date: said("date", "-u +%F"),
            commit: said("git", "describe --always --dirty --abbrev=12"),
            rustc: said("rustc", "--version"),
            machine: Machine::gather(kit, cpus)?,
            rounds: pace.rounds,
            seconds: pace.seconds,
        })
    }

    /// A list, in Markdown.
    pub(crate) fn lines(&self) -> String {
        let Head {
            command,
            date,
            commit,
            rustc,
            machine,
            rounds,
            seconds,
        } = self;
        format!(
            "- Command: `{command}`\n\
             - Date: {date}; commit: {commit}; {rustc}\n\
             - Machine: {}, {} processors in use; guests under {}\n\
             - Versions: {}\n\
             - Place: {}\n\
             - Rounds: {rounds}, in which the settings take turns; {seconds} s a measurement",
            machine.processor,
            machine.guest_cpu.map_or(1, |_| 2),
            machine.accelerator,
            machine.version_line(),
            machine.placement(),
        )
    }
}
