//! A tap by its name: whether it is still the one that a queue was opened on, and the way to the
//! next one of that name.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use log::{info, warn};
use rustix::net::netdevice::name_to_index;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::{FLAGS, Persistence, TapError, attach_error, bring_to_known_state, open_tun, setup};
use crate::sys::ifreq::{tun_get_iff, tun_set_iff, tun_set_persist};
use crate::sys::{NetDevice, net_device};
use crate::uplink::link_events::LinkEvents;

/// How a tap is opened.
#[derive(Clone, Debug)]
pub(super) struct TapDevice {
    pub(super) name: String,
    /// `IFF_MULTI_QUEUE` or nothing.
    pub(super) mode: u16,
    pub(super) persistence: Persistence,
}

impl TapDevice {
    /// Opens one more queue, and creates the device if there is none.
    pub(super) fn attach(&self, pairs: usize) -> Result<OwnedFd, TapError> {
        let fd = open_tun()?;
        tun_set_iff(fd.as_fd(), &self.name, FLAGS | self.mode)
            .map_err(|err| attach_error(&self.name, pairs, err))?;
        Ok(fd)
    }

    /// Sets whether the device stays without us, as the operator wants it.
    pub(super) fn persist(&self, fd: BorrowedFd<'_>) -> Result<(), TapError> {
        let is_persistent = match self.persistence {
            Persistence::Unchanged => return Ok(()),
            Persistence::Persistent => true,
            Persistence::Temporary => false,
        };
        tun_set_persist(fd, is_persistent).map_err(setup("change the persistence", &self.name))
    }
}

/// Follows a tap for one of its queues.
#[derive(Debug)]
pub(super) struct Follower {
    device: TapDevice,
    events: LinkEvents,
    /// What a queue has in place of a descriptor while there is no device: never readable, never
    /// writable.
    nothing: OwnedFd,
    is_there: bool,
    /// Whether it works, as was found last.
    is_up: bool,
    has_complained: bool,
    pub(super) generation: u64,
}

impl Follower {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(device: TapDevice) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self {
            device,
            events: LinkEvents::new()?,
            nothing: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            is_there: true,
            is_up: true,
            has_complained: false,
            generation: 0,
        })
    }

    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(super) const fn is_there(&self) -> bool {
        self.is_there
    }

    /// Takes what the kernel says; says whether it is time to look.
    ///
    /// A look waits for the lock that all changes of interfaces take, so it is not for each of them.
    pub(super) fn hear(&self) -> bool {
        self.events.take() || !self.is_there
    }

    /// Says when the device was set down or up, of which the guest is told nothing. It is taken to
    /// be up at first.
    pub(super) fn note_state(&mut self) {
        let name = &self.device.name;
        if !self.is_there {
            return;
        }
        // One that was renamed or moved away is not looked for.
        let Ok(NetDevice { is_running, .. }) = net_device(self.events.as_fd(), name) else {
            return;
        };
        match (core::mem::replace(&mut self.is_up, is_running), is_running) {
            (true, false) => warn!("tap {name} is down"),
            (false, true) => info!("tap {name} is up"),
            _ => {}
        }
    }

    /// Gives what takes the place of `fd`: if its device is gone, a descriptor on the next one, or
    /// one on nothing.
    pub(super) fn follow(&mut self, fd: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let name = &self.device.name;
        let was_there = self.is_there;
        // The descriptor knows, wherever the device was moved or however it is called by now.
        if was_there && tun_get_iff(fd).is_ok() {
            return Ok(None);
        }
        self.is_there = false;
        if was_there {
            warn!("tap {name} is gone; the next one of that name is waited for");
        }
        match self.find() {
            Ok(Some(fd)) => {
                info!("tap {name} is there again");
                self.is_there = true;
                self.has_complained = false;
                self.generation += 1;
                return Ok(Some(fd));
            }
            Ok(None) => {}
            // Whoever makes it may have it open for a moment. Later changes ask again.
            Err(TapError::Busy { .. }) => {}
            Err(error) if !self.has_complained => {
                self.has_complained = true;
                warn!("tap {name} is there again, and no use: {error}");
            }
            Err(_) => {}
        }
        if !was_there {
            return Ok(None);
        }
        self.generation += 1;
        self.nothing.try_clone().map(Some)
    }

    /// A queue of the device that has the name now.
    fn find(&self) -> Result<Option<OwnedFd>, TapError> {
        // A device that is not there would be made, and nobody would have asked for it.
        if name_to_index(&self.events, &self.device.name).is_err() {
            return Ok(None);
        }
        let fd = self.device.attach(1)?;
        bring_to_known_state(&self.device.name, fd.as_fd())?;
        self.device.persist(fd.as_fd())?;
        Ok(Some(fd))
    }
}
