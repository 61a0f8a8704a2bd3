//! The options of steering, which can be had with an uplink of any kind.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{SteerError, Steered};
use crate::sys::Placement;
use crate::uplink::Uplink;
use crate::uplink::kinds::Misuse;
use crate::values::{CpuList, number};
use crate::wire::HashScope;

/// Frames that wait for one worker at most.
///
/// Source: rules section 9, Tunables.
const RING: usize = 512;
/// Frames that are handed over together.
///
/// Source: rules section 9, Tunables; `CPUMAP_BATCH`, `kernel/bpf/cpumap.c`.
const BATCH: usize = 8;

/// How the queues of a device become more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct SteerOptions {
    /// Queues of the host's device, 1 to the number of queue pairs. With fewer, each is read by a
    /// thread that spreads the frames over the pairs by their flow [default: one for each pair].
    #[arg(long, value_name = "QUEUES", allow_negative_numbers = true,
        value_parser = number(1..=32usize, "queues"), help_heading = "Steering")]
    pub uplink_queues: Option<usize>,

    /// What keeps frames together: flow (addresses and ports; fragments have none) or addresses
    /// [default: flow].
    #[arg(long, value_name = "WHAT", value_parser = scope(), hide_possible_values = true,
        help_heading = "Steering")]
    pub steer_by: Option<HashScope>,

    /// Frames that may wait for one queue pair before further ones are dropped, 64 to 16384
    /// [default: 512].
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true,
        value_parser = number(64..=16384usize, "frames"), help_heading = "Steering")]
    pub steer_ring: Option<usize>,

    /// Frames that are handed over and taken together, 1 to 64 [default: 8].
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true,
        value_parser = number(1..=64usize, "frames"), help_heading = "Steering")]
    pub steer_batch: Option<usize>,

    /// CPUs that the reading threads are pinned to in turn [default: not pinned].
    #[arg(long, value_name = "LIST", help_heading = "Steering")]
    pub steer_cpu: Option<CpuList>,
}

fn scope() -> impl TypedValueParser<Value = HashScope> {
    PossibleValuesParser::new(["flow", "addresses"]).map(|word| match word.as_str() {
        "addresses" => HashScope::Addresses,
        _ => HashScope::Flow,
    })
}

impl SteerOptions {
    /// Queues that the device is to have for `pairs` queue pairs.
    #[must_use]
    pub fn queues(&self, pairs: usize) -> usize {
        self.uplink_queues.unwrap_or(pairs).min(pairs)
    }

    /// Checks that they mean something beside `pairs` queue pairs.
    ///
    /// # Errors
    /// One was given although nothing is steered.
    pub fn check(&self, pairs: usize) -> Result<(), Misuse> {
        let given = [
            ("steer_by", self.steer_by.is_some()),
            ("steer_ring", self.steer_ring.is_some()),
            ("steer_batch", self.steer_batch.is_some()),
            ("steer_cpu", self.steer_cpu.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if self.queues(pairs) == pairs => Err(Misuse {
                option,
                expected: "uplink_queues beside it, below queue_pairs",
            }),
            _ => Ok(()),
        }
    }

    /// Puts readers in front of `device` if it has fewer queues than there are `pairs`.
    pub(in crate::uplink) fn around(
        &self,
        device: Box<dyn Uplink>,
        pairs: usize,
    ) -> Result<Box<dyn Uplink>, SteerError> {
        if device.caps().queues >= pairs {
            return Ok(device);
        }
        Ok(Box::new(Steered::around(device, pairs, &self.config())?))
    }

    fn config(&self) -> SteerConfig {
        SteerConfig {
            scope: self.steer_by.unwrap_or_default(),
            ring: self.steer_ring.unwrap_or(RING),
            batch: self.steer_batch.unwrap_or(BATCH),
            cpus: self.steer_cpu.clone(),
        }
    }
}

/// How frames are steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteerConfig {
    /// What keeps frames together.
    pub scope: HashScope,
    /// Frames that may wait for one port.
    pub ring: usize,
    /// Frames that are handed over and taken together.
    pub batch: usize,
    /// Where the readers run, in turn; anywhere if not said.
    pub cpus: Option<CpuList>,
}

impl SteerConfig {
    pub(super) fn placement(&self, reader: usize) -> Placement {
        Placement {
            cpu: (self.cpus.as_ref()).and_then(|cpus| cpus.for_thread(reader)),
            policy: None,
        }
    }
}

impl Default for SteerConfig {
    fn default() -> Self {
        SteerOptions::default().config()
    }
}
