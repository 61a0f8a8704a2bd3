//! A number and what it counts, in a sentence.

use std::fmt;

/// Shows `1 queue` and `2 queues`.
#[derive(Clone, Copy, Debug)]
pub struct Counted(pub usize, pub &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        let plural = if *number == 1 { "" } else { "s" };
        write!(f, "{number} {noun}{plural}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_is_no_plural() {
        let shown = |number| Counted(number, "queue pair").to_string();
        assert_eq!(shown(0), "0 queue pairs");
        assert_eq!(shown(1), "1 queue pair");
        assert_eq!(shown(2), "2 queue pairs");
    }
}
