//! A ring as the framework sees it: forwards what the front-end says to [`Pairs`].
//!
//! The framework would serve rings on a worker of its own. Here it has no workers, and the
//! [`VringMutex`] that its trait demands stays untouched: without a kick it never becomes ready
//! there. Rings are started, stopped and served by us alone.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost_user_backend::{VringMutex, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error as QueueError;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::pairs::Pairs;
use super::ring::Ring;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

thread_local! {
    /// The session that this thread is making rings for, and the number of the next one.
    static IN_THE_MAKING: RefCell<Option<(Arc<Pairs>, usize)>> = const { RefCell::new(None) };
}

/// Runs `make`, in which the framework makes the rings of this session, in order of their index.
pub(super) fn making_rings_of<T>(pairs: &Arc<Pairs>, make: impl FnOnce() -> T) -> T {
    IN_THE_MAKING.set(Some((Arc::clone(pairs), 0)));
    let made = make();
    IN_THE_MAKING.set(None);
    made
}

/// One ring of a session.
#[derive(Clone)]
pub(super) struct Vring {
    pairs: Arc<Pairs>,
    index: usize,
    unused: VringMutex<Memory>,
}

impl Vring {
    fn change<T>(&self, set: impl FnOnce(&mut Ring) -> T) -> T {
        self.pairs.change(self.index, set)
    }
}

impl<'a> VringStateGuard<'a, Memory> for Vring {
    type G = <VringMutex<Memory> as VringStateGuard<'a, Memory>>::G;
}

impl<'a> VringStateMutGuard<'a, Memory> for Vring {
    type G = <VringMutex<Memory> as VringStateMutGuard<'a, Memory>>::G;
}

impl VringT<Memory> for Vring {
    /// Makes the next ring of the session named by [`making_rings_of`].
    fn new(memory: Memory, size_max: u16) -> Result<Self, QueueError> {
        let unused = VringMutex::new(memory, size_max)?;
        IN_THE_MAKING.with_borrow_mut(|making| {
            let (pairs, next) = making.as_mut().ok_or(QueueError::QueueNotReady)?;
            let index = *next;
            *next += 1;
            Ok(Self {
                pairs: Arc::clone(pairs),
                index,
                unused,
            })
        })
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.unused.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.unused.get_mut()
    }

    fn set_queue_size(&self, size: u16) {
        self.change(|ring| ring.set_size(size));
    }

    fn set_queue_info(&self, desc: u64, avail: u64, used: u64) -> Result<(), QueueError> {
        self.change(|ring| ring.set_addresses(desc, avail, used))
    }

    fn queue_next_avail(&self) -> u16 {
        self.pairs.read(self.index, Ring::next_avail)
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.change(|ring| ring.set_next_avail(base));
    }

    /// The data thread starts both indices at the base.
    fn set_queue_next_used(&self, _index: u16) {}

    fn queue_used_idx(&self) -> Result<u16, QueueError> {
        Ok(self.queue_next_avail())
    }

    /// Only ever said to stop the ring: readiness depends on a kick that is not kept there.
    fn set_queue_ready(&self, is_ready: bool) {
        if !is_ready {
            self.change(Ring::stop);
        }
    }

    fn set_enabled(&self, is_enabled: bool) {
        self.change(|ring| ring.set_enabled(is_enabled));
    }

    /// The feature reaches the data thread with all others.
    fn set_queue_event_idx(&self, _is_enabled: bool) {}

    fn set_kick(&self, kick: Option<File>) {
        self.change(|ring| ring.set_kick(kick));
    }

    fn set_call(&self, call: Option<File>) {
        self.change(|ring| ring.set_call(call));
    }

    fn set_err(&self, err: Option<File>) {
        self.change(|ring| ring.set_err(err));
    }

    // What follows is for workers of the framework, of which there are none.

    fn add_used(&self, head: u16, len: u32) -> Result<(), QueueError> {
        self.unused.add_used(head, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.unused.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, QueueError> {
        self.unused.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), QueueError> {
        self.unused.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, QueueError> {
        self.unused.needs_notification()
    }

    fn read_kick(&self) -> io::Result<bool> {
        self.unused.read_kick()
    }
}
