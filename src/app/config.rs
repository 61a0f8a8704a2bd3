//! The typed configuration: flags over file over defaults, checked as a whole.

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use log::LevelFilter;

use super::file::{self, Key};
use super::options::{Options, QueueNum};
use super::policies::PolicyList;
use crate::gro::GroConfig;
use crate::napi::NapiConfig;
use crate::tx::TxConfig;
use crate::uplink::kinds::{Kind, Misuse, UplinkOptions};
use crate::values::CpuList;

/// Everything that the daemon is told at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the front-end is.
    pub endpoint: Endpoint,
    /// Unit of the queue count that the front-end is told.
    pub queue_num: QueueNum,
    /// Whether the first session is the last.
    pub one_off: bool,
    /// The host's side.
    pub uplink: UplinkOptions,
    /// Queue pairs, at least 1.
    pub queue_pairs: usize,
    /// MTU that the guest is told, in bytes.
    pub mtu: Option<u16>,
    /// Where what passes is written, if anywhere.
    pub pcap: Option<PathBuf>,
    /// What is merged.
    pub gro: GroConfig,
    /// When is polled and flushed.
    pub napi: NapiConfig,
    /// Data threads, at least 1 and at most one for each queue pair.
    pub workers: usize,
    /// How urgently the data threads run; as the process if not said.
    pub sched: Option<PolicyList>,
    /// How frames from the guest are sent.
    pub tx: TxConfig,
    /// Where the data threads run; anywhere if not said.
    pub cpus: Option<CpuList>,
    /// What is logged, if that was said.
    pub log_level: Option<LevelFilter>,
}

/// How the front-end is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Wait for it on a socket of ours.
    Listen {
        /// Where the socket is made.
        path: PathBuf,
        /// Permissions of the socket, if not those of the umask.
        mode: Option<u32>,
    },
    /// Connect to its socket and do so again whenever the connection ends.
    Connect {
        /// Its socket.
        path: PathBuf,
        /// Time between two attempts.
        reconnect: Duration,
    },
    /// Use the connected socket that we inherited, once.
    Fd(RawFd),
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum ConfigError {
    /// The command line is wrong, or help or version was asked for.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is longer than any configuration.
    #[error("{}: expected at most {max} bytes", path.display())]
    TooLong { path: PathBuf, max: u64 },
    /// What is wrong came, or could have come, from the file.
    #[error("{}: {error}", path.display())]
    InFile {
        path: PathBuf,
        error: Box<ConfigError>,
    },
    /// The file is not TOML.
    #[error("{}: expected TOML", path.display())]
    Syntax {
        path: PathBuf,
        source: Box<toml::de::Error>,
    },
    /// No option is called so.
    #[error("{}: unknown key {key}: the nearest known one is {nearest}", path.display())]
    UnknownKey {
        path: PathBuf,
        key: String,
        nearest: String,
    },
    /// The value does not fit the key.
    #[error("{}: {key} = {value}: {expected}", path.display())]
    Value {
        path: PathBuf,
        key: String,
        value: String,
        expected: String,
    },
    /// Two keys exclude each other.
    #[error("{}: {key} and {other} exclude each other: expected one of them", path.display())]
    Conflict {
        path: PathBuf,
        key: String,
        other: String,
    },
    /// Neither of two options is there.
    #[error("expected {0} or {1}: neither was given")]
    Missing(&'static str, &'static str),
    /// No uplink was asked for.
    #[error("expected one of {}: none was given", .0.join(", "))]
    NoUplink(Vec<&'static str>),
    /// One option has no meaning beside, or without, another.
    #[error("{option} was given: expected {expected}")]
    Unfitting {
        option: &'static str,
        expected: &'static str,
    },
    /// Another number of descriptors than of queue pairs.
    #[error("queue_pairs is {pairs}: expected tap_fd as often, but it was given {fds} times")]
    TapFdCount { pairs: usize, fds: usize },
    /// Another number of descriptors than of queues.
    #[error("uplink_queues is {queues}: expected tap_fd as often, but it was given {fds} times")]
    TapFdQueues { queues: usize, fds: usize },
    /// Queues that nobody would read.
    #[error("uplink_queues is {queues}: expected at most queue_pairs, which is {pairs}")]
    UplinkQueues { queues: usize, pairs: usize },
    /// A descriptor is to serve two purposes.
    #[error("descriptor {0} was given twice: expected another one for each use")]
    FdTwice(RawFd),
    /// A data thread would have nothing to serve.
    #[error("workers is {workers}: expected at most queue_pairs, which is {pairs}")]
    WorkerCount { workers: usize, pairs: usize },
    /// A round shorter than one poll.
    #[error("round_budget is {round_budget}: expected at least budget, which is {budget}")]
    RoundBudget { round_budget: u32, budget: u32 },
    /// No number of bytes lies within both bounds.
    #[error("dql_max is {dql_max}: expected at least dql_min, which is {dql_min}")]
    DqlBounds { dql_min: u32, dql_max: u32 },
}

impl ConfigError {
    /// Whether one of these keys of a file has a part in it, or could have prevented it.
    fn concerns(&self, keys: &[Key]) -> bool {
        let names: &[&str] = match self {
            Self::Missing(..) | Self::NoUplink(_) => return true,
            Self::Unfitting { option, .. } => &[option],
            Self::TapFdCount { .. } => &["queue_pairs", "tap_fd"],
            Self::TapFdQueues { .. } => &["uplink_queues", "tap_fd"],
            Self::UplinkQueues { .. } => &["uplink_queues", "queue_pairs"],
            Self::FdTwice(_) => &["fd", "tap_fd"],
            Self::WorkerCount { .. } => &["workers", "queue_pairs"],
            Self::RoundBudget { .. } => &["round_budget", "budget"],
            Self::DqlBounds { .. } => &["dql_min", "dql_max"],
            _ => return false,
        };
        keys.iter().any(|key| names.contains(&key.name()))
    }
}

impl Config {
    /// Makes the configuration from the command line `args` and the file that it may name.
    ///
    /// # Errors
    /// See [`ConfigError`]; a question for help or version is one, too.
    pub fn load(mut args: Vec<OsString>) -> Result<Self, ConfigError> {
        let command = Options::command();
        let flags = command.clone().try_get_matches_from(&args)?;
        let mut file = None;
        if let Some(path) = flags.get_one::<PathBuf>("config") {
            let keys = file::read(path, &command, &flags)?;
            let behind_name = args.len().min(1);
            args.splice(
                behind_name..behind_name,
                keys.iter().flat_map(Key::arguments),
            );
            file = Some((path.clone(), keys));
        }
        let matches = command.try_get_matches_from(args)?;
        Self::from_options(Options::from_arg_matches(&matches)?).map_err(|error| match file {
            Some((path, keys)) if error.concerns(&keys) => ConfigError::InFile {
                path,
                error: Box::new(error),
            },
            _ => error,
        })
    }

    fn from_options(options: Options) -> Result<Self, ConfigError> {
        let endpoint = endpoint(&options)?;
        let uplink = uplink(&options)?;
        check_descriptors(&options, uplink)?;
        let queue_pairs = queue_pairs(&options, uplink)?;
        options.uplink.steer.check(queue_pairs).map_err(misuse)?;
        Ok(Self {
            endpoint,
            queue_num: options.queue_num,
            one_off: options.one_off,
            workers: workers(&options, queue_pairs)?,
            queue_pairs,
            mtu: options.mtu,
            pcap: options.pcap,
            gro: options.tunables.gro(),
            napi: options.tunables.napi()?,
            tx: options.sending.tx()?,
            log_level: options.log_level,
            uplink: options.uplink,
            cpus: options.cpus,
            sched: options.sched,
        })
    }
}

fn endpoint(options: &Options) -> Result<Endpoint, ConfigError> {
    let unfitting = |option, expected| Err(ConfigError::Unfitting { option, expected });
    if options.reconnect_ms.is_some() && !options.client {
        return unfitting("reconnect_ms", "client beside it");
    }
    if options.socket_mode.is_some() && (options.client || options.fd.is_some()) {
        return unfitting("socket_mode", "a socket to listen on");
    }
    if let Some(fd) = options.fd {
        if options.client {
            return unfitting("client", "socket_path beside it, not fd");
        }
        return Ok(Endpoint::Fd(fd));
    }
    let Some(path) = options.socket_path.clone() else {
        return Err(ConfigError::Missing("socket_path", "fd"));
    };
    if options.client {
        let reconnect = Duration::from_millis(options.reconnect_ms.unwrap_or(1000));
        return Ok(Endpoint::Connect { path, reconnect });
    }
    Ok(Endpoint::Listen {
        path,
        mode: options.socket_mode,
    })
}

fn misuse(Misuse { option, expected }: Misuse) -> ConfigError {
    ConfigError::Unfitting { option, expected }
}

/// Checks that one host device was asked for.
fn uplink(options: &Options) -> Result<&dyn Kind, ConfigError> {
    let chosen = options.uplink.chosen().map_err(misuse)?;
    chosen.ok_or_else(|| ConfigError::NoUplink(UplinkOptions::words().collect()))
}

fn queue_pairs(options: &Options, uplink: &dyn Kind) -> Result<usize, ConfigError> {
    let fds = uplink.descriptors().len();
    if let Some(queues) = options.uplink.steer.uplink_queues {
        let pairs = options.queue_pairs.unwrap_or(fds.max(1));
        return match queues {
            _ if queues > pairs => Err(ConfigError::UplinkQueues { queues, pairs }),
            _ if fds > 0 && fds != queues => Err(ConfigError::TapFdQueues { queues, fds }),
            _ => Ok(pairs),
        };
    }
    match options.queue_pairs {
        Some(pairs) if fds > 0 && fds != pairs => Err(ConfigError::TapFdCount { pairs, fds }),
        Some(pairs) => Ok(pairs),
        None => Ok(fds.max(1)),
    }
}

fn workers(options: &Options, pairs: usize) -> Result<usize, ConfigError> {
    match options.workers {
        Some(workers) if workers > pairs => Err(ConfigError::WorkerCount { workers, pairs }),
        Some(workers) => Ok(workers),
        None => Ok(pairs),
    }
}

fn check_descriptors(options: &Options, uplink: &dyn Kind) -> Result<(), ConfigError> {
    let mut all: Vec<_> = uplink.descriptors().iter().chain(&options.fd).collect();
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ConfigError::FdTwice(*pair[0])),
        None => Ok(()),
    }
}
