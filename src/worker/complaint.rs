//! Warnings that a guest or front-end can cause as often as it likes.

use std::time::Duration;

use crate::time::Instant;

/// Time between two warnings of one source.
const PAUSE: Duration = Duration::from_secs(1);

/// Says which warnings of one source are to be logged: one a second.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    next: Option<Instant>,
    suppressed: u64,
}

impl Complaints {
    /// Logs what `text` makes, unless the last warning was less than a second before `now`.
    pub(super) fn warn(&mut self, now: Instant, text: impl FnOnce() -> String) {
        let Some(suppressed) = self.take_turn(now) else {
            return;
        };
        match suppressed {
            0 => log::warn!("{}", text()),
            _ => log::warn!("{} ({suppressed} warnings were left out)", text()),
        }
    }

    /// How many warnings were suppressed before this one; `None` if it is to be, too.
    fn take_turn(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_some_and(|next| now < next) {
            self.suppressed += 1;
            return None;
        }
        self.next = Some(now + PAUSE);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_a_second_says_how_many_were_left_out() {
        let mut complaints = Complaints::default();
        let start = Instant::from_nanos(0);
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(complaints.take_turn(at(0)), Some(0));
        assert_eq!(complaints.take_turn(at(0)), None);
        assert_eq!(complaints.take_turn(at(999)), None);
        assert_eq!(complaints.take_turn(at(1000)), Some(2));
        assert_eq!(complaints.take_turn(at(1999)), None);
        assert_eq!(complaints.take_turn(at(9000)), Some(1));
        assert_eq!(complaints.take_turn(at(10_000)), Some(0));
    }
}
