//! Values of several turns.

/// What was measured in each turn, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Turn by turn, because what disturbs a turn disturbs both sides of it.
    pub(crate) fn ratio_to(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Turn by turn as well.
    pub(crate) fn less(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect())
    }

    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().map(|&value| change(value)).collect())
    }

    /// `median (min-max)`
    pub(crate) fn show(&self, decimals: usize) -> String {
        let min = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let median = self.median();
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    }
}
