//! The plot: a panel for each measure of each part, with the ratios of every round.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::harness::Spread;
use crate::part::Measure;
use crate::turns::{Outcome, Series};

const COLUMNS: usize = 2;
const PANEL: (u32, u32) = (560, 260);
const POINT: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const MEDIAN: RGBColor = RGBColor(0xd6, 0x27, 0x28);
const FONT: &str = "sans-serif";
/// Of a setting's place, half to each side.
const BAR: f64 = 0.28;

/// One panel: the ratios of each setting.
struct Panel<'a> {
    caption: String,
    axis: String,
    settings: Vec<(&'a str, Vec<f64>)>,
}

/// Draws all that has ratios.
pub(crate) fn draw(file: &Path, outcomes: &[Outcome]) -> Result<()> {
    let panels: Vec<_> = outcomes.iter().flat_map(panels).collect();
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let columns = panels.len().clamp(1, COLUMNS);
    let size = |count: usize, each: u32| u32::try_from(count).unwrap_or(1) * each;
    let area =
        SVGBackend::new(file, (size(columns, PANEL.0), size(rows, PANEL.1))).into_drawing_area();
    let drawn = || -> Result<(), Box<dyn std::error::Error + '_>> {
        area.fill(&WHITE)?;
        for (panel, place) in panels.iter().zip(area.split_evenly((rows, columns))) {
            panel.draw(&place)?;
        }
        Ok(area.present()?)
    };
    drawn().map_err(|error| anyhow!("{}: {error}", file.display()))
}

fn panels(outcome: &Outcome) -> Vec<Panel<'_>> {
    let Some(reference) = outcome.series.iter().find(|series| !series.is_empty()) else {
        return Vec::new();
    };
    let shown = outcome.measures.iter().filter(|measure| measure.is_plotted);
    let panels = shown.map(|&measure| Panel {
        caption: format!("({}) {}: {}", outcome.letter, outcome.title, measure.name),
        axis: axis(measure, reference),
        settings: settings(outcome, reference, measure),
    });
    panels
        .filter(|panel| panel.settings.iter().any(|(_, ratios)| !ratios.is_empty()))
        .collect()
}

/// What values are divided by: the median of the first setting, so that its own spread is seen,
/// too. Where that is 0 values stay what they are.
fn base(measure: Measure, reference: &Series) -> Option<f64> {
    let spread = Spread::of(reference.values(measure))?;
    (spread.median != 0.0).then_some(spread.median)
}

fn axis(measure: Measure, reference: &Series) -> String {
    let digits = measure.digits;
    let of_what = base(measure, reference).map(|base| format!("times {base:.digits$} "));
    let axis = of_what.unwrap_or_default() + measure.unit;
    if axis.is_empty() {
        "times".into()
    } else {
        axis
    }
}

/// Each round, by setting.
fn settings<'a>(
    outcome: &'a Outcome,
    reference: &Series,
    measure: Measure,
) -> Vec<(&'a str, Vec<f64>)> {
    let base = base(measure, reference).unwrap_or(1.0);
    let measured = outcome.series.iter().filter(|series| !series.is_empty());
    let ratios = |series: &Series| {
        let values = series.values(measure).into_iter();
        values
            .map(|value| value / base)
            .filter(|ratio| ratio.is_finite())
            .collect()
    };
    measured
        .map(|series| (series.setting.as_str(), ratios(series)))
        .collect()
}

impl Panel<'_> {
    fn draw<DB: DrawingBackend>(
        &self,
        place: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let all = self.settings.iter().flat_map(|(_, ratios)| ratios);
        let spread = Spread::of(all.copied());
        let (low, high) = spread.map_or((0.0, 1.0), |spread| (spread.min, spread.max));
        let room = ((high - low) * 0.15).max(0.02);
        let last = self.settings.len().max(1);
        let across = f64::from(u32::try_from(last).unwrap_or(1));
        let mut chart = ChartBuilder::on(place)
            .margin(10)
            .caption(&self.caption, (FONT, 14))
            .x_label_area_size(26)
            .y_label_area_size(58)
            .build_cartesian_2d(-0.5..across - 0.5, low - room..high + room)?;
        let names = |x: &f64| self.name_at(*x);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .x_labels(2 * last + 1)
            .x_label_formatter(&names)
            .x_label_style((FONT, 12))
            .y_labels(6)
            .y_label_formatter(&|y| format!("{y:.2}"))
            .y_label_style((FONT, 12))
            .y_desc(&self.axis)
            .axis_desc_style((FONT, 12))
            .draw()?;
        for (at, (_, ratios)) in (0u32..).zip(&self.settings) {
            let at = f64::from(at);
            chart.draw_series(
                ratios
                    .iter()
                    .map(|&ratio| Circle::new((at, ratio), 3, POINT.mix(0.6).filled())),
            )?;
            if let Some(Spread { median, .. }) = Spread::of(ratios.iter().copied()) {
                let bar = [(at - BAR, median), (at + BAR, median)];
                chart.draw_series([PathElement::new(bar, MEDIAN.stroke_width(2))])?;
            }
        }
        Ok(())
    }

    /// The setting in the middle of a place, nothing between two.
    fn name_at(&self, x: f64) -> String {
        let names = (0u32..).zip(&self.settings);
        let mut here = names.filter(|(at, _)| (f64::from(*at) - x).abs() < 1e-6);
        here.next()
            .map_or_else(String::new, |(_, (name, _))| (*name).to_owned())
    }
}
