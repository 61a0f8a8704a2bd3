//! Tunables of the way from the guest: names, defaults, units and ranges.

use core::ops::RangeInclusive;
use core::time::Duration;

/// How much is taken from the guest at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxConfig {
    /// Most frames of one bulk. Default 7.
    ///
    /// Source: rule TX-1. Seven full frames were the most that did not delay others measurably on
    /// 100 Mbit/s.
    pub tx_bulk_packets: u32,
    /// Whether frames may follow a super-frame in its bulk. Default off.
    ///
    /// Source: rule TX-1. Later kernels let them, `try_bulk_dequeue_skb`.
    pub tx_bulk_gso: bool,
    /// Most frames of all bulks of one turn. Default 64.
    ///
    /// Source: rule TX-3; `dev_tx_weight`, `net/core/hotdata.c`.
    pub tx_quota: u32,
    /// Bytes of one bulk to an uplink that is done with a frame when the call returns; the last
    /// frame may go beyond them. Default 65536.
    ///
    /// Source: rule DQL-6.
    pub tx_sync_bytes: u32,
    /// Least bytes that an uplink which is done later may have on its way. Default 0.
    ///
    /// Source: `limit_min` of byte queue limits.
    pub dql_min: u32,
    /// Most bytes that it may have on its way. Default 1879048192.
    ///
    /// Source: `limit_max`; `DQL_MAX_LIMIT`, `include/linux/dynamic_queue_limits.h`.
    pub dql_max: u32,
    /// How long bytes have to be to spare before the limit is lowered by them. Default 1 s.
    ///
    /// Source: `hold_time`.
    pub dql_hold: Duration,
}

impl TxConfig {
    /// Allowed values of [`tx_bulk_packets`](Self::tx_bulk_packets), in frames.
    pub const TX_BULK_PACKETS: RangeInclusive<u32> = 1..=64;
    /// Allowed values of [`tx_quota`](Self::tx_quota), in frames.
    pub const TX_QUOTA: RangeInclusive<u32> = 1..=256;
    /// Allowed values of all that is in bytes. Above, differences of counters would be ambiguous.
    pub const BYTES: RangeInclusive<u32> = 0..=1_879_048_192;
    /// Longest [`dql_hold`](Self::dql_hold).
    pub const DQL_HOLD_MAX: Duration = Duration::from_secs(60);

    /// The same tunables, each moved to the nearest allowed value.
    ///
    /// Whoever reads a configuration rejects what is out of range; this keeps a forgotten check
    /// from ending in a drain that takes nothing and never stops.
    #[must_use]
    pub fn clamped(self) -> Self {
        let within =
            |value: u32, range: &RangeInclusive<u32>| value.clamp(*range.start(), *range.end());
        let dql_max = within(self.dql_max, &Self::BYTES);
        Self {
            tx_bulk_packets: within(self.tx_bulk_packets, &Self::TX_BULK_PACKETS),
            tx_bulk_gso: self.tx_bulk_gso,
            tx_quota: within(self.tx_quota, &Self::TX_QUOTA),
            tx_sync_bytes: within(self.tx_sync_bytes, &Self::BYTES),
            dql_min: self.dql_min.min(dql_max),
            dql_max,
            dql_hold: self.dql_hold.min(Self::DQL_HOLD_MAX),
        }
    }
}

impl Default for TxConfig {
    fn default() -> Self {
        Self {
            tx_bulk_packets: 7,
            tx_bulk_gso: false,
            tx_quota: 64,
            tx_sync_bytes: 65536,
            dql_min: 0,
            dql_max: *Self::BYTES.end(),
            dql_hold: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_lie_in_their_ranges() {
        let config = TxConfig::default();
        assert_eq!(config.clamped(), config);
    }

    #[test]
    fn what_would_never_take_a_frame_takes_one() {
        let config = TxConfig {
            tx_bulk_packets: 0,
            tx_quota: 0,
            dql_min: 5,
            dql_max: 3,
            ..TxConfig::default()
        };
        let clamped = config.clamped();
        assert_eq!((clamped.tx_bulk_packets, clamped.tx_quota), (1, 1));
        assert_eq!((clamped.dql_min, clamped.dql_max), (3, 3));
    }
}
