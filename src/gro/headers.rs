//! The headers of one frame as views, so that the merge rules compare fields and not offsets.

use crate::wire::ethernet::MACS_LEN;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::{self, Ipv6};
use crate::wire::tcp::{self, Tcp};
use crate::wire::{Layout, Network, Transport};

/// All headers of a frame through its transport header.
#[derive(Clone, Copy)]
pub(super) struct Headers<'a> {
    /// Both MAC addresses.
    pub(super) macs: &'a [u8; MACS_LEN],
    /// VLAN tags, four bytes each.
    pub(super) tags: &'a [u8],
    pub(super) network: NetworkHeader<'a>,
    pub(super) transport: TransportHeader<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum NetworkHeader<'a> {
    Ipv4(Ipv4<'a>),
    /// With all bytes of the extension headers.
    Ipv6(Ipv6<'a>, &'a [u8]),
}

#[derive(Clone, Copy)]
pub(super) enum TransportHeader<'a> {
    /// With the option bytes.
    Tcp(Tcp<'a>, &'a [u8]),
    Udp,
}

impl<'a> Headers<'a> {
    /// Borrows the headers of `frame`; `None` if it is shorter than its layout says.
    pub(super) fn read(frame: &'a [u8], layout: &Layout) -> Option<Self> {
        let headers = frame.get(..usize::from(layout.payload()))?;
        let (l3, l4) = (usize::from(layout.l3()), usize::from(layout.l4()));
        let network = match layout.network() {
            Network::Ipv4 => NetworkHeader::Ipv4(Ipv4::at(headers, l3)?),
            Network::Ipv6 => NetworkHeader::Ipv6(
                Ipv6::at(headers, l3)?,
                headers.get(l3 + ipv6::HEADER_LEN..l4)?,
            ),
        };
        let transport = match layout.transport() {
            Transport::Tcp => {
                TransportHeader::Tcp(Tcp::at(headers, l4)?, headers.get(l4 + tcp::HEADER_LEN..)?)
            }
            Transport::Udp => TransportHeader::Udp,
        };
        Some(Self {
            macs: headers.first_chunk()?,
            tags: headers.get(MACS_LEN..l3.checked_sub(2)?)?,
            network,
            transport,
        })
    }
}
