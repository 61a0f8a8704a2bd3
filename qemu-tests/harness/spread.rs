//! How a handful of numbers lie.

use serde::Serialize;

/// Smallest, middle, mean and largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) average: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// None of no numbers.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = sorted.first().zip(sorted.last())?;
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        let n = f64::from(u32::try_from(sorted.len()).ok()?);
        Some(Spread {
            min,
            median: f64::midpoint(lower, upper),
            average: sorted.iter().sum::<f64>() / n,
            max,
        })
    }
}
