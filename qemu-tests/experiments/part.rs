//! One part of an experiment: settings that are compared, and what is read off each.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Digits behind the point.
    pub(crate) digits: usize,
    /// Whether ratios of it are shown in the plot; counters that shall be 0 have none.
    pub(crate) is_plotted: bool,
}

/// What one measurement found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading(BTreeMap<&'static str, f64>);

impl Reading {
    pub(crate) fn with(mut self, measure: Measure, value: f64) -> Self {
        self.0.insert(measure.name, value);
        self
    }

    pub(crate) fn value(&self, measure: Measure) -> Option<f64> {
        self.0.get(measure.name).copied()
    }

    pub(crate) fn values(&self) -> &BTreeMap<&'static str, f64> {
        &self.0
    }
}

/// One measurement of a given length.
pub(crate) type Act<'a> = Box<dyn Fn(Duration) -> Result<Reading> + 'a>;

/// A setting and what it does when it has its turn.
pub(crate) struct Trial<'a> {
    pub(crate) setting: String,
    /// Or why this setting cannot be had here.
    pub(crate) act: Result<Act<'a>, String>,
}

impl<'a> Trial<'a> {
    /// `station` is what the setting needs, or why that is not there.
    pub(crate) fn new<S>(
        setting: impl Into<String>,
        station: &'a Result<S, String>,
        act: impl Fn(&'a S, Duration) -> Result<Reading> + 'a,
    ) -> Self {
        let act = match station {
            Ok(station) => Ok(Box::new(move |length| act(station, length)) as Act<'a>),
            Err(reason) => Err(reason.clone()),
        };
        Trial {
            setting: setting.into(),
            act,
        }
    }
}

/// Settings that take turns. The first one is what the others are compared with.
pub(crate) struct Part<'a> {
    /// Its letter.
    pub(crate) letter: String,
    pub(crate) title: String,
    pub(crate) measures: &'static [Measure],
    pub(crate) trials: Vec<Trial<'a>>,
    /// For counts that need no more rounds than these.
    pub(crate) most_rounds: Option<u32>,
}
