//! What the guest and the front-end are told after a turn.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::handle::RingSetup;

/// What a turn of one direction means for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Nothing to say.
    Quiet,
    /// The guest wants to be interrupted.
    Notify,
    /// The ring is broken and stays out of service until the guest resets it.
    Broken,
}

impl From<bool> for Served {
    fn from(needs_notification: bool) -> Self {
        if needs_notification {
            Self::Notify
        } else {
            Self::Quiet
        }
    }
}

/// Interrupts the guest, or tells the front-end that the ring is broken.
pub(super) fn act(served: Served, ring: Option<&RingSetup>) {
    let Some(ring) = ring else { return };
    match served {
        Served::Quiet => {}
        Served::Notify => {
            if let Some(call) = &ring.call {
                signal(call);
            }
        }
        Served::Broken => report_broken(ring),
    }
}

/// Tells the front-end that a ring is out of service.
pub(super) fn report_broken(ring: &RingSetup) {
    if let Some(err) = &ring.err {
        signal(err);
    }
}

/// Adds one to an event descriptor of the front-end. It was made non-blocking when it came, and a
/// counter that is full has been signalled already, so there is nothing to do about an error.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Signals a call descriptor that takes another one's place: the interrupt that the guest waits
/// for may have gone to the old one.
pub(super) fn signal_replaced(ring: Option<&RingSetup>, old: Option<&RingSetup>) {
    let (Some(ring), Some(old)) = (ring, old) else {
        return;
    };
    let (Some(call), true) = (&ring.call, ring.epoch == old.epoch) else {
        return;
    };
    if old.call.as_ref().is_none_or(|old| !Arc::ptr_eq(old, call)) {
        signal(call);
    }
}
