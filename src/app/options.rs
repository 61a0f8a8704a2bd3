//! Every option, once: its word, unit, range and default. The configuration file has the same
//! words with underscores and is read through the same parsers (see `app::file`).

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use log::LevelFilter;

use super::policies::PolicyList;
use super::replay::ReplayOptions;
use super::sending::Sending;
use super::tunables::Tunables;
use crate::uplink::UplinkOptions;
use crate::values::CpuList;
pub(super) use crate::values::{number, switch};

/// vhost-user backend for virtio-net that coalesces inbound traffic with GRO.
///
/// Every option but --config and --print-capabilities is also a key of the configuration file,
/// with underscores in place of dashes. Options given here win over the file.
#[derive(Clone, Debug, Parser)]
#[command(name = "vhost-user-gro", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Options {
    /// What to do in place of serving a guest.
    #[command(subcommand)]
    pub task: Option<Task>,

    /// TOML file with more options.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print what kind of backend this is as JSON, and exit.
    #[arg(long)]
    pub print_capabilities: bool,

    /// UNIX socket to listen on; with --client, to connect to.
    #[arg(long, value_name = "PATH", value_parser = socket_path, help_heading = "vhost-user")]
    pub socket_path: Option<PathBuf>,

    /// Inherited descriptor of a connected socket, in place of --socket-path.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number(3..=i32::MAX, "as descriptor number"),
        conflicts_with = "socket_path", help_heading = "vhost-user")]
    pub fd: Option<i32>,

    /// Connect to the socket instead of listening on it, again and again.
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_value = "off", default_missing_value = "on",
        help_heading = "vhost-user")]
    pub client: bool,

    /// Milliseconds between two attempts to connect, 1 to 3600000 [default: 1000].
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = number(1..=3_600_000u64, "milliseconds"),
        help_heading = "vhost-user")]
    pub reconnect_ms: Option<u64>,

    /// Permissions of the listening socket in octal, such as 0660 [default: by the umask].
    #[arg(long, value_name = "MODE", value_parser = socket_mode, help_heading = "vhost-user")]
    pub socket_mode: Option<u32>,

    /// Exit when the first session ends.
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_value = "off", default_missing_value = "on",
        help_heading = "vhost-user")]
    pub one_off: bool,

    /// What the front-end takes the reported number of queues for: QEMU counts pairs,
    /// cloud-hypervisor counts vrings.
    #[arg(
        long,
        value_enum,
        value_name = "UNIT",
        default_value = "pairs",
        help_heading = "vhost-user"
    )]
    pub queue_num: QueueNum,

    /// The host's device.
    #[command(flatten)]
    pub uplink: UplinkOptions,

    /// Queue pairs, 1 to 32 [default: 1, or the number of --tap-fd].
    #[arg(long, value_name = "PAIRS", allow_negative_numbers = true, value_parser = number(1..=32usize, "queue pairs"),
        help_heading = "Host side")]
    pub queue_pairs: Option<usize>,

    /// MTU that the guest is told, 68 to 65535 bytes [default: none].
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = number(68..=65535u16, "bytes"),
        help_heading = "Host side")]
    pub mtu: Option<u16>,

    /// Write what passes, as the guest gets and sends it, to this file as pcapng.
    #[arg(long, value_name = "FILE", help_heading = "Host side")]
    pub pcap: Option<PathBuf>,

    /// Merging and polling.
    #[command(flatten)]
    pub tunables: Tunables,

    /// Sending.
    #[command(flatten)]
    pub sending: Sending,

    /// CPUs that the data threads are pinned to in turn, such as 2,4-7 [default: not pinned].
    #[arg(long, value_name = "LIST", help_heading = "Process")]
    pub cpus: Option<CpuList>,

    /// Data threads, 1 to the number of queue pairs, over which these are dealt out in turn
    /// [default: one for each].
    #[arg(long, value_name = "THREADS", allow_negative_numbers = true, value_parser = number(1..=32usize, "data threads"),
        help_heading = "Process")]
    pub workers: Option<usize>,

    /// Scheduling policies of the data threads in turn, such as fifo:50,other:0; fifo and rr with a
    /// priority, other and batch with a nice value; fifo, rr and negative values need
    /// CAP_SYS_NICE [default: as the process].
    #[arg(
        long,
        value_name = "LIST",
        allow_hyphen_values = true,
        help_heading = "Process"
    )]
    pub sched: Option<PolicyList>,

    /// What is logged: off, error, warn, info, debug or trace [default: RUST_LOG, else info].
    #[arg(long, value_name = "LEVEL", value_parser = log_level(), hide_possible_values = true,
        help_heading = "Process")]
    pub log_level: Option<LevelFilter>,
}

/// What the program can do beside serving a guest.
#[derive(Clone, Debug, Subcommand)]
pub enum Task {
    /// Show what merging would do to the traffic in a capture.
    ///
    /// The capture takes the place of the host's device, and its time stamps that of the clock: a
    /// poll begins when a frame arrives, or the time of --wakeup-ns later, reads up to --budget of
    /// those that have arrived until then, and takes --frame-ns for each. The guest always has
    /// buffers. In the result, each packet stands at the time at which the guest would get it; a
    /// merged one has a partial checksum, and a comment that says what it was made of.
    Replay(ReplayOptions),
    /// List the kinds of host devices, and what this host and user can have of each.
    Uplinks,
}

/// Unit of the number of queues that the front-end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueNum {
    /// Queue pairs, as QEMU takes it.
    Pairs,
    /// Single queues, as cloud-hypervisor takes it.
    Vrings,
}

fn log_level() -> impl TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["off", "error", "warn", "info", "debug", "trace"])
        .try_map(|word| word.parse::<LevelFilter>())
}

/// Source: unix(7), `sun_path`, less the terminating zero.
const SOCKET_PATH_MAX: usize = 107;

fn socket_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.len() > SOCKET_PATH_MAX {
        return Err(format!("expected a path of 1 to {SOCKET_PATH_MAX} bytes"));
    }
    Ok(text.into())
}

fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| mode & !0o777 == 0)
        .ok_or_else(|| "expected octal permissions from 0000 to 0777".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_switch_may_stand_alone_or_have_a_word() {
        let parse = |args: &[&str]| {
            Options::try_parse_from([&["vhost-user-gro"], args].concat()).map(|o| o.client)
        };
        assert!(parse(&["--client"]).unwrap());
        assert!(parse(&["--client", "--one-off"]).unwrap());
        assert!(!parse(&["--client=off"]).unwrap());
        assert!(!parse(&["--client", "off"]).unwrap());
        assert!(parse(&["--client=perhaps"]).is_err());
        // A task stands alone, so it is no word that a switch could have swallowed.
        assert!(parse(&["--client", "uplinks"]).is_err());
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(socket_mode("0660"), Ok(0o660));
        assert!(socket_mode("1777").is_err());
        assert!(socket_mode("rw-").is_err());
    }
}
