//! All rings of a session, and their way to the data threads.
//!
//! Every change, of whatever kind, ends in the same act: the pair's whole set-up is handed to its
//! data thread, and the call waits until the thread has let go of the former one. The positions
//! that come back are kept, so that a ring that is not served any more can be asked for its
//! position or go on from there.
//!
//! A pair of which no ring is served gets no memory, so nothing keeps a mapping alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use log::info;
use virtio_queue::Error as QueueError;
use vm_memory::GuestMemoryMmap;

use super::names::feature_names;
use super::ring::Ring;
use crate::worker::{PairControl, PairSetup};

/// The rings of one session. The lock is held while a data thread takes a change over: changes
/// come from one connection and are few.
pub(super) struct Pairs {
    controls: Vec<Arc<dyn PairControl>>,
    state: Mutex<State>,
}

struct State {
    features: u64,
    memory: Option<Arc<GuestMemoryMmap>>,
    rings: Vec<Ring>,
    is_over: bool,
}

impl Pairs {
    /// Two rings for each data thread, of at most `size_max` entries.
    ///
    /// # Errors
    /// When `size_max` is not a power of two up to 32768.
    pub(super) fn new(
        controls: Vec<Arc<dyn PairControl>>,
        size_max: u16,
    ) -> Result<Self, QueueError> {
        let rings = (0..controls.len() * 2)
            .map(|index| Ring::new(index, size_max))
            .collect::<Result<_, _>>()?;
        let state = State {
            features: 0,
            memory: None,
            rings,
            is_over: false,
        };
        Ok(Self {
            controls,
            state: Mutex::new(state),
        })
    }

    /// Number of rings.
    pub(super) fn ring_count(&self) -> usize {
        self.controls.len() * 2
    }

    /// Reads something of a ring.
    pub(super) fn read<T>(&self, index: usize, get: impl FnOnce(&Ring) -> T) -> T {
        get(&self.lock().rings[index])
    }

    /// Changes a ring and hands its pair to the data thread if that concerns it.
    pub(super) fn change<T>(&self, index: usize, set: impl FnOnce(&mut Ring) -> T) -> T {
        let mut state = self.lock();
        let result = set(&mut state.rings[index]);
        self.publish(&mut state, index / 2, false);
        result
    }

    /// Takes the features that the guest has acked.
    pub(super) fn set_features(&self, features: u64) {
        let mut state = self.lock();
        if state.features != features {
            state.features = features;
            info!("features negotiated: {}", feature_names(features));
            self.publish_all(&mut state, true);
        }
    }

    /// Takes another view of the guest's memory; when it returns no thread uses the former one.
    pub(super) fn set_memory(&self, memory: Arc<GuestMemoryMmap>) {
        let mut state = self.lock();
        state.memory = Some(memory);
        self.publish_all(&mut state, false);
    }

    /// Brings every ring and the features back to the start; the memory stays.
    pub(super) fn reset(&self) {
        let mut state = self.lock();
        state.features = 0;
        state.rings.iter_mut().for_each(Ring::reset);
        self.publish_all(&mut state, true);
        // What the threads reported were the positions before the reset.
        state
            .rings
            .iter_mut()
            .for_each(|ring| ring.set_next_avail(0));
    }

    /// Ends the session: every data thread lets go of all it had, and no later change reaches it.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.memory = None;
        for control in &self.controls {
            control.apply(PairSetup::default());
        }
    }

    /// Sends a frame out of the uplink.
    pub(super) fn announce(&self, frame: Vec<u8>) {
        if let Some(control) = self.controls.first() {
            control.announce(frame);
        }
    }

    fn publish_all(&self, state: &mut State, always: bool) {
        for pair in 0..self.controls.len() {
            self.publish(state, pair, always);
        }
    }

    /// Hands over a pair, if a ring of it was or is served, or `always`.
    fn publish(&self, state: &mut State, pair: usize, always: bool) {
        if state.is_over {
            return;
        }
        let memory = state.memory.clone();
        let rings = &mut state.rings[pair * 2..pair * 2 + 2];
        let was_served = rings.iter().any(Ring::is_served);
        rings
            .iter_mut()
            .for_each(|ring| ring.settle(memory.as_deref()));
        let is_served = rings.iter().any(Ring::is_served);
        if !(was_served || is_served || always) {
            return;
        }

        let setup = PairSetup {
            features: state.features,
            memory: memory.filter(|_| is_served),
            rx: rings[0].setup(),
            tx: rings[1].setup(),
        };
        let positions = self.controls[pair].apply(setup);
        for (ring, position) in rings.iter_mut().zip([positions.rx, positions.tx]) {
            if let Some(position) = position {
                ring.set_next_avail(position);
            }
        }
    }

    /// A panic elsewhere while the lock was held leaves the state usable: each change is complete
    /// before anything that can panic is called.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
