//! The tunables of the way from the guest, as options.

use std::time::Duration;

use clap::Args;

use super::config::ConfigError;
use super::options::{number, switch};
use crate::tx::TxConfig;

/// Options that say how frames from the guest are sent.
#[derive(Clone, Debug, Args)]
pub struct Sending {
    /// Frames from the guest that go to the host together, with one notification, 1 to 64.
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = number(TxConfig::TX_BULK_PACKETS, "frames"),
        default_value = "7", help_heading = "Sending")]
    pub tx_bulk_packets: u32,

    /// Whether frames may go together with a packet before them that is still to be segmented.
    #[arg(long, value_name = "on|off", value_parser = switch(), default_value = "off",
        action = clap::ArgAction::Set, help_heading = "Sending")]
    pub tx_bulk_gso: bool,

    /// Frames from the guest in a row after which other events get their turn, 1 to 256.
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = number(TxConfig::TX_QUOTA, "frames"),
        default_value = "64", help_heading = "Sending")]
    pub tx_quota: u32,

    /// Bytes that go together to an uplink that takes them at once, such as a tap, 0 to 1879048192;
    /// the last frame may go beyond.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = number(TxConfig::BYTES, "bytes"),
        default_value = "65536", help_heading = "Sending")]
    pub tx_sync_bytes: u32,

    /// Least bytes handed to the uplink and not yet sent, where it tells when they are, 0 to
    /// 1879048192. How many are enough is learned.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = number(TxConfig::BYTES, "bytes"),
        default_value = "0", help_heading = "Sending")]
    pub dql_min: u32,

    /// Most bytes handed to the uplink and not yet sent, from --dql-min to 1879048192.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = number(TxConfig::BYTES, "bytes"),
        default_value = "1879048192", help_heading = "Sending")]
    pub dql_max: u32,

    /// Milliseconds for which that limit must have been larger than needed before it is lowered, 0
    /// to 60000.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = number(0..=60_000u64, "milliseconds"),
        default_value = "1000", help_heading = "Sending")]
    pub dql_hold_ms: u64,
}

impl Sending {
    /// How frames are sent.
    ///
    /// # Errors
    /// [`ConfigError::DqlBounds`].
    pub(super) fn tx(&self) -> Result<TxConfig, ConfigError> {
        if self.dql_max < self.dql_min {
            return Err(ConfigError::DqlBounds {
                dql_min: self.dql_min,
                dql_max: self.dql_max,
            });
        }
        Ok(TxConfig {
            tx_bulk_packets: self.tx_bulk_packets,
            tx_bulk_gso: self.tx_bulk_gso,
            tx_quota: self.tx_quota,
            tx_sync_bytes: self.tx_sync_bytes,
            dql_min: self.dql_min,
            dql_max: self.dql_max,
            dql_hold: Duration::from_millis(self.dql_hold_ms),
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
        sending: Sending,
    }

    fn parse(args: &[&str]) -> Result<Sending, clap::Error> {
        let all = ["test"].iter().chain(args);
        Alone::try_parse_from(all).map(|alone| alone.sending)
    }

    #[test]
    fn defaults_are_those_of_the_drain() {
        let sending = parse(&[]).unwrap();
        assert_eq!(sending.tx().unwrap(), TxConfig::default());
    }

    #[test]
    fn every_option_reaches_the_drain() {
        let args = [
            "--tx-bulk-packets=8",
            "--tx-bulk-gso=on",
            "--tx-quota=65",
            "--tx-sync-bytes=9",
            "--dql-min=10",
            "--dql-max=11",
            "--dql-hold-ms=12",
        ];
        let expected = TxConfig {
            tx_bulk_packets: 8,
            tx_bulk_gso: true,
            tx_quota: 65,
            tx_sync_bytes: 9,
            dql_min: 10,
            dql_max: 11,
            dql_hold: Duration::from_millis(12),
        };
        assert_eq!(parse(&args).unwrap().tx().unwrap(), expected);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for wrong in [
            "--tx-bulk-packets=0",
            "--tx-bulk-packets=65",
            "--tx-quota=0",
            "--tx-quota=257",
            "--tx-sync-bytes=-1",
            "--dql-max=1879048193",
            "--dql-hold-ms=60001",
            "--tx-bulk-gso=maybe",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
        let bounds = parse(&["--dql-min=2", "--dql-max=1"]).unwrap().tx();
        let text = bounds.unwrap_err().to_string();
        assert_eq!(text, "dql_max is 1: expected at least dql_min, which is 2");
    }
}
