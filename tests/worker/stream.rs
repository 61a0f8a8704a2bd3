//! A guest on a stream: merging, the state of its link, a peer that does not read.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{Timespec, poll};
use vhost_user_gro::device::Features;
use vhost_user_gro::uplink::Uplink;
use vhost_user_gro::uplink::stream::Stream;
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};
use vhost_user_gro::worker::PairConfig;

use crate::cut::{cut, has_right_checksum};
use crate::packet::{A, B, Built, tcp4, tcp6, udp4, udp6};
use crate::rig::{BUFFER, Rig, at_us, config, numbered, segment, sequence};

/// A running pair on a stream, its peer, and where the next peer is found.
struct Set {
    rig: Rig,
    listener: UnixListener,
    _directory: tempfile::TempDir,
}

impl Set {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peer.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let address = path.to_str().unwrap().parse().unwrap();
        let mut stream = Stream::open(&address, true).unwrap();
        let config = PairConfig {
            uplink_offloads: stream.caps().tx,
            ..config()
        };
        let queue = stream.take_queues().pop();
        let mut rig = Rig::with_uplink(&config, 256, |_| queue.unwrap());
        rig.rx.post_rx(256, BUFFER);
        rig.apply(at_us(0));
        Self {
            rig,
            listener,
            _directory: directory,
        }
    }

    /// Serves the pair until `is_done`; its timers are those of the system.
    fn until(&mut self, mut is_done: impl FnMut(&mut Rig) -> bool) {
        let tick = Timespec::try_from(Duration::from_millis(1)).unwrap();
        for round in 0..20_000 {
            self.rig.rest(at_us(round));
            if is_done(&mut self.rig) {
                return;
            }
            poll(&mut [], Some(&tick)).unwrap();
        }
        panic!("it never happens");
    }

    fn accept(&mut self) -> UnixStream {
        let listener = self.listener.try_clone().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut peer = None;
        self.until(|_| {
            peer = listener.accept().ok();
            peer.is_some()
        });
        let (peer, _) = peer.unwrap();
        peer.set_nonblocking(false).unwrap();
        peer
    }
}

fn write(peer: &mut UnixStream, frame: &[u8]) {
    let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
    peer.write_all(&[&len, frame].concat()).unwrap();
}

/// With full checksums, as on a wire.
fn plain(nth: u32) -> Built {
    segment(nth).build()
}

#[test]
fn segments_are_checked_and_merged() {
    let mut set = Set::new();
    let mut peer = set.accept();
    for nth in 0..8 {
        write(&mut peer, &plain(nth).bytes);
    }
    // Nobody vouches for this one, and it is wrong.
    let mut spoilt = plain(8).bytes;
    *spoilt.last_mut().unwrap() ^= 1;
    write(&mut peer, &spoilt);
    let mut packets = Vec::new();
    set.until(|rig| {
        packets.extend(rig.rx.packets());
        packets.len() >= 2
    });
    assert_eq!(packets[0].vnet.gso_type, GSO_TCPV4);
    assert_eq!(packets[0].segs(), 8);
    assert_eq!(sequence(&packets[..1]).len(), 8);
    assert_eq!(packets[1].frame, spoilt);
    assert_eq!(
        packets[1].vnet.flags, 0,
        "its checksum is the guest's business"
    );
}

#[test]
fn the_link_follows_the_peer_also_while_there_is_no_guest() {
    let mut set = Set::new();
    let peer = set.accept();
    set.until(|rig| rig.pair.stats().uplink.connects == 1);
    assert_eq!(set.rig.reports.all(), (0, None), "it was up before");
    drop(peer);
    set.until(|rig| rig.reports.all() == (1, Some(false)));
    // The front-end takes the guest away when the link goes down.
    set.rig.stop(at_us(1));
    let mut peer = set.accept();
    set.until(|rig| rig.reports.all() == (2, Some(true)));
    set.rig.rx.restart();
    set.rig.tx.restart();
    set.rig.apply(at_us(2));
    write(&mut peer, &plain(0).bytes);
    set.until(|rig| !rig.rx.packets().is_empty());
    assert_eq!(set.rig.reports.all(), (2, Some(true)));
}

#[test]
fn f61_what_waits_for_the_guests_buffers_comes_without_new_input_though_the_peer_is_gone() {
    let mut set = Set::new();
    let mut peer = set.accept();
    // With one write, since each takes a lot of the socket's room.
    let mut stream = Vec::new();
    for nth in 0..300 {
        stream.extend(60_u32.to_be_bytes());
        stream.extend(numbered(nth));
    }
    peer.write_all(&stream).unwrap();
    set.until(|rig| rig.rx_stats().buffer_waits > 0);
    write(&mut peer, &numbered(300));
    drop(peer);
    set.until(|_| true);
    let (first, chains) = set.rig.rx.collect();
    set.rig.rx.give_back(&chains);
    set.rig.rx.kick();
    let mut count = first.len();
    set.until(|rig| {
        count += rig.rx.packets().len();
        count == 301
    });
    set.until(|rig| rig.reports.all() == (1, Some(false)));
}

#[test]
fn a_peer_that_does_not_read_costs_no_time_and_no_frame() {
    let mut set = Set::new();
    let mut peer = set.accept();
    set.until(|rig| rig.pair.stats().uplink.connects == 1);
    let frame = vec![2; 9014];
    let message = [&[0; 12][..], &frame].concat();
    let mut posted = 0;
    while set.rig.tx_stats().frames == posted {
        set.rig.tx.driver.post_tx(&message, &[9026]);
        posted += 1;
        assert!(posted < 10_000, "it is never full");
        set.rig.tx.kick();
        let due = set.rig.settle(at_us(1));
        assert_eq!(due, None, "there is nothing to do until there is room");
        set.rig.tx.driver.collect_all();
    }
    let mut reader = peer.try_clone().unwrap();
    let total = usize::try_from(posted).unwrap() * (4 + frame.len());
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; total];
        reader.read_exact(&mut got).map(|()| got)
    });
    set.until(|_| reading.is_finished());
    let got = reading.join().unwrap().unwrap();
    assert!(got.chunks(4 + frame.len()).all(|piece| piece[4..] == frame));
    assert_eq!(set.rig.tx_stats().frames, posted);
    peer.set_nonblocking(true).unwrap();
    assert!(peer.read(&mut [0]).is_err(), "and nothing twice");
}

#[test]
fn f43_what_the_guest_leaves_unfinished_leaves_finished() {
    let mut set = Set::new();
    set.rig.features = set.rig.features
        | Features::HOST_TSO4
        | Features::HOST_TSO6
        | Features::HOST_ECN
        | Features::HOST_USO;
    set.rig.apply(at_us(0));
    let mut peer = set.accept();
    set.until(|rig| rig.pair.stats().uplink.connects == 1);
    let mut expected = Vec::new();
    for (base, gso_type) in [
        (tcp4(A, B), GSO_TCPV4),
        (tcp6(A, B), GSO_TCPV6),
        (udp4(A, B), GSO_UDP_L4),
        (udp6(A, B), GSO_UDP_L4),
    ] {
        for gso_size in [0, 1000] {
            let built = base.clone().payload(3500).partial_csum().build();
            let vnet = VnetHdr {
                gso_type: if gso_size > 0 { gso_type } else { 0 },
                gso_size,
                ..built.meta.vnet
            };
            let message = [&vnet.encode()[..], &built.bytes].concat();
            let len = u32::try_from(message.len()).unwrap();
            set.rig.tx.driver.post_tx(&message, &[100, len - 100]);
            if gso_size > 0 {
                expected.extend(cut(&vnet, &built.bytes).unwrap());
            } else {
                expected.push(base.clone().payload(3500).build().bytes);
            }
        }
    }
    set.rig.tx.kick();
    set.rig.settle(at_us(1));
    for frame in expected {
        let mut got = vec![0; 4 + frame.len()];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got[4..], frame);
        assert!(has_right_checksum(&got[4..]));
    }
    let stats = set.rig.tx_stats();
    assert_eq!((stats.segmented, stats.checksums_finished), (4, 4));
    assert!(stats.byte_limit > Some(0), "all of it has left");
}

#[test]
fn both_ways_allocate_nothing() {
    let mut set = Set::new();
    let mut peer = set.accept();
    set.until(|rig| rig.pair.stats().uplink.connects == 1);
    let mut stream = Vec::new();
    for nth in 0..40 {
        let frame = plain(nth).bytes;
        stream.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
        stream.extend(frame);
    }
    let rig = &mut set.rig;
    let mut total = 0;
    for round in 0..30 {
        peer.write_all(&stream).unwrap();
        for _ in 0..40 {
            rig.tx.post_tx(&[2; 1000]);
        }
        rig.tx.kick();
        let measured = allocation_counter::measure(|| {
            rig.rest(at_us(round * 1000));
        });
        // Every list has its size after a few.
        if round > 4 {
            total += measured.count_total;
        }
        let (packets, chains) = rig.rx.collect();
        assert!(!packets.is_empty());
        rig.rx.give_back(&chains);
        rig.rx.kick();
        assert_eq!(rig.tx.driver.collect_all().len(), 40);
        peer.read_exact(&mut vec![0; 40 * 1004]).unwrap();
    }
    assert_eq!(total, 0);
}
