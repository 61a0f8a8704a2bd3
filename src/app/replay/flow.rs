//! Which flow a frame belongs to, in a form for people. As fine as the flows of the engine
//! (rule FLOW-1): whatever the engine keeps in order, a [`Flow`] sees in order.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::layout::{self, Known, Unfit};
use crate::wire::{Layout, Network, Transport, ethernet};

/// TPID and identifier of a VLAN tag, without priority and DEI.
const VLAN_IDENTITY: u32 = 0xffff_0fff;

/// Identity of a flow, or of a pair of hosts where there are no ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    /// Identities of the tags, outer first, 0 for none.
    tags: [u32; ethernet::MAX_TAGS],
    from: IpAddr,
    to: IpAddr,
    ports: Option<Ports>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ports {
    is_tcp: bool,
    from: u16,
    to: u16,
}

impl Flow {
    /// Flow and layout of a frame, as far as they can be read.
    pub(super) fn of(frame: &[u8]) -> (Option<Self>, Option<Layout>) {
        match layout::parse(frame) {
            Ok(layout) => (Self::with_ports(frame, &layout), Some(layout)),
            Err(Unfit { known, .. }) => match known {
                Known::Nothing => (None, None),
                Known::Addresses { network, l3 } => (Self::between(frame, network, l3), None),
                Known::Flow(layout) => (Self::with_ports(frame, &layout), None),
            },
        }
    }

    fn with_ports(frame: &[u8], layout: &Layout) -> Option<Self> {
        let [from, to] = words(frame, layout.l4())?;
        let is_tcp = layout.transport() == Transport::Tcp;
        Some(Self {
            ports: Some(Ports { is_tcp, from, to }),
            ..Self::between(frame, layout.network(), layout.l3())?
        })
    }

    fn between(frame: &[u8], network: Network, l3: u16) -> Option<Self> {
        let (from, to) = match network {
            Network::Ipv4 => (
                Ipv4Addr::from(bytes::<4>(frame, l3 + 12)?).into(),
                Ipv4Addr::from(bytes::<4>(frame, l3 + 16)?).into(),
            ),
            Network::Ipv6 => (
                Ipv6Addr::from(bytes::<16>(frame, l3 + 8)?).into(),
                Ipv6Addr::from(bytes::<16>(frame, l3 + 24)?).into(),
            ),
        };
        let mut tags = [0; ethernet::MAX_TAGS];
        let places = (12..).step_by(ethernet::TAG_LEN);
        for (tag, at) in tags.iter_mut().zip(places).filter(|(_, at)| at + 6 <= l3) {
            *tag = u32::from_be_bytes(bytes(frame, at)?) & VLAN_IDENTITY;
        }
        Some(Self {
            tags,
            from,
            to,
            ports: None,
        })
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            Some(Ports { is_tcp, from, to }) => {
                let from = SocketAddr::new(self.from, from);
                let to = SocketAddr::new(self.to, to);
                write!(f, "{} {from} > {to}", if is_tcp { "tcp" } else { "udp" })?;
            }
            None => write!(f, "ip {} > {}", self.from, self.to)?,
        }
        for tag in self.tags.into_iter().filter(|tag| *tag != 0) {
            write!(f, " vlan {}", tag & 0xfff)?;
        }
        Ok(())
    }
}

fn bytes<const N: usize>(frame: &[u8], at: u16) -> Option<[u8; N]> {
    frame.get(usize::from(at)..)?.first_chunk().copied()
}

fn words(frame: &[u8], at: u16) -> Option<[u16; 2]> {
    let [a, b, c, d] = bytes(frame, at)?;
    Some([[a, b], [c, d]].map(u16::from_be_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::Sample;

    #[test]
    fn a_flow_is_named_by_its_ends_and_tags() {
        let mut sample = Sample::tcp4();
        sample.tags = vec![(0x88a8, 0x2007), (0x8100, 9)];
        let (flow, layout) = Flow::of(&sample.bytes());
        let text = flow.unwrap().to_string();
        assert!(
            text.starts_with("tcp ") && text.ends_with(" vlan 7 vlan 9"),
            "{text}"
        );
        assert!(layout.is_some());
        // Priority is no part of it, the identifier is.
        sample.tags[0].1 = 0x4007;
        assert_eq!(Flow::of(&sample.bytes()).0, flow);
        sample.tags[0].1 = 0x4008;
        assert_ne!(Flow::of(&sample.bytes()).0, flow);
    }

    #[test]
    fn a_frame_cut_behind_its_ports_keeps_its_flow() {
        let bytes = Sample::tcp6().bytes();
        let (flow, _) = Flow::of(&bytes);
        let (cut, layout) = Flow::of(&bytes[..bytes.len() - 1]);
        assert_eq!((cut, layout), (flow, None));
        assert_eq!(Flow::of(&bytes[..20]), (None, None));
    }
}
