//! The other side: `librte_gro.c` as a child that runs a turn for each line it is sent.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A way to use librte_gro.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    /// `light` merges within a burst, `heavy` across them until told to flush.
    name: &'static str,
    /// Frames handed over at once.
    burst: u32,
}

/// 64 is what a poll of the daemon reads at most, 32 is the habit of DPDK's examples.
pub(crate) const MODES: [Mode; 4] = [
    Mode::new("light", 64),
    Mode::new("heavy", 64),
    Mode::new("light", 32),
    Mode::new("heavy", 32),
];

impl Mode {
    const fn new(name: &'static str, burst: u32) -> Self {
        Self { name, burst }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.name, self.burst))
    }
}

/// Memory of its own, no device, nothing shared with other processes. What it may run on it takes
/// from its affinity.
const EAL: [&str; 7] = [
    "--no-huge",
    "-m",
    "64",
    "--no-pci",
    "--no-shconf",
    "--no-telemetry",
    "--log-level=error",
];

pub(crate) struct Dpdk {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Dpdk {
    /// Starts the program over the frames of a round, which are written to a file in `dir`.
    pub(crate) fn start(dir: &Path, frames: &[Vec<u8>]) -> io::Result<Self> {
        let file = dir.join("frames");
        let mut bytes = Vec::new();
        for frame in frames {
            let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
            bytes.extend(len.to_le_bytes());
            bytes.extend(frame);
        }
        std::fs::write(&file, bytes)?;
        let mut child = Command::new(dir.join("librte_gro"))
            .args(EAL)
            .arg("--")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = child.stdout.take().map(BufReader::new);
        Ok(Self {
            requests: child.stdin.take(),
            answers: answers.expect("its output is a pipe"),
            child,
        })
    }

    /// Runs one turn: nanoseconds of a round, and the packets it delivered.
    pub(crate) fn turn(&mut self, mode: Mode) -> io::Result<(f64, usize)> {
        let mut requests = self.requests.as_ref().expect("its input is a pipe");
        writeln!(requests, "{mode}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        parse(&line).ok_or_else(|| io::Error::other("librte_gro gave no answer"))
    }
}

impl Drop for Dpdk {
    /// It ends at the end of its input.
    fn drop(&mut self) {
        self.requests = None;
        if let Err(error) = self.child.wait() {
            eprintln!("librte_gro: {error}");
        }
    }
}

fn parse(answer: &str) -> Option<(f64, usize)> {
    let (ns, packets) = answer.trim().split_once(' ')?;
    Some((ns.parse().ok()?, packets.parse().ok()?))
}
