//! Whether the guest wants to be interrupted, decided once per batch. The data thread owns the
//! event descriptor and signals it.
//!
//! Source: virtio 1.2, 2.7.7 "Used Buffer Notification Suppression".

/// What the guest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// No event index, and interrupts are not suppressed.
    Always,
    /// No event index, and interrupts are suppressed.
    Never,
    /// Event index: as soon as the entry at this index is used.
    From(u16),
}

/// Remembers up to where the guest was told or knowingly not told.
#[derive(Debug, Default)]
pub(super) struct CallGate {
    /// Used index at the last decision. `None` before the first one.
    settled: Option<u16>,
}

impl CallGate {
    /// Whether nothing was published since the last decision.
    pub(super) fn is_settled(&self, published: u16) -> bool {
        self.settled == Some(published)
    }

    /// Decides for all entries from the last decision up to the index `published`.
    ///
    /// The first decision after a start is always yes: a former run may have published entries
    /// without coming to signal them.
    pub(super) fn decide(&mut self, published: u16, wanted: Wanted) -> bool {
        let Some(old) = self.settled.replace(published) else {
            return true;
        };
        match wanted {
            Wanted::Always => true,
            Wanted::Never => false,
            // The wanted entry lies in `old..published`, modulo 2^16.
            Wanted::From(event) => {
                published.wrapping_sub(event).wrapping_sub(1) < published.wrapping_sub(old)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate whose last decision was at `old`.
    fn settled_at(old: u16) -> CallGate {
        CallGate { settled: Some(old) }
    }

    #[test]
    fn f47_an_event_index_counts_modulo_2_16() {
        for (old, published, event, expected) in [
            (10, 11, 10, true),
            (10, 11, 11, false),
            (10, 11, 9, false),
            (10, 14, 13, true),
            (10, 14, 14, false),
            (65534, 2, 65533, false),
            (65534, 2, 65534, true),
            (65534, 2, 65535, true),
            (65534, 2, 1, true),
            (65534, 2, 2, false),
        ] {
            let decision = settled_at(old).decide(published, Wanted::From(event));
            assert_eq!(decision, expected, "{old}..{published}, event {event}");
        }
    }

    #[test]
    fn without_event_index_the_flag_decides() {
        assert!(settled_at(0).decide(1, Wanted::Always));
        assert!(!settled_at(0).decide(1, Wanted::Never));
    }

    #[test]
    fn the_first_decision_is_yes() {
        let mut gate = CallGate::default();
        assert!(!gate.is_settled(7));
        assert!(gate.decide(7, Wanted::Never));
        assert!(gate.is_settled(7));
    }
}
