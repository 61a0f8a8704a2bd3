//! The frame layout parser, against whatever lengths a frame claims and against `etherparse`.
//!
//! Input: a host header (12 bytes), then the frame.

use etherparse::err::ipv6_exts::HeaderError;
use etherparse::err::packet::SliceError;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use vhost_user_gro::wire::layout::{self, Known, Unfit};
use vhost_user_gro::wire::{GsoLayout, Layout, Network, Transport, VnetHdr, checksum};

use super::input::Input;
use crate::support::cut::{Headers, has_right_checksum, word};
use crate::support::invariants::Flow;

/// Bits beside the fragment offset: reserved, and more fragments, and the offset itself.
const FRAGMENT: u16 = 0xbfff;

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(header) = input.array() else {
        return;
    };
    let frame = input.rest();
    match layout::parse(frame) {
        Ok(layout) => {
            check_layout(frame, &layout);
            check_second_opinion(frame, &layout);
        }
        Err(unfit) => {
            check_known(frame, &unfit);
            assert!(!is_plain(frame), "refused for {:?}", unfit.reason);
        }
    }
    check_gso(frame, &VnetHdr::decode(&header));
}

/// What a layout claims lies in the frame.
fn check_layout(frame: &[u8], layout: &Layout) {
    let payload = usize::from(layout.payload());
    assert!(layout.l3() < layout.l4() && layout.l4() < layout.payload());
    assert_eq!(payload + layout.payload_len() as usize, frame.len());
}

/// `etherparse` finds the same headers.
fn check_second_opinion(frame: &[u8], layout: &Layout) {
    if is_beyond_second_opinion(frame) {
        return;
    }
    let headers = Headers::of(frame).expect("is refused by the second opinion");
    assert_eq!(headers.is_ipv4, layout.network() == Network::Ipv4);
    assert_eq!(headers.is_tcp, layout.transport() == Transport::Tcp);
    assert_eq!(
        (headers.l3, headers.l4, headers.payload),
        (
            layout.l3().into(),
            layout.l4().into(),
            layout.payload().into()
        )
    );
    if headers.is_ipv4 {
        let field = word(frame, headers.l3 + 10);
        let right = headers.ipv4_checksum(frame);
        assert!(field == right || (field, right) == (0xffff, 0));
    }
    let flow = Flow::of(frame).expect("a frame that may merge has a flow");
    assert!(flow.ports.is_some());
    let is_none = !headers.is_tcp && word(frame, headers.l4 + 6) == 0;
    if !is_none {
        assert_eq!(
            checksum::is_transport_right(frame, layout),
            has_right_checksum(frame)
        );
    }
}

/// `etherparse` takes hop-by-hop options as the first extension header only, where rule IP6-3 takes
/// them anywhere.
pub fn is_beyond_second_opinion(frame: &[u8]) -> bool {
    matches!(
        SlicedPacket::from_ethernet(frame),
        Err(SliceError::Ipv6Exts(HeaderError::HopByHopNotAtStart))
    )
}

/// Offsets that are said to be known allow the reads that they are for.
fn check_known(frame: &[u8], unfit: &Unfit) {
    match unfit.known {
        Known::Nothing => {}
        Known::Addresses { network, l3 } => {
            let len = match network {
                Network::Ipv4 => 20,
                Network::Ipv6 => 40,
            };
            assert!(usize::from(l3) + len <= frame.len());
        }
        Known::Flow(layout) => assert!(usize::from(layout.l4()) + 4 <= frame.len()),
    }
}

/// Whether `etherparse` sees nothing unusual in a frame: then it must not be refused.
fn is_plain(frame: &[u8]) -> bool {
    let Ok(headers) = Headers::of(frame) else {
        return false;
    };
    let has_ports = Flow::of(frame).is_some_and(|flow| flow.ports.is_some());
    let packet = SlicedPacket::from_ethernet(frame).expect("was just taken apart");
    let is_plain_ip = match packet.net {
        Some(NetSlice::Ipv4(_)) => {
            headers.l4 == headers.l3 + 20
                && word(frame, headers.l3 + 10) == headers.ipv4_checksum(frame)
                && word(frame, headers.l3 + 6) & FRAGMENT == 0
        }
        // Here and in UDP, 0 stands for a length beyond 16 bits, and `etherparse` takes what is
        // there.
        Some(NetSlice::Ipv6(ip)) => ip.header().payload_length() != 0,
        _ => false,
    };
    let is_plain_transport = match packet.transport {
        Some(TransportSlice::Udp(udp)) => udp.length() != 0 && !udp.payload().is_empty(),
        _ => true,
    };
    has_ports && is_plain_ip && is_plain_transport
}

/// A segmentation header that is accepted describes segments that lie in the frame.
fn check_gso(frame: &[u8], vnet: &VnetHdr) {
    let Ok(gso) = GsoLayout::parse(frame, frame.len(), vnet) else {
        return;
    };
    check_layout(frame, &gso.layout);
    assert_eq!(vnet.csum_start, gso.layout.l4());
    let mut next = 0;
    for index in 0..gso.segs {
        let (start, len) = gso.payload_range(index).expect("there is that segment");
        assert!(start == next && len <= usize::from(vnet.gso_size));
        assert!(usize::from(gso.layout.payload()) + len <= gso.segment_len());
        next += len;
    }
    assert_eq!(next, gso.layout.payload_len() as usize);
    assert_eq!(gso.payload_range(gso.segs), None);
}
