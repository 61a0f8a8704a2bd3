//! What the values of options may be: parsers that the options of several modules share.

mod counted;
mod cpus;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

pub use counted::Counted;
pub use cpus::{CpuList, CpuListError};

/// A number within `range`; `unit` is for the text of the error.
pub fn number<T>(
    range: RangeInclusive<T>,
    unit: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let value = text.parse().ok();
        value.filter(|value| range.contains(value)).ok_or_else(|| {
            let (start, end) = (range.start(), range.end());
            format!("expected {start} to {end} {unit}")
        })
    }
}

/// `on` or `off`, or what TOML has for them.
pub fn switch() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off", "true", "false"])
        .map(|word| word == "on" || word == "true")
}
