//! A split ring on cached host addresses: positions, batched used entries, notification state.
//!
//! Source: virtio 1.2, 2.7 "Split Virtqueues".

use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

use super::notify::{CallGate, Wanted};
use crate::sys::{Descriptor, GuestMap, RingArea};

/// Largest ring of the specification.
const SIZE_MAX: u16 = 32768;
/// `VIRTQ_USED_F_NO_NOTIFY`: the guest need not kick.
const NO_NOTIFY: u16 = 1;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`: the guest need not be interrupted.
const NO_INTERRUPT: u16 = 1;

/// What the guest set up, all of it untrusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingConfig {
    /// Entries, a power of two up to 32768.
    pub size: u16,
    /// Guest physical address of the descriptor table, a multiple of 16.
    pub desc: u64,
    /// Guest physical address of the available ring, a multiple of 2.
    pub avail: u64,
    /// Guest physical address of the used ring, a multiple of 4.
    pub used: u64,
    /// Position to start at, for both the available and the used ring.
    pub next_avail: u16,
    /// `VIRTIO_F_EVENT_IDX` was acked.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was acked.
    pub indirect: bool,
}

/// Why a ring can not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The size is 0, no power of two, or above 32768.
    #[error("ring size {0} is no power of two from 1 to 32768")]
    Size(u16),
    /// The descriptor table is not aligned to 16 bytes.
    #[error("descriptor table at {0:#x} is not aligned to 16")]
    DescriptorTableAlignment(u64),
    /// The available ring is not aligned to 2 bytes.
    #[error("available ring at {0:#x} is not aligned to 2")]
    AvailRingAlignment(u64),
    /// The used ring is not aligned to 4 bytes.
    #[error("used ring at {0:#x} is not aligned to 4")]
    UsedRingAlignment(u64),
    /// A part of the ring lies outside guest memory.
    #[error("the ring lies outside guest memory")]
    OutsideMemory,
    /// A part of the ring crosses from one memory region into the next.
    #[error("the ring crosses a border between memory regions")]
    CrossesRegions,
}

/// What broke a running ring; it is not served until it is set up anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// The guest claims more new buffers than the ring has entries.
    #[error("available index {avail} is more than the ring size ahead of {position}")]
    AvailIndex {
        /// What the guest wrote.
        avail: u16,
        /// Where we are.
        position: u16,
    },
    /// An entry of the available ring names a descriptor beyond the table.
    #[error("available entry names descriptor {0}, which is beyond the table")]
    HeadIndex(u16),
}

/// One running ring. Entries are used in the order in which they were made available.
#[derive(Debug)]
pub struct SplitRing {
    area: RingArea,
    map: Rc<GuestMap>,
    event_idx: bool,
    indirect: bool,
    /// Next entry of the available ring to take.
    next_avail: u16,
    /// `avail.idx` when it was last read, at most `size` ahead of `next_avail`.
    avail_seen: u16,
    /// Next entry of the used ring to write.
    next_used: u16,
    /// `used.idx` as the guest knows it.
    published: u16,
    call_gate: CallGate,
}

impl SplitRing {
    /// Checks the configuration and finds the ring in guest memory.
    ///
    /// # Errors
    /// The guest's configuration is not valid; the ring must not be started.
    pub fn new(config: RingConfig, map: Rc<GuestMap>) -> Result<Self, RingFault> {
        validate(&config, &map)?;
        let area = RingArea::new(&map, config.size, config.desc, config.avail, config.used)
            .ok_or(RingFault::CrossesRegions)?;
        Ok(Self {
            area,
            map,
            event_idx: config.event_idx,
            indirect: config.indirect,
            next_avail: config.next_avail,
            avail_seen: config.next_avail,
            next_used: config.next_avail,
            published: config.next_avail,
            call_gate: CallGate::default(),
        })
    }

    /// Entries of the ring.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.area.size()
    }

    /// The guest memory that the ring's buffers lie in.
    #[must_use]
    pub const fn map(&self) -> &Rc<GuestMap> {
        &self.map
    }

    /// Whether chains may have an indirect table.
    #[must_use]
    pub const fn allows_indirect(&self) -> bool {
        self.indirect
    }

    /// Where a later run must start: everything before it was used, nothing from it on.
    #[must_use]
    pub const fn position(&self) -> u16 {
        self.next_used
    }

    /// The descriptor with this index, `None` beyond the table.
    #[must_use]
    pub fn descriptor(&self, index: u16) -> Option<Descriptor> {
        self.area.descriptor(index)
    }

    /// Reads the available index and says how many entries wait.
    ///
    /// # Errors
    /// The index is more than the ring size ahead.
    pub fn available(&mut self) -> Result<u16, QueueFault> {
        let avail = self.area.avail_idx();
        let waiting = avail.wrapping_sub(self.next_avail);
        // Entries that were taken but not used yet can not have come back, so they count too.
        if avail.wrapping_sub(self.next_used) > self.size() {
            return Err(QueueFault::AvailIndex {
                avail,
                position: self.next_avail,
            });
        }
        self.avail_seen = avail;
        Ok(waiting)
    }

    /// Takes the next entry: the head of a descriptor chain, below the ring size.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn pop(&mut self) -> Result<Option<u16>, QueueFault> {
        if self.next_avail == self.avail_seen && self.available()? == 0 {
            return Ok(None);
        }
        let head = self.area.avail_head(self.next_avail);
        if head >= self.size() {
            return Err(QueueFault::HeadIndex(head));
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(head))
    }

    /// Gives the last `count` taken entries back, to be taken again. Entries that were used stay
    /// used.
    pub fn rewind(&mut self, count: u16) {
        let taken = self.next_avail.wrapping_sub(self.next_used);
        self.next_avail = self.next_avail.wrapping_sub(count.min(taken));
    }

    /// Writes the next used entry: the chain with this head, of which the device wrote `len`
    /// bytes. The guest sees it at the next [`publish`](Self::publish).
    pub fn stage_used(&mut self, head: u16, len: u32) {
        self.area.write_used(self.next_used, head, len);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows the guest all staged entries with one store. Says whether there were any.
    pub fn publish(&mut self) -> bool {
        if self.published == self.next_used {
            return false;
        }
        self.area.publish_used(self.next_used);
        self.published = self.next_used;
        true
    }

    /// Asks the guest to kick when it adds an entry beyond those last seen by
    /// [`available`](Self::available). Says whether more have been added meanwhile, for which no
    /// kick will come (rule TX-11).
    ///
    /// # Errors
    /// The ring is broken.
    pub fn enable_notifications(&mut self) -> Result<bool, QueueFault> {
        if self.event_idx {
            self.area.set_avail_event(self.avail_seen);
        } else {
            self.area.set_used_flags(0);
        }
        // The guest stores its index and then loads ours or the flag; we store and then load.
        // Only a full fence on both sides makes sure that one of us sees the other.
        fence(Ordering::SeqCst);
        let seen = self.avail_seen;
        self.available()?;
        Ok(self.avail_seen != seen)
    }

    /// Tells the guest that it need not kick. With event index there is nothing to do: a kick
    /// comes only when the index passes the one last asked for.
    pub fn disable_notifications(&mut self) {
        if !self.event_idx {
            self.area.set_used_flags(NO_NOTIFY);
        }
    }

    /// Decides once for everything published since the last decision whether the guest is to be
    /// interrupted (rule FILL-6).
    pub fn needs_notification(&mut self) -> bool {
        if self.call_gate.is_settled(self.published) {
            return false;
        }
        // Our index must be visible before we look at what the guest asks for; see above.
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            Wanted::From(self.area.used_event())
        } else if self.area.avail_flags() & NO_INTERRUPT == 0 {
            Wanted::Always
        } else {
            Wanted::Never
        };
        self.call_gate.decide(self.published, wanted)
    }
}

/// Lets `virtio-queue` judge the configuration.
fn validate(config: &RingConfig, map: &GuestMap) -> Result<(), RingFault> {
    // Creating it with the largest size can not fail; a failure is reported as a bad size.
    let mut queue = Queue::new(SIZE_MAX).map_err(|_| RingFault::Size(config.size))?;
    queue
        .try_set_size(config.size)
        .map_err(|_| RingFault::Size(config.size))?;
    queue
        .try_set_desc_table_address(GuestAddress(config.desc))
        .map_err(|_| RingFault::DescriptorTableAlignment(config.desc))?;
    queue
        .try_set_avail_ring_address(GuestAddress(config.avail))
        .map_err(|_| RingFault::AvailRingAlignment(config.avail))?;
    queue
        .try_set_used_ring_address(GuestAddress(config.used))
        .map_err(|_| RingFault::UsedRingAlignment(config.used))?;
    queue.set_ready(true);
    if queue.is_valid(map.memory().as_ref()) {
        Ok(())
    } else {
        Err(RingFault::OutsideMemory)
    }
}
