//! The tunables of merging and polling, as options: the daemon and `replay` have the same ones.

use std::time::Duration;

use clap::Args;

use super::config::ConfigError;
use super::options::{number, switch};
use crate::gro::{GroConfig, PortSet};
use crate::napi::NapiConfig;

/// Options that say what is merged, how long it may wait, and how much is polled.
#[derive(Clone, Debug, Args)]
pub struct Tunables {
    /// Whether received frames are merged.
    #[arg(long, value_name = "on|off", value_parser = switch(), default_value = "on",
        action = clap::ArgAction::Set, help_heading = "Merging and polling")]
    pub gro: bool,

    /// Nanoseconds that a packet may be held for more frames, and between two polls while the
    /// host's readiness is not watched, 0 to 1000000000.
    #[arg(long, value_name = "NS", allow_negative_numbers = true, value_parser = number(0..=1_000_000_000u64, "nanoseconds"),
        default_value = "20000", help_heading = "Merging and polling")]
    pub gro_flush_timeout_ns: u64,

    /// Polls without a frame before the host's readiness is watched again, 0 to 2147483647.
    #[arg(long, value_name = "POLLS", allow_negative_numbers = true, value_parser = number(NapiConfig::NAPI_DEFER_HARD_IRQS, "polls"),
        default_value = "0", help_heading = "Merging and polling")]
    pub napi_defer_hard_irqs: u32,

    /// Frames read in one poll, 1 to 64.
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = number(NapiConfig::BUDGET, "frames"),
        default_value = "64", help_heading = "Merging and polling")]
    pub budget: u32,

    /// Frames in a row, over several polls, after which other events get their turn, from
    /// budget up.
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = number(1..=1_000_000u32, "frames"),
        default_value = "300", help_heading = "Merging and polling")]
    pub round_budget: u32,

    /// Microseconds in a row after which other events get their turn, 100 to 1000000.
    #[arg(long, value_name = "US", allow_negative_numbers = true, value_parser = number(100..=1_000_000u64, "microseconds"),
        default_value = "2000", help_heading = "Merging and polling")]
    pub round_usecs: u64,

    /// Segments collected before they are handed to the guest together, 1 to 1024.
    #[arg(long, value_name = "SEGMENTS", allow_negative_numbers = true, value_parser = number(1..=1024u32, "segments"),
        default_value = "8", help_heading = "Merging and polling")]
    pub gro_normal_batch: u32,

    /// Largest merged packet behind its Ethernet header, 1500 to 65535 bytes.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = number(1500..=65535u32, "bytes"),
        default_value = "65535", help_heading = "Merging and polling")]
    pub gro_max_size_bytes: u32,

    /// Most frames in one merged packet, 2 to 65535.
    #[arg(long, value_name = "SEGMENTS", allow_negative_numbers = true, value_parser = number(2..=65535u32, "segments"),
        default_value = "65535", help_heading = "Merging and polling")]
    pub gro_max_segs: u32,

    /// Whether datagrams are merged, too, for a guest that negotiated USO.
    #[arg(long, value_name = "on|off", value_parser = switch(), default_value = "on",
        action = clap::ArgAction::Set, help_heading = "Merging and polling")]
    pub udp_gro: bool,

    /// Destination ports of datagrams that are never merged, such as those of tunnels: at most 16,
    /// or none.
    #[arg(long, value_name = "PORTS", value_parser = ports, default_value = "4789,8472,6081",
        help_heading = "Merging and polling")]
    pub udp_exclude_ports: PortSet,
}

/// A list like `4789,6081`, or `none`: an empty list in a file or script is rather a mistake.
fn ports(text: &str) -> Result<PortSet, String> {
    if text == "none" {
        return Ok(PortSet::EMPTY);
    }
    let list = text.split(',').map(|port| port.trim().parse().ok());
    let list: Option<Vec<u16>> = list.collect();
    list.and_then(|list| PortSet::new(&list)).ok_or_else(|| {
        let most = PortSet::CAPACITY;
        format!("expected at most {most} ports, 0 to 65535 each, with commas between, or none")
    })
}

impl Tunables {
    /// What is merged.
    pub(super) fn gro(&self) -> GroConfig {
        GroConfig {
            enabled: self.gro,
            gro_normal_batch: self.gro_normal_batch,
            gro_max_size: self.gro_max_size_bytes,
            gro_max_segs: self.gro_max_segs,
            udp_gro: self.udp_gro,
            udp_exclude_ports: self.udp_exclude_ports,
            ..GroConfig::default()
        }
    }

    /// When is polled and flushed.
    ///
    /// # Errors
    /// [`ConfigError::RoundBudget`].
    pub(super) fn napi(&self) -> Result<NapiConfig, ConfigError> {
        if self.round_budget < self.budget {
            return Err(ConfigError::RoundBudget {
                round_budget: self.round_budget,
                budget: self.budget,
            });
        }
        Ok(NapiConfig {
            budget: self.budget,
            gro_flush_timeout: Duration::from_nanos(self.gro_flush_timeout_ns),
            napi_defer_hard_irqs: self.napi_defer_hard_irqs,
            round_budget: self.round_budget,
            round_usecs: Duration::from_micros(self.round_usecs),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        tunables: Tunables,
    }

    #[test]
    fn defaults_are_those_of_the_engine_and_of_napi() {
        let Alone { tunables } = Alone::try_parse_from(["test"]).unwrap();
        assert_eq!(tunables.gro(), GroConfig::default());
        assert_eq!(tunables.napi().unwrap(), NapiConfig::default());
    }

    #[test]
    fn ports_are_a_list_or_none() {
        assert_eq!(ports("53, 443").unwrap().as_slice(), [53, 443]);
        assert_eq!(ports("none"), Ok(PortSet::EMPTY));
        let too_many = ["1"; PortSet::CAPACITY + 1].join(",");
        for wrong in ["", "53,", "65536", "-1", "1-3", "dns", &too_many] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn udp_keys_reach_the_engine() {
        let args = ["test", "--udp-gro=off", "--udp-exclude-ports=443"];
        let gro = Alone::try_parse_from(args).unwrap().tunables.gro();
        assert!(!gro.udp_gro);
        assert_eq!(gro.udp_exclude_ports.as_slice(), [443]);
    }
}
