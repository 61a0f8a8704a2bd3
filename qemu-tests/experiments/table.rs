//! The tables, in Markdown.

use std::fmt::Write;

use anyhow::Result;

use crate::Experiment;
use crate::harness::Spread;
use crate::head::Head;
use crate::part::Measure;
use crate::turns::{Outcome, Series};
use crate::welch;

/// Below this a difference is called real.
const SIGNIFICANT: f64 = 0.05;

const LEGEND: &str = "\
Ratios are those of a setting to the first one of its table, round by round: the median, in brackets \
the smallest and the largest, and p of Welch's t-test on the rounds. **Bold** is p < 0.05; other \
differences may be chance. Absolute figures are those of this machine on this day, with emulated \
guests: they say nothing beyond it. A KB is 1024 bytes of payload.";

/// Everything that was found.
pub(crate) fn markdown(
    experiment: &Experiment,
    head: &Head,
    outcomes: &[Outcome],
) -> Result<String> {
    let Experiment {
        name, title, story, ..
    } = experiment;
    let mut text = format!(
        "# {name}: {title}\n\n{story}\n\n{}\n\n{LEGEND}\n",
        head.lines()
    );
    write!(text, "\n![Ratios of each round]({name}.svg)\n")?;
    for outcome in outcomes {
        write!(text, "\n## ({}) {}\n", outcome.letter, outcome.title)?;
        if let Some(reference) = outcome.series.iter().find(|series| !series.is_empty()) {
            text.push_str(&ratios(outcome, reference));
            text.push_str(&values(outcome));
        }
        text.push_str(&troubles(outcome));
    }
    Ok(text)
}

fn ratios(outcome: &Outcome, reference: &Series) -> String {
    // Of what is 0 at first there are no ratios.
    let measures: Vec<_> = outcome
        .measures
        .iter()
        .filter(|&&measure| reference.values(measure).iter().any(|&value| value != 0.0))
        .copied()
        .collect();
    let others = outcome.series.iter();
    let others = others.filter(|series| !series.is_empty() && series.setting != reference.setting);
    let rows = others.map(|series| {
        let cells = measures.iter().map(|&m| ratio(series, reference, m));
        (series.setting.clone(), cells.collect())
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = format!("ratio to {}", reference.setting);
    grid(&head, measures.iter().map(|m| m.name.into()), &rows)
}

fn ratio(series: &Series, reference: &Series, measure: Measure) -> String {
    let Some(spread) = Spread::of(series.ratios(reference, measure)) else {
        return "-".into();
    };
    let p = welch::p(&series.values(measure), &reference.values(measure));
    let Spread {
        min, median, max, ..
    } = spread;
    let mark = if p.is_some_and(|p| p < SIGNIFICANT) {
        "**"
    } else {
        ""
    };
    let p = p.map_or_else(String::new, |p| {
        if p < 0.001 {
            ", p < 0.001".into()
        } else {
            format!(", p {p:.3}")
        }
    });
    format!("{mark}{median:.3}{mark} ({min:.3} to {max:.3}{p})")
}

fn values(outcome: &Outcome) -> String {
    let rows = outcome.series.iter().filter(|series| !series.is_empty());
    let rows = rows.map(|series| {
        let cells = outcome.measures.iter().map(|&m| value(series, m));
        (series.setting.clone(), cells.collect())
    });
    let heads = outcome.measures.iter().map(|m| match m.unit {
        "" => m.name.into(),
        unit => format!("{}, {unit}", m.name),
    });
    grid(
        "min / median / average / max",
        heads,
        &rows.collect::<Vec<_>>(),
    )
}

fn value(series: &Series, measure: Measure) -> String {
    let digits = measure.digits;
    let Some(spread) = Spread::of(series.values(measure)) else {
        return "-".into();
    };
    let Spread {
        min,
        median,
        average,
        max,
    } = spread;
    format!("{min:.digits$} / {median:.digits$} / {average:.digits$} / {max:.digits$}")
}

fn grid(
    corner: &str,
    heads: impl Iterator<Item = String>,
    rows: &[(String, Vec<String>)],
) -> String {
    let heads: Vec<_> = heads.collect();
    let mut text = format!("\n| {corner} | {} |\n", heads.join(" | "));
    text.push_str(&format!("|---|{}\n", "---|".repeat(heads.len())));
    for (setting, cells) in rows {
        text.push_str(&format!("| {setting} | {} |\n", cells.join(" | ")));
    }
    text
}

/// What could not be measured, which must not be mistaken for what was.
fn troubles(outcome: &Outcome) -> String {
    let mut text = String::new();
    for series in &outcome.series {
        for trouble in &series.trouble {
            let first = trouble.lines().next().unwrap_or_default();
            text.push_str(&format!("\n- {} not measured: {first}", series.setting));
        }
    }
    if text.is_empty() { text } else { text + "\n" }
}
