//! Rounds, in which every setting of every part has its turn.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::bench::Pace;
use crate::head::Head;
use crate::part::{Measure, Part, Reading};
use crate::say;

/// What a part found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) letter: String,
    pub(crate) title: String,
    pub(crate) measures: &'static [Measure],
    pub(crate) series: Vec<Series>,
}

/// What a setting found, by round; none for one that failed.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) setting: String,
    pub(crate) rounds: Vec<Option<Reading>>,
    /// Why the setting could not be had, or a round of it failed.
    pub(crate) trouble: Vec<String>,
}

impl Outcome {
    /// Whether no setting of it was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.series.iter().all(Series::is_empty)
    }
}

impl Series {
    pub(crate) fn is_empty(&self) -> bool {
        self.rounds.iter().all(Option::is_none)
    }

    /// What the rounds found of one measure, those that failed left out.
    pub(crate) fn values(&self, measure: Measure) -> Vec<f64> {
        let rounds = self.rounds.iter().flatten();
        rounds
            .filter_map(|reading| reading.value(measure))
            .collect()
    }

    /// The same over what `other` found in the same round.
    pub(crate) fn ratios(&self, other: &Series, measure: Measure) -> Vec<f64> {
        let value = |reading: &Option<Reading>| reading.as_ref()?.value(measure);
        let pairs = self.rounds.iter().zip(&other.rounds);
        pairs
            .filter_map(|(own, other)| Some(value(own)? / value(other)?))
            .filter(|ratio| ratio.is_finite())
            .collect()
    }
}

/// Lets every setting have its turn, round by round. Each round begins with another setting, so
/// that none always comes after the same one's leftovers.
pub(crate) fn take(parts: &[Part<'_>], pace: Pace) -> Vec<Outcome> {
    let mut outcomes: Vec<_> = parts.iter().map(empty).collect();
    let length = Duration::from_secs(pace.seconds);
    for round in 1..=pace.rounds {
        for (part, outcome) in parts.iter().zip(&mut outcomes) {
            if part.most_rounds.is_some_and(|most| round > most) {
                continue;
            }
            let settings = part.trials.len();
            let first = usize::try_from(round - 1).unwrap_or(0);
            for turn in 0..settings {
                let at = (first + turn) % settings;
                let series = &mut outcome.series[at];
                let Ok(act) = &part.trials[at].act else {
                    continue;
                };
                let result = act(length);
                let head = format!("{round:>2} ({}) {:<12}", part.letter, series.setting);
                match result {
                    Ok(reading) => {
                        say(&format!("{head} {}", line(part.measures, &reading)));
                        series.rounds.push(Some(reading));
                    }
                    Err(error) => {
                        say(&format!("{head} FAILED: {error:#}"));
                        series.rounds.push(None);
                        series.trouble.push(format!("round {round}: {error:#}"));
                    }
                }
            }
        }
    }
    outcomes
}

fn empty(part: &Part<'_>) -> Outcome {
    let series = part.trials.iter().map(|trial| Series {
        setting: trial.setting.clone(),
        rounds: Vec::new(),
        trouble: trial.act.as_ref().err().cloned().into_iter().collect(),
    });
    Outcome {
        letter: part.letter.clone(),
        title: part.title.clone(),
        measures: part.measures,
        series: series.collect(),
    }
}

/// For the one who watches.
fn line(measures: &[Measure], reading: &Reading) -> String {
    let values = measures.iter().filter_map(|&measure| {
        let value = reading.value(measure)?;
        let digits = measure.digits;
        Some(format!(
            "{} {value:.digits$} {}",
            measure.name, measure.unit
        ))
    });
    values.collect::<Vec<_>>().join(", ")
}

/// Every reading of every round, for programs.
pub(crate) fn json(head: &Head, outcomes: &[Outcome]) -> Result<String> {
    let series = |series: &Series| {
        let rounds = series.rounds.iter();
        let rounds: Vec<_> = rounds
            .map(|round| round.as_ref().map(Reading::values))
            .collect();
        json!({ "setting": series.setting, "rounds": rounds, "trouble": series.trouble })
    };
    let parts = outcomes.iter().map(|outcome| {
        let settings: Vec<_> = outcome.series.iter().map(series).collect();
        json!({ "part": outcome.letter, "title": outcome.title, "settings": settings })
    });
    let parts: Vec<_> = parts.collect();
    Ok(serde_json::to_string_pretty(
        &json!({ "head": head, "parts": parts }),
    )?)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::take;
    use crate::bench::Pace;
    use crate::measures::THROUGHPUT;
    use crate::part::{Part, Reading, Trial};

    fn trial<'a>(setting: &str, act: impl Fn() -> anyhow::Result<f64> + 'a) -> Trial<'a> {
        Trial {
            setting: setting.into(),
            act: Ok(Box::new(move |_| {
                Ok(Reading::default().with(THROUGHPUT, act()?))
            })),
        }
    }

    #[test]
    fn a_failed_round_is_told_and_left_out() {
        let turn = std::cell::Cell::new(0);
        let flaky = || {
            turn.set(turn.get() + 1);
            match turn.get() {
                2 => Err(anyhow!("the guest is gone")),
                _ => Ok(30.0),
            }
        };
        let mut missing = trial("missing", || Ok(0.0));
        missing.act = Err("this build lacks it".into());
        let part = Part {
            letter: "a".into(),
            title: "test".into(),
            measures: &[THROUGHPUT],
            trials: vec![trial("steady", || Ok(10.0)), trial("flaky", flaky), missing],
            most_rounds: None,
        };
        let pace = Pace {
            rounds: 3,
            seconds: 1,
        };
        let outcomes = take(&[part], pace);
        let [steady, flaky, missing] = &outcomes[0].series[..] else {
            panic!("three settings");
        };
        assert_eq!(steady.values(THROUGHPUT), [10.0; 3]);
        assert_eq!(flaky.ratios(steady, THROUGHPUT), [3.0; 2]);
        assert_eq!(flaky.trouble, ["round 2: the guest is gone"]);
        assert!(missing.is_empty());
        assert_eq!(missing.trouble, ["this build lacks it"]);
    }
}
