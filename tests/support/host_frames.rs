//! Frames for tests of host devices, made by hand, and what a queue says of itself.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::uplink::{SendError, TxFrame, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4};

pub(crate) const HEADERS: usize = 14 + 20 + 20;
pub(crate) const MSS: u16 = 1460;
/// The largest packet that the kernel leaves whole, Ethernet header included.
/// Source: `gso_features_check`, `net/core/dev.c`.
pub(crate) const LARGEST: usize = 65535;

pub(crate) fn readiness(queue: &dyn UplinkQueue, wanted: PollFlags, timeout_ms: u64) -> PollFlags {
    let fd = queue.fd();
    let mut fds = [PollFd::new(&fd, wanted)];
    let timeout = Timespec::try_from(Duration::from_millis(timeout_ms)).expect("it is short");
    poll(&mut fds, Some(&timeout)).expect("poll takes one descriptor");
    fds[0].revents()
}

pub(crate) fn is_readable(queue: &dyn UplinkQueue, timeout_ms: u64) -> bool {
    readiness(queue, PollFlags::IN, timeout_ms).contains(PollFlags::IN)
}

pub(crate) fn send(
    queue: &mut dyn UplinkQueue,
    vnet: VnetHdr,
    frame: &[u8],
) -> Result<(), SendError> {
    queue.send(&TxFrame {
        vnet,
        head: frame,
        rest: &[],
    })?;
    queue.flush().map(drop)
}

/// A TCP/IPv4 segment of `len` bytes in all whose checksum is left to the host.
pub(crate) fn tcp(len: usize) -> Vec<u8> {
    let ip_len = u16::try_from(len - 14).expect("an IPv4 packet has at most 65535 bytes");
    let mut frame = vec![0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 8, 0];
    let mut ip = [
        0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    let sum = !sum16(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&ip);
    let mut tcp = [
        0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
    ];
    let tcp_len = (ip_len - 20).to_be_bytes();
    let pseudo = [10, 0, 0, 1, 10, 0, 0, 2, 0, 6, tcp_len[0], tcp_len[1]];
    tcp[16..18].copy_from_slice(&sum16(&pseudo).to_be_bytes());
    frame.extend_from_slice(&tcp);
    frame.extend((0..len - HEADERS).map(|i| (i % 251).to_le_bytes()[0]));
    frame
}

pub(crate) fn sum16(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("it was folded")
}

pub(crate) fn partial() -> VnetHdr {
    VnetHdr {
        flags: F_NEEDS_CSUM,
        hdr_len: 54,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    }
}

pub(crate) fn plain(len: usize) -> (VnetHdr, Vec<u8>) {
    (partial(), tcp(len))
}

pub(crate) fn gso(len: usize) -> (VnetHdr, Vec<u8>) {
    let vnet = VnetHdr {
        gso_type: GSO_TCPV4,
        gso_size: MSS,
        ..partial()
    };
    (vnet, tcp(len))
}

/// One frame of each of `count` flows.
pub(crate) fn flows(count: u16) -> impl Iterator<Item = (VnetHdr, Vec<u8>)> {
    (0..count).map(|flow| {
        // The source port is behind what the partial checksum covers so far.
        let (vnet, mut frame) = plain(100);
        frame[34..36].copy_from_slice(&(2000 + flow).to_be_bytes());
        (vnet, frame)
    })
}
