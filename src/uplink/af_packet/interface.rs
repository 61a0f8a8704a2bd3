//! The interface that all queues of an uplink are attached to, by its name.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use super::error::AfPacketError;
use super::filter::Mac;
use crate::sys::NetDevice;
use crate::sys::packet::join_fanout;
use crate::uplink::if_name::name_fault;
use crate::uplink::interface;

/// How an interface is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfPacketConfig {
    /// The guest's addresses; without any, all frames are received.
    pub macs: Vec<Mac>,
    /// Slots of the ring of each queue, a power of two from 16 up.
    pub slots: usize,
    /// The guest sees the state of the interface as that of its link.
    pub shows_link: bool,
    /// Send past the queueing discipline of the interface.
    pub qdisc_bypass: bool,
}

/// An interface as the operator named it, and what its queues have in common.
#[derive(Debug)]
pub(super) struct Interface {
    name: String,
    queues: usize,
    config: AfPacketConfig,
    /// The group among which frames are spread: index of the interface, and id. Locked when a
    /// queue is attached, never for a frame.
    group: Mutex<Option<(u32, u16)>>,
}

impl Interface {
    pub(super) fn new(
        name: &str,
        queues: usize,
        config: AfPacketConfig,
    ) -> Result<Self, AfPacketError> {
        if let Some(reason) = name_fault(name) {
            return Err(AfPacketError::Name {
                name: name.to_owned(),
                reason,
            });
        }
        Ok(Self {
            name: name.to_owned(),
            queues,
            config,
            group: Mutex::new(None),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn macs(&self) -> &[Mac] {
        &self.config.macs
    }

    pub(super) const fn slots(&self) -> usize {
        self.config.slots
    }

    pub(super) const fn shows_link(&self) -> bool {
        self.config.shows_link
    }

    pub(super) const fn is_bypassing_qdisc(&self) -> bool {
        self.config.qdisc_bypass
    }

    /// Finds the interface: the one with the index `attached` if it is there still, whatever it is
    /// called by now, else the one with the name.
    pub(super) fn find(
        &self,
        socket: BorrowedFd<'_>,
        attached: Option<u32>,
    ) -> Result<(u32, NetDevice), AfPacketError> {
        let (index, state) = interface::find(socket, &self.name, attached)
            .map_err(AfPacketError::setup("find the interface", &self.name))?;
        if !state.is_ethernet {
            return Err(AfPacketError::NotEthernet {
                name: self.name.clone(),
            });
        }
        Ok((index, state))
    }

    /// Lets the frames of the interface `index` be spread over this socket, too.
    pub(super) fn join(&self, socket: BorrowedFd<'_>, index: u32) -> Result<(), AfPacketError> {
        if self.queues < 2 {
            return Ok(());
        }
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let id = group.and_then(|(of, id)| (of == index).then_some(id));
        // A group ends with its last socket, and its id may be somebody else's by now: but the
        // first queue stays in as long as the interface is there.
        let id = join_fanout(socket, id).map_err(|source| AfPacketError::Fanout {
            name: self.name.clone(),
            source,
        })?;
        *group = Some((index, id));
        Ok(())
    }
}
