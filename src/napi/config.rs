//! Tunables of the poll model: kernel names, defaults, units and ranges.

use core::ops::RangeInclusive;
use core::time::Duration;

/// How long and how much a receive context polls, and how long it may hold packets back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiConfig {
    /// Most frames read in one poll. Default 64.
    ///
    /// Source: NAPI weight, `NAPI_POLL_WEIGHT` in `include/linux/netdevice.h`.
    pub budget: u32,
    /// How long an entry may stay in the flow table after its first frame, and how long the
    /// source stays masked in a deferral. Zero merges within one poll only. Default 20 us.
    ///
    /// Source: `gro_flush_timeout`; the default is the one of `netdev_sw_irq_coalesce_default_on`.
    pub gro_flush_timeout: Duration,
    /// Empty polls after one with work before the source is unmasked. Has no effect with a
    /// `gro_flush_timeout` of zero. Default 0: each deferral is a sleep with a timer, which costs more
    /// than the wake-ups that it saves, and delays the next frame. (Linux' software devices have 1,
    /// `netdev_sw_irq_coalesce_default_on`; its timer runs in the interrupt.)
    ///
    /// Source: `napi_defer_hard_irqs`.
    pub napi_defer_hard_irqs: u32,
    /// Frames after which a worker looks at other events although its contexts have more.
    /// At least `budget`. Default 300.
    ///
    /// Source: `netdev_budget`, `net/core/hotdata.c`.
    pub round_budget: u32,
    /// Time after which a worker looks at other events, in whole microseconds. Default 2 ms.
    ///
    /// Source: `netdev_budget_usecs`, two ticks at 1000 Hz.
    pub round_usecs: Duration,
}

impl NapiConfig {
    /// Allowed values of [`budget`](Self::budget), in frames.
    pub const BUDGET: RangeInclusive<u32> = 1..=64;
    /// Allowed values of [`gro_flush_timeout`](Self::gro_flush_timeout).
    pub const GRO_FLUSH_TIMEOUT: RangeInclusive<Duration> =
        Duration::ZERO..=Duration::from_nanos(1_000_000_000);
    /// Allowed values of [`napi_defer_hard_irqs`](Self::napi_defer_hard_irqs), in polls.
    pub const NAPI_DEFER_HARD_IRQS: RangeInclusive<u32> = 0..=2_147_483_647;
    /// Least value of [`round_usecs`](Self::round_usecs).
    pub const ROUND_USECS_MIN: Duration = Duration::from_micros(100);

    /// The same tunables, each moved to the nearest allowed value.
    ///
    /// Whoever reads a configuration rejects what is out of range; this keeps a forgotten check
    /// from ending in a poll that reads nothing and never stops.
    #[must_use]
    pub fn clamped(self) -> Self {
        let budget = self
            .budget
            .clamp(*Self::BUDGET.start(), *Self::BUDGET.end());
        Self {
            budget,
            gro_flush_timeout: self.gro_flush_timeout.clamp(
                *Self::GRO_FLUSH_TIMEOUT.start(),
                *Self::GRO_FLUSH_TIMEOUT.end(),
            ),
            napi_defer_hard_irqs: self.napi_defer_hard_irqs.clamp(
                *Self::NAPI_DEFER_HARD_IRQS.start(),
                *Self::NAPI_DEFER_HARD_IRQS.end(),
            ),
            round_budget: self.round_budget.max(budget),
            round_usecs: self.round_usecs.max(Self::ROUND_USECS_MIN),
        }
    }
}

impl Default for NapiConfig {
    fn default() -> Self {
        Self {
            budget: 64,
            gro_flush_timeout: Duration::from_micros(20),
            napi_defer_hard_irqs: 0,
            round_budget: 300,
            round_usecs: Duration::from_millis(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_lie_in_their_ranges() {
        let config = NapiConfig::default();
        assert_eq!(config.clamped(), config);
    }

    #[test]
    fn a_zero_budget_becomes_one_frame() {
        let config = NapiConfig {
            budget: 0,
            round_budget: 0,
            ..NapiConfig::default()
        };
        assert_eq!(config.clamped().budget, 1);
        assert_eq!(config.clamped().round_budget, 1);
    }
}
