//! `replay`: shows what merging would do to the traffic in a capture, without a guest.
//!
//! # Theory of operation
//! Engine and poll model are those of the daemon ([`crate::gro`], [`crate::napi`]); the capture
//! takes the place of the uplink, and its time stamps that of the clock. The guest is one that
//! always has buffers. Polls come about as follows.
//!
//! * The source becomes ready at the time of a frame. If it is watched, the poll begins
//!   `--wakeup-ns` later.
//! * A poll reads every frame that has arrived by the time it begins, up to `--budget`. It takes
//!   `--frame-ns` for each. With full budget the next one follows at once.
//! * A poll below its budget ends with the decision of [`Napi`]: the timer stands at the deadline
//!   of the oldest packet held, and in a deferral the source is not watched until the timer fires.
//!   A poll by the timer begins `--wakeup-ns` behind its time as well.
//!
//! By default both times are 0. Such a daemon polls whenever a frame comes, so packets merge only
//! because they are held for `--gro-flush-timeout-ns`: a lower bound of what a real daemon merges,
//! which finds several frames waiting. `--round-budget` and `--round-usecs` change nothing, since
//! no other events wait here.
//!
//! Both directions of a capture are taken for frames towards the guest. Time stamps that go back
//! are taken for the latest one seen. A frame longer than the network's MTU was merged by the
//! host that captured it; it is treated like any frame, counted, and the result says less.
//!
//! # Files
//! `source` reads, `run` polls, `ledger` knows which frames a packet was made of, `check` holds
//! them against it, `flow` names flows, `summary` counts.

mod check;
mod flow;
mod ledger;
mod run;
mod source;
mod summary;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::config::ConfigError;
use super::options::number;
use super::tunables::Tunables;
use crate::gro::{GroEngine, GroTypes};
use crate::napi::Napi;

use check::{Checker, Mismatch};
use run::{Pace, Replay};
use source::{Source, SourceError};

/// Options of `replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayOptions {
    /// Capture to read: pcap or pcapng, of Ethernet frames.
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// Capture to write: what the guest would have received, as pcapng.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,

    /// Cut the result apart again and compare it with the frames that came in.
    #[arg(long)]
    pub check: bool,

    /// Merged packets that the guest takes; datagrams merge for `uso4` and `uso6` only.
    #[arg(
        long,
        value_enum,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "tso4,tso6"
    )]
    pub guest_types: Vec<GuestType>,

    /// Nanoseconds from a frame or the timer to the poll, 0 to 1000000000.
    #[arg(long, value_name = "NS", value_parser = number(0..=1_000_000_000u64, "nanoseconds"),
        default_value = "0")]
    pub wakeup_ns: u64,

    /// Nanoseconds that a poll takes for each frame, 0 to 1000000.
    #[arg(long, value_name = "NS", value_parser = number(0..=1_000_000u64, "nanoseconds"),
        default_value = "0")]
    pub frame_ns: u64,

    /// Flows in the table at the end.
    #[arg(long, value_name = "FLOWS", default_value = "10")]
    pub top: usize,

    /// Merging and polling.
    #[command(flatten)]
    pub tunables: Tunables,
}

/// A kind of merged packet that a guest may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuestType {
    /// TCP over IPv4.
    Tso4,
    /// TCP over IPv6.
    Tso6,
    /// UDP over IPv4.
    Uso4,
    /// UDP over IPv6.
    Uso6,
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    /// The options contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}: cannot be opened", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: expected another file than the capture that is read", .0.display())]
    SameFile(PathBuf),
    #[error("{}: not a capture that can be replayed", path.display())]
    Source { path: PathBuf, source: SourceError },
    #[error("{}: replayed only up to where it is damaged", path.display())]
    Cut { path: PathBuf, source: SourceError },
    #[error("the result cannot be written")]
    Write(#[source] io::Error),
    #[error("the summary cannot be printed")]
    Print(#[source] io::Error),
    #[error("the result is not what came in")]
    Mismatch(#[from] Mismatch),
}

/// Replays a capture and prints the summary.
///
/// # Errors
/// See [`ReplayError`]. A capture that turns out to be damaged is replayed and summed up until
/// there.
pub(super) fn replay(options: &ReplayOptions) -> Result<(), ReplayError> {
    let napi = Napi::new(options.tunables.napi()?);
    let mut engine = GroEngine::new(options.tunables.gro());
    engine.set_types(guest_types(&options.guest_types));
    let pace = Pace {
        wakeup: Duration::from_nanos(options.wakeup_ns),
        frame: Duration::from_nanos(options.frame_ns),
    };
    let in_source = |source| ReplayError::Source {
        path: options.input.clone(),
        source,
    };
    let input = opened(&options.input, File::open)?;
    check_distinct(&input, &options.output)?;
    let source = Source::new(input).map_err(in_source)?;
    let out = BufWriter::new(opened(&options.output, File::create)?);
    let checker = options.check.then(Checker::default);
    let replay =
        Replay::new(source, engine, napi, pace, checker, out).map_err(ReplayError::Write)?;
    let (summary, damage) = replay.run()?;
    let checked = if options.check {
        "checked      every byte\n"
    } else {
        ""
    };
    write!(io::stdout(), "{}{checked}", summary.show(options.top)).map_err(ReplayError::Print)?;
    damage.map_or(Ok(()), |source| {
        let path = options.input.clone();
        Err(if summary.engine.frames == 0 {
            ReplayError::Source { path, source }
        } else {
            ReplayError::Cut { path, source }
        })
    })
}

fn opened(
    path: &Path,
    open: impl FnOnce(PathBuf) -> io::Result<File>,
) -> Result<File, ReplayError> {
    open(path.to_owned()).map_err(|source| ReplayError::Open {
        path: path.to_owned(),
        source,
    })
}

/// Creating the output would empty the input.
fn check_distinct(input: &File, output: &Path) -> Result<(), ReplayError> {
    let identity = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    let input = input.metadata().map(identity).ok();
    let output_identity = std::fs::metadata(output).map(identity).ok();
    if output_identity.is_some() && output_identity == input {
        return Err(ReplayError::SameFile(output.to_owned()));
    }
    Ok(())
}

fn guest_types(types: &[GuestType]) -> GroTypes {
    GroTypes {
        csum: true,
        ecn: true,
        tcp4: types.contains(&GuestType::Tso4),
        tcp6: types.contains(&GuestType::Tso6),
        udp4: types.contains(&GuestType::Uso4),
        udp6: types.contains(&GuestType::Uso6),
    }
}
