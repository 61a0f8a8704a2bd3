//! A data thread that only remembers what it was given.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use vhost_user_gro::worker::{PairControl, PairSetup, Positions, RingSetup};

/// How long a test waits for what must come before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Stands in for a data thread. Like one it keeps the position of each ring for as long as the
/// epoch stays the same.
#[derive(Default)]
pub(crate) struct Recorder {
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Seen {
    /// Every set-up in order.
    pub(crate) setups: Vec<PairSetup>,
    /// Every frame that was to be announced.
    pub(crate) announced: Vec<Vec<u8>>,
    positions: Positions,
}

impl Recorder {
    pub(crate) fn for_pairs(count: usize) -> Vec<Arc<Recorder>> {
        (0..count).map(|_| Arc::default()).collect()
    }

    /// What the thread works with now.
    pub(crate) fn now(&self) -> PairSetup {
        self.seen
            .lock()
            .unwrap()
            .setups
            .last()
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn rx(&self) -> RingSetup {
        self.now().rx.expect("a receive ring in service")
    }

    pub(crate) fn tx(&self) -> RingSetup {
        self.now().tx.expect("a transmit ring in service")
    }

    /// Takes so many buffers out of both rings.
    pub(crate) fn consume(&self, buffers: u16) {
        let positions = &mut self.seen.lock().unwrap().positions;
        positions.rx = positions.rx.map(|position| position.wrapping_add(buffers));
        positions.tx = positions.tx.map(|position| position.wrapping_add(buffers));
    }

    /// Drops the former set-ups, and with them what the test itself holds of the guest's memory.
    pub(crate) fn forget_former(&self) {
        let setups = &mut self.seen.lock().unwrap().setups;
        let last = setups.pop();
        setups.clear();
        setups.extend(last);
    }

    /// Waits until something is true of what was seen.
    pub(crate) fn wait_until(&self, what: &str, is_true: impl Fn(&Seen) -> bool) {
        let seen = self.seen.lock().unwrap();
        let (_seen, timeout) = self
            .changed
            .wait_timeout_while(seen, PATIENCE, |seen| !is_true(seen))
            .unwrap();
        assert!(!timeout.timed_out(), "{what} did not come");
    }

    /// Waits until the thread was told to let go of everything.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_until("the end of the session", |seen| {
            seen.setups.last().is_none_or(is_nothing)
        });
    }
}

impl PairControl for Recorder {
    fn apply(&self, setup: PairSetup) -> Positions {
        let mut seen = self.seen.lock().unwrap();
        let former = seen.setups.last().cloned().unwrap_or_default();
        let left = seen.positions;
        seen.positions = Positions {
            rx: position(former.rx.as_ref(), left.rx, setup.rx.as_ref()),
            tx: position(former.tx.as_ref(), left.tx, setup.tx.as_ref()),
        };
        seen.setups.push(setup);
        self.changed.notify_all();
        left
    }

    fn announce(&self, frame: Vec<u8>) {
        self.seen.lock().unwrap().announced.push(frame);
        self.changed.notify_all();
    }
}

fn position(
    former: Option<&RingSetup>,
    left: Option<u16>,
    next: Option<&RingSetup>,
) -> Option<u16> {
    let next = next?;
    match former {
        Some(former) if former.epoch == next.epoch => left,
        _ => Some(next.next_avail),
    }
}

/// Whether the set-up serves nothing and holds nothing.
pub(crate) fn is_nothing(setup: &PairSetup) -> bool {
    setup.features == 0 && setup.memory.is_none() && setup.rx.is_none() && setup.tx.is_none()
}
