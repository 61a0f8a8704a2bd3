//! What an interface had counted when it was deleted, by the kernel's announcement of its end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::counters::InterfaceCounters;
use super::wait::wait_for;

// Source: `include/uapi/linux/rtnetlink.h`, `include/uapi/linux/if_link.h`.
const LINK_EVENTS: u32 = 1;
const RTM_DELLINK: u16 = 17;
const IFLA_IFNAME: u16 = 3;
const IFLA_STATS64: u16 = 23;
/// A message's header, and that of one about a link.
const HEADERS: usize = 16 + 16;

/// Hears of every interface that goes.
pub(crate) struct Farewells {
    socket: OwnedFd,
    heard: Vec<(String, InterfaceCounters)>,
}

impl Farewells {
    /// Listens from now on, in the namespace of the calling thread.
    pub(crate) fn listen() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINK_EVENTS))?;
        Ok(Farewells {
            socket,
            heard: Vec::new(),
        })
    }

    /// What the interface `name` had counted at its end, which it waits for.
    pub(crate) fn of(&mut self, name: &str) -> Result<InterfaceCounters> {
        let what = format!("the end of {name}");
        wait_for(&what, Duration::from_secs(5), || {
            let mut bytes = [0; 32_768];
            while let Ok((_, len)) = recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                self.heard.extend(last_words(&bytes[..len])?);
            }
            let of_name = self.heard.iter().find(|(other, _)| other == name);
            Ok(of_name.map(|(_, counters)| *counters))
        })
    }
}

/// Name and counters of each interface that ends by these messages.
fn last_words(mut bytes: &[u8]) -> Result<Vec<(String, InterfaceCounters)>> {
    let mut ends = Vec::new();
    while bytes.len() >= HEADERS {
        let length = usize::try_from(u32::from_ne_bytes(bytes[..4].try_into()?))?;
        let kind = u16::from_ne_bytes(bytes[4..6].try_into()?);
        // A bridge says in a family of its own that it has a port less.
        let is_whole_interface = bytes[16] == 0;
        let body = bytes.get(HEADERS..length).context("a cut message")?;
        if kind == RTM_DELLINK && is_whole_interface {
            ends.push(end_of_link(body)?);
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(ends)
}

fn end_of_link(mut attributes: &[u8]) -> Result<(String, InterfaceCounters)> {
    let (mut name, mut counters) = (None, None);
    while attributes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes(attributes[..2].try_into()?));
        let kind = u16::from_ne_bytes(attributes[2..4].try_into()?);
        let value = attributes.get(4..length).context("a cut attribute")?;
        match kind {
            IFLA_IFNAME => {
                let text = String::from_utf8_lossy(value);
                name = Some(text.trim_end_matches('\0').to_owned());
            }
            IFLA_STATS64 => counters = Some(counters_of(value)?),
            _ => {}
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    match (name, counters) {
        (Some(name), Some(counters)) => Ok((name, counters)),
        other => bail!("an interface ended without name or counters: {other:?}"),
    }
}

/// Source: `struct rtnl_link_stats64`.
fn counters_of(stats: &[u8]) -> Result<InterfaceCounters> {
    let number = |place: usize| -> Result<u64> {
        let bytes = stats
            .get(place * 8..place * 8 + 8)
            .context("cut counters")?;
        Ok(u64::from_ne_bytes(bytes.try_into()?))
    };
    Ok(InterfaceCounters {
        rx_packets: number(0)?,
        rx_dropped: number(6)?,
        tx_packets: number(1)?,
        tx_dropped: number(7)?,
    })
}
