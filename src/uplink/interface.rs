//! An interface that an uplink is attached to: where it is, and whether it works.

use std::error::Error;
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
    /// Why it is away.
    fault: Option<String>,
}

impl Carrier {
    /// It is taken to be up, and looked at before long.
    pub(super) const fn new() -> Self {
        Self {
            is_up: true,
            fault: None,
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        self.is_up
    }

    /// Notes what was found, and says so if it is something else than before.
    pub(super) fn note<E: Error>(&mut self, name: &str, found: &Result<NetDevice, E>) {
        if !self.is_news(found) {
            return;
        }
        match &self.fault {
            None if self.is_up => info!("interface {name} is up"),
            None => warn!("interface {name} is down"),
            Some(fault) => warn!("interface {name} is away: {fault}"),
        }
    }

    fn is_news<E: Error>(&mut self, found: &Result<NetDevice, E>) -> bool {
        let is_up = matches!(found, Ok(state) if state.is_running);
        let fault = found.as_ref().err().map(with_causes);
        let is_news = self.is_up != is_up || self.fault != fault;
        *self = Self { is_up, fault };
        is_news
    }
}

/// The text of an error and of what caused it.
fn with_causes<E: Error>(error: &E) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f40_each_reason_why_an_interface_is_away_is_told_once() {
        let mut carrier = Carrier::new();
        let state = |is_running| {
            Ok::<_, io::Error>(NetDevice {
                is_running,
                mtu: 1500,
                is_ethernet: true,
            })
        };
        let away = |text: &str| Err::<NetDevice, _>(io::Error::other(text.to_owned()));
        assert!(!carrier.is_news(&state(true)));
        for found in [
            away("it is gone"),
            away("no memory"),
            state(false),
            state(true),
        ] {
            assert!(carrier.is_news(&found), "{found:?}");
            assert!(!carrier.is_news(&found), "{found:?}");
        }
    }
}
