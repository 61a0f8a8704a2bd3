//! Whether the uplink takes frames.

use super::host::RETRY;
use crate::time::Instant;

/// What is known of the uplink's room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Room {
    /// Nothing speaks against it.
    #[default]
    Free,
    /// It was full; it will say when it is writable.
    Awaited,
    /// It says that it is writable, and no send has proved it yet.
    Claimed,
    /// Its being writable says nothing, as it said so and took nothing, or is short of memory.
    /// Asking again at once would go on for ever, so some time passes first.
    Doubted(Instant),
}

impl Room {
    /// Whether to try at `now`.
    pub(super) fn is_worth_trying(self, now: Instant) -> bool {
        match self {
            Self::Free | Self::Claimed => true,
            Self::Awaited => false,
            Self::Doubted(until) => until <= now,
        }
    }

    /// The uplink reports that it is writable.
    pub(super) fn claimed(self) -> Self {
        match self {
            Self::Awaited => Self::Claimed,
            other => other,
        }
    }

    /// The uplink has taken nothing.
    pub(super) fn refused(self, now: Instant) -> Self {
        match self {
            Self::Free | Self::Awaited => Self::Awaited,
            Self::Claimed | Self::Doubted(_) => Self::doubted(now),
        }
    }

    /// To be tried again after a short time, whatever is reported.
    pub(super) fn doubted(now: Instant) -> Self {
        Self::Doubted(now + RETRY)
    }
}
