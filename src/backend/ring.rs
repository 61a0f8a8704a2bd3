//! What the front-end has said about one ring, and whether that is enough to serve it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use log::{info, warn};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use virtio_queue::{Error as QueueError, Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::worker::RingSetup;

/// Numbers the starts of all rings of the process, so that none is taken for another.
static STARTS: AtomicU64 = AtomicU64::new(1);

/// One ring. It is *started* by its kick message and stopped by `GET_VRING_BASE`; it is *enabled*
/// by a message of its own, in any order with the former. Started and with a configuration that
/// lies in the guest's memory it is *served*: then a data thread owns its position.
///
/// Source: vhost-user protocol, "Ring states".
#[derive(Debug)]
pub(super) struct Ring {
    index: usize,
    queue: Queue,
    has_legal_size: bool,
    is_started: bool,
    is_enabled: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    err: Option<Arc<OwnedFd>>,
    /// Set while the ring is served.
    epoch: Option<u64>,
    /// Whether it was said that this start cannot be served.
    was_refused: bool,
    /// Whether the next kick without descriptor is the one that ends a stop.
    expects_kick_removal: bool,
    /// Whether it was said that a descriptor of this ring is of the wrong kind.
    has_refused_descriptor: bool,
}

impl Ring {
    /// A ring that nothing is known about.
    ///
    /// # Errors
    /// When `size_max` is not a power of two up to 32768.
    pub(super) fn new(index: usize, size_max: u16) -> Result<Self, QueueError> {
        Ok(Self {
            index,
            queue: Queue::new(size_max)?,
            has_legal_size: true,
            is_started: false,
            is_enabled: false,
            kick: None,
            call: None,
            err: None,
            epoch: None,
            was_refused: false,
            expects_kick_removal: false,
            has_refused_descriptor: false,
        })
    }

    /// Sets the number of entries. One that is not a power of two within the limit keeps the ring
    /// from being served.
    pub(super) fn set_size(&mut self, size: u16) {
        self.has_legal_size = self.queue.try_set_size(size).is_ok();
        self.was_refused = false;
    }

    /// Sets where the three parts lie, in guest physical addresses.
    ///
    /// # Errors
    /// When a part is not aligned.
    pub(super) fn set_addresses(
        &mut self,
        desc_table: u64,
        avail_ring: u64,
        used_ring: u64,
    ) -> Result<(), QueueError> {
        self.was_refused = false;
        self.queue
            .try_set_desc_table_address(GuestAddress(desc_table))?;
        self.queue
            .try_set_avail_ring_address(GuestAddress(avail_ring))?;
        self.queue
            .try_set_used_ring_address(GuestAddress(used_ring))
    }

    pub(super) fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    pub(super) fn set_next_avail(&mut self, base: u16) {
        self.queue.set_next_avail(base);
    }

    pub(super) fn set_enabled(&mut self, is_enabled: bool) {
        self.is_enabled = is_enabled;
    }

    /// Takes the kick, which starts the ring. `None` is a guest that never kicks, unless a stop
    /// is being ended.
    pub(super) fn set_kick(&mut self, kick: Option<File>) {
        let is_removal = std::mem::take(&mut self.expects_kick_removal) && kick.is_none();
        self.kick = kick.map(event);
        if !is_removal {
            self.is_started = true;
        }
    }

    pub(super) fn set_call(&mut self, call: Option<File>) {
        self.call = call.and_then(|file| self.written_to(file, "call"));
    }

    pub(super) fn set_err(&mut self, err: Option<File>) {
        self.err = err.and_then(|file| self.written_to(file, "error"));
    }

    /// Stops the ring; its position stays.
    pub(super) fn stop(&mut self) {
        self.is_started = false;
        self.was_refused = false;
        self.expects_kick_removal = true;
    }

    /// Forgets everything but the index and what interrupts the front-end.
    pub(super) fn reset(&mut self) {
        self.queue.reset();
        self.has_legal_size = true;
        self.is_started = false;
        self.is_enabled = false;
        self.kick = None;
        self.was_refused = false;
        self.expects_kick_removal = false;
    }

    pub(super) fn is_served(&self) -> bool {
        self.epoch.is_some()
    }

    /// Finds out whether the ring can be served from this memory, and begins a new epoch when it
    /// could not before.
    pub(super) fn settle(&mut self, memory: Option<&GuestMemoryMmap>) {
        let can_be_served = self.is_started && self.lies_in(memory);
        if !can_be_served {
            self.epoch = None;
        } else if self.epoch.is_none() {
            self.epoch = Some(STARTS.fetch_add(1, Ordering::Relaxed));
            info!(
                "ring {} started: {} entries from index {}",
                self.index,
                self.queue.size(),
                self.queue.next_avail()
            );
        }
        if self.is_started && !can_be_served && !self.was_refused {
            self.was_refused = true;
            self.report_refusal();
        }
    }

    /// The ring as a data thread needs it, when it is served.
    pub(super) fn setup(&self) -> Option<RingSetup> {
        Some(RingSetup {
            epoch: self.epoch?,
            size: self.queue.size(),
            desc_table: self.queue.desc_table(),
            avail_ring: self.queue.avail_ring(),
            used_ring: self.queue.used_ring(),
            next_avail: self.queue.next_avail(),
            enabled: self.is_enabled,
            kick: self.kick.clone(),
            call: self.call.clone(),
            err: self.err.clone(),
        })
    }

    /// Takes a descriptor that a data thread is going to write to.
    ///
    /// Being non-blocking is a property that the front-end shares and can take back at any time,
    /// and then a full pipe or socket would stop the thread for good. An event descriptor is full
    /// only after 2^64 - 2 interrupts that nobody took, or if somebody wrote that number.
    fn written_to(&mut self, file: File, which: &str) -> Option<Arc<OwnedFd>> {
        if is_event(&file) {
            return Some(event(file));
        }
        if !std::mem::replace(&mut self.has_refused_descriptor, true) {
            warn!(
                "ring {}: the {which} descriptor is no event descriptor, it is not used",
                self.index
            );
        }
        None
    }

    fn lies_in(&mut self, memory: Option<&GuestMemoryMmap>) -> bool {
        let Some(memory) = memory else { return false };
        self.queue.set_ready(true);
        self.has_legal_size && self.queue.is_valid(memory)
    }

    /// Says that the ring cannot be served, here and to the front-end.
    fn report_refusal(&self) {
        warn!(
            "ring {} cannot be served: its size or its place in memory is wrong",
            self.index
        );
        if let Some(err) = &self.err {
            let _ = rustix::io::write(err, &1_u64.to_ne_bytes());
        }
    }
}

/// Whether the descriptor is an event descriptor. Only `/proc` says so; without it, all pass.
///
/// Source: proc_pid_fd(5).
fn is_event(file: &File) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
        || !Path::new("/proc/self/fd").exists()
}

/// Takes over an event descriptor of the front-end. Whatever it really is, no read or write of
/// ours shall ever wait for it.
fn event(file: File) -> Arc<OwnedFd> {
    let fd = OwnedFd::from(file);
    let made_nonblocking =
        fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(fd.as_fd(), flags | OFlags::NONBLOCK));
    if let Err(error) = made_nonblocking {
        warn!("event descriptor cannot be made non-blocking: {error}");
    }
    Arc::new(fd)
}
