//! Whether two handfuls of numbers differ.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The two-sided p of Welch's t-test: how likely means at least as far apart are, if there is no
/// difference. None with fewer than two numbers on a side or without any spread.
///
/// Source: Welch, "The generalization of `Student's' problem when several different population
/// variances are involved" (1947): t = (m1 - m2) / sqrt(v1/n1 + v2/n2), with
/// (v1/n1 + v2/n2)^2 / ((v1/n1)^2/(n1-1) + (v2/n2)^2/(n2-1)) degrees of freedom.
pub(crate) fn p(one: &[f64], other: &[f64]) -> Option<f64> {
    let (one, other) = (Moments::of(one)?, Moments::of(other)?);
    let error = one.error + other.error;
    let freedom =
        error.powi(2) / (one.error.powi(2) / (one.n - 1.0) + other.error.powi(2) / (other.n - 1.0));
    let t = (one.mean - other.mean) / error.sqrt();
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    t.is_finite().then(|| 2.0 * student.sf(t.abs()))
}

struct Moments {
    n: f64,
    mean: f64,
    /// Variance of the mean.
    error: f64,
}

impl Moments {
    fn of(values: &[f64]) -> Option<Self> {
        let n = f64::from(u32::try_from(values.len()).ok()?);
        if n < 2.0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Moments {
            n,
            mean,
            error: squares / (n - 1.0) / n,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::p;

    /// As SciPy's `ttest_ind(..., equal_var=False)` has it: t -1.4069, 7.047 degrees of freedom.
    #[test]
    fn p_is_that_of_scipy() {
        let one = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9];
        let other = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0];
        let p = p(&one, &other).unwrap();
        assert!((p - 0.201_989).abs() < 1e-6, "{p}");
    }

    #[test]
    fn too_little_has_no_p() {
        assert_eq!(p(&[1.0], &[2.0, 3.0]), None);
        assert_eq!(p(&[1.0, 1.0], &[1.0, 1.0]), None);
    }
}
