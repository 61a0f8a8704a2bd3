//! The interface that all queues of an uplink are attached to, by its name.
//!
//! What would go wrong unseen is refused before anything is attached: queues that nobody reads,
//! frames that do not fit, frames that the host has merged.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use log::warn;

use super::error::AfXdpError;
use super::redirect::Redirect;
use crate::sys::bpf::XdpPlace;
use crate::sys::ethtool::{is_veth, merges, receive_queues, takes_tags_out};
use crate::sys::{KERNEL_HEADROOM, NetDevice, UMEM_HEADROOM, XdpShape};
use crate::uplink::af_packet::Mac;
use crate::uplink::if_name::name_fault;
use crate::uplink::interface;

/// Ethernet header and two tags.
pub(super) const LINK_LEN: usize = 14 + 8;
/// Sizes of a chunk. The kernel takes no larger one than a page.
const CHUNK_LENS: [u32; 2] = [2048, 4096];

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver if it can, else in the stack.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the stack.
    Generic,
}

/// How an interface is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfXdpConfig {
    /// The guest's addresses; without any, all frames are received.
    pub macs: Vec<Mac>,
    /// Frames that each queue can receive without being read, a power of two from 64 up.
    pub ring: u32,
    /// Where the program runs.
    pub mode: Mode,
    /// A checksum that looks unfinished is one, on a frame of a sender on this host. If nobody
    /// says, that is so at a veth.
    pub unfinished: Option<bool>,
    /// The guest sees the state of the interface as that of its link.
    pub shows_link: bool,
}

/// An interface as the operator named it, and what its queues have in common.
#[derive(Debug)]
pub(super) struct Interface {
    name: String,
    queues: usize,
    config: AfXdpConfig,
    /// The program at the interface, which is there as long as a queue is attached. Locked when
    /// one is, never for a frame.
    redirect: Mutex<Weak<Redirect>>,
}

impl Interface {
    pub(super) fn new(name: &str, queues: usize, config: AfXdpConfig) -> Result<Self, AfXdpError> {
        if let Some(reason) = name_fault(name) {
            return Err(AfXdpError::Name {
                name: name.to_owned(),
                reason,
            });
        }
        Ok(Self {
            name: name.to_owned(),
            queues,
            config,
            redirect: Mutex::new(Weak::new()),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn config(&self) -> &AfXdpConfig {
        &self.config
    }

    pub(super) const fn queues(&self) -> usize {
        self.queues
    }

    /// Finds the interface: the one with the index `attached` if it is there still, whatever it is
    /// called by now, else the one with the name.
    pub(super) fn find(
        &self,
        socket: BorrowedFd<'_>,
        attached: Option<u32>,
    ) -> Result<(u32, NetDevice), AfXdpError> {
        let (index, state) = interface::find(socket, &self.name, attached).map_err(
            AfXdpError::setup("find the interface", &self.name, "CAP_NET_ADMIN"),
        )?;
        if !state.is_ethernet {
            return Err(AfXdpError::NotEthernet {
                name: self.name.clone(),
            });
        }
        Ok((index, state))
    }

    /// How the memory of a queue is divided for frames of this MTU.
    pub(super) fn shape(&self, mtu: usize) -> Result<XdpShape, AfXdpError> {
        let fits = |len: &u32| mtu <= longest(*len);
        let Some(chunk_len) = CHUNK_LENS.into_iter().find(fits) else {
            return Err(AfXdpError::Mtu {
                name: self.name.clone(),
                mtu,
                most: CHUNK_LENS.into_iter().map(longest).max().unwrap_or(0),
            });
        };
        Ok(XdpShape {
            receiving: self.config.ring,
            sending: self.config.ring / 2,
            chunk_len,
        })
    }

    /// The program at the interface `index`, which is put there if it is not there yet.
    pub(super) fn redirect(
        &self,
        socket: BorrowedFd<'_>,
        index: u32,
    ) -> Result<Arc<Redirect>, AfXdpError> {
        let mut redirect = self.redirect.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = redirect.upgrade().filter(|there| there.index() == index) {
            return Ok(there);
        }
        self.check_queues(socket)?;
        let has_unfinished = match self.config.unfinished {
            Some(has_unfinished) => has_unfinished,
            None => is_veth(socket, &self.name).unwrap_or(false),
        };
        let made = Arc::new(Redirect::attach(self, index, has_unfinished)?);
        self.check_offloads(socket, made.place())?;
        *redirect = Arc::downgrade(&made);
        Ok(made)
    }

    /// Has no further queue share a program at an interface that is gone.
    pub(super) fn forget(&self, gone: &Arc<Redirect>) {
        let mut redirect = self.redirect.lock().unwrap_or_else(PoisonError::into_inner);
        if redirect.as_ptr() == Arc::as_ptr(gone) {
            *redirect = Weak::new();
        }
    }

    /// Each receive queue needs a socket, and each socket a queue.
    fn check_queues(&self, socket: BorrowedFd<'_>) -> Result<(), AfXdpError> {
        let setup = AfXdpError::setup("count the queues", &self.name, "CAP_NET_ADMIN");
        // A driver that does not say has one, and so has a tap that nobody reads.
        let said = receive_queues(socket, &self.name).map_err(setup)?;
        let found = said.unwrap_or(1).max(1);
        if found == self.queues {
            return Ok(());
        }
        Err(AfXdpError::Queues {
            name: self.name.clone(),
            found,
            wanted: self.queues,
        })
    }

    /// Says what cannot be seen of a frame.
    fn check_offloads(&self, socket: BorrowedFd<'_>, place: XdpPlace) -> Result<(), AfXdpError> {
        let setup = || AfXdpError::setup("ask for offloads", &self.name, "CAP_NET_ADMIN");
        let name = &self.name;
        if place == XdpPlace::Stack && merges(socket, name).map_err(setup())? {
            return Err(AfXdpError::Merges { name: name.clone() });
        }
        if takes_tags_out(socket, name).map_err(setup())? {
            warn!(
                "a VLAN tag that {name} takes out of a frame is lost: if there are any, switch \
                 that off with 'ethtool -K {name} rxvlan off', at a veth 'txvlan off' at its peer"
            );
        }
        Ok(())
    }
}

/// The largest MTU for chunks of this size, in bytes.
pub(super) const fn longest(chunk_len: u32) -> usize {
    (chunk_len - UMEM_HEADROOM - KERNEL_HEADROOM) as usize - LINK_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f60_a_chunk_holds_a_frame_of_the_mtu_with_two_tags() {
        let config = AfXdpConfig {
            macs: Vec::new(),
            ring: 64,
            mode: Mode::Auto,
            unfinished: None,
            shows_link: true,
        };
        let interface = Interface::new("eth1", 1, config).unwrap();
        let chunk_len = |mtu| interface.shape(mtu).ok().map(|shape| shape.chunk_len);
        assert_eq!(chunk_len(1500), Some(2048));
        assert_eq!(chunk_len(2048 - 16 - 256 - 22), Some(2048));
        assert_eq!(chunk_len(2049 - 16 - 256 - 22), Some(4096));
        assert_eq!(chunk_len(4096 - 16 - 256 - 22), Some(4096));
        assert_eq!(chunk_len(4097 - 16 - 256 - 22), None);
    }
}
