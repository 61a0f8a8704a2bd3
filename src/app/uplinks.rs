//! `uplinks`: which kinds of host devices there are, and what this host can have of each.

use std::io::{self, Write};

use crate::uplink::UplinkOptions;

/// Writes one line for each kind.
///
/// # Errors
/// Those of `out`.
pub(super) fn list(mut out: impl Write) -> io::Result<()> {
    let options = UplinkOptions::default();
    for kind in options.kinds() {
        let flags: Vec<_> = kind.words().iter().map(|word| flag(word)).collect();
        let (is_there, what) = match kind.probe() {
            Ok(what) => ("yes", what),
            Err(why) => ("no", why),
        };
        let flags = flags.join(", ");
        writeln!(out, "{:<10} {flags:<18} {is_there:<3}  {what}", kind.name())?;
    }
    Ok(())
}

/// `tap_fd` as `--tap-fd`.
fn flag(word: &str) -> String {
    format!("--{}", word.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_line_that_begins_with_its_name() {
        let mut out = Vec::new();
        list(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let options = UplinkOptions::default();
        let names: Vec<_> = options.kinds().iter().map(|kind| kind.name()).collect();
        let first = |line: &str| line.split(' ').next().map(str::to_owned);
        let shown: Vec<_> = text.lines().filter_map(first).collect();
        assert_eq!(shown, names);
        assert!(text.contains("--tap-fd"), "{text}");
    }
}
