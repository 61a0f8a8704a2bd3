//! An interface that an uplink is attached to: where it is, and whether it works.

use std::fmt::Display;
use std::io;
use std::os::fd::BorrowedFd;

use log::{info, warn};
use rustix::net::netdevice::{index_to_name, name_to_index};

use crate::sys::{NetDevice, net_device};

/// Finds an interface: the one with the index `attached` if it is there still, whatever it is
/// called by now, else the one with the name.
pub(super) fn find(
    socket: BorrowedFd<'_>,
    name: &str,
    attached: Option<u32>,
) -> io::Result<(u32, NetDevice)> {
    if let Some(index) = attached
        && let Ok(name) = index_to_name(socket, index)
        && let Ok(state) = net_device(socket, &name)
    {
        return Ok((index, state));
    }
    let index = name_to_index(socket, name)?;
    Ok((index, net_device(socket, name)?))
}

/// Whether an interface works, as it was found last.
#[derive(Debug)]
pub(super) struct Carrier {
    is_up: bool,
}

impl Carrier {
    /// It is taken to be up, and looked at before long.
    pub(super) const fn new() -> Self {
        Self { is_up: true }
    }

    pub(super) const fn is_up(&self) -> bool {
        self.is_up
    }

    /// Notes what was found, and says so if it is something else than before.
    pub(super) fn note<E: Display>(&mut self, name: &str, found: &Result<NetDevice, E>) {
        let is_up = matches!(found, Ok(state) if state.is_running);
        if core::mem::replace(&mut self.is_up, is_up) == is_up {
            return;
        }
        match found {
            Ok(_) if is_up => info!("interface {name} is up"),
            Ok(_) => warn!("interface {name} is down"),
            Err(error) => warn!("interface {name} is away: {error}"),
        }
    }
}
