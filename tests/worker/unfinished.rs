//! What a guest leaves to be done, on interfaces of the kernel. Needs root.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::device::Features;
use vhost_user_gro::uplink::af_packet::{AfPacket, AfPacketConfig};
use vhost_user_gro::uplink::af_xdp::{AfXdp, AfXdpConfig, Mode};
use vhost_user_gro::uplink::{FramePool, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_NONE};
use vhost_user_gro::worker::PairConfig;

use crate::cut::{Headers, cut, has_right_checksum};
use crate::finish::{GSO, kinds, packet, post};
use crate::netns::{in_namespace, ip};
use crate::packet::{A, B, tcp4, tcp6, udp4, udp6};
use crate::rig::{Rig, at_us, config, linux};

fn af_packet(name: &str) -> Box<dyn Uplink> {
    let config = AfPacketConfig {
        macs: Vec::new(),
        slots: 1024,
        shows_link: true,
        qdisc_bypass: false,
    };
    Box::new(AfPacket::open(name, 1, config).expect("root may attach to interfaces"))
}

fn af_xdp(name: &str, mode: Mode) -> Box<dyn Uplink> {
    let config = AfXdpConfig {
        macs: Vec::new(),
        ring: 64,
        mode,
        unfinished: None,
        shows_link: true,
    };
    Box::new(AfXdp::open(name, 1, config).expect("root may attach to interfaces"))
}

/// Frames that arrive at the other end until `bytes` of payload have.
fn arrived(wire: &mut dyn UplinkQueue, bytes: usize) -> Vec<(VnetHdr, Vec<u8>)> {
    let pool = FramePool::new(1024);
    let mut frames = Vec::new();
    let mut left = bytes;
    let limit = Timespec::try_from(Duration::from_secs(20)).unwrap();
    while left > 0 {
        let fd = wire.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&limit)).unwrap();
        assert!(ready > 0, "{left} bytes do not come");
        let mut out = Vec::new();
        wire.recv_batch(&pool, 64, &mut out).expect("it is up");
        for got in &out {
            let bytes = got.frame.as_ref().to_vec();
            let payload = Headers::of(&bytes).expect("a whole packet").payload;
            left -= bytes.len() - payload;
            frames.push((got.meta.vnet, bytes));
        }
    }
    frames
}

#[test]
fn f43_on_interfaces_the_checksum_is_right_or_the_mark_is_there() {
    type Attach = fn() -> Box<dyn Uplink>;
    let uplinks: [(&str, Attach); 3] = [
        ("f43: AF_PACKET", || af_packet("uplink")),
        ("f43: XDP", || af_xdp("uplink", Mode::Native)),
        ("f43: generic XDP", || af_xdp("uplink", Mode::Generic)),
    ];
    for (name, attach) in uplinks {
        in_namespace(name, move || {
            ip("link add uplink type veth peer name wire");
            ip("link set dev uplink up");
            ip("link set dev wire up");
            let mut wire = af_packet("wire").take_queues().remove(0);
            let mut uplink = attach();
            let config = PairConfig {
                uplink_offloads: uplink.caps().tx,
                ..config()
            };
            let queue = uplink.take_queues().remove(0);
            let mut rig = Rig::with_uplink(&config, 256, |_| queue);
            rig.features = linux()
                | Features::HOST_TSO4
                | Features::HOST_TSO6
                | Features::HOST_ECN
                | Features::HOST_USO;
            rig.apply(at_us(0));
            let mut messages = Vec::new();
            // The MTU has room for one tag and a segment.
            messages.extend(kinds(7 * GSO));
            for base in [tcp4(A, B), tcp6(A, B), udp4(A, B), udp6(A, B)] {
                messages.push(packet(&base.payload(GSO), GSO_NONE));
            }
            messages
                .iter()
                .for_each(|message| post(&mut rig, message, 4000));
            rig.rest(at_us(1));
            assert_eq!(rig.tx.driver.collect_all().len(), messages.len());
            let mut segments = 0;
            for (vnet, frame) in arrived(wire.as_mut(), 4 * 7 * GSO + 4 * GSO) {
                let is_marked = vnet.flags & F_NEEDS_CSUM != 0;
                segments += if vnet.gso_type == GSO_NONE {
                    assert!(is_marked || has_right_checksum(&frame), "{name}");
                    1
                } else {
                    assert!(is_marked, "{name}");
                    cut(&vnet, &frame).expect("a packet that can be cut").len()
                };
            }
            assert_eq!(segments, 4 * 7 + 4, "{name}");
        });
    }
}
