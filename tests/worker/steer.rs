//! A device with one queue or two, spread over more workers. Reader threads are real, so everything
//! waits on descriptors.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::uplink::pair::{Pair, PairPeer, PairQueue};
use vhost_user_gro::uplink::steer::{SteerConfig, Steered};
use vhost_user_gro::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink,
    UplinkCaps, UplinkQueue, UplinkStats,
};
use vhost_user_gro::wire::vnet_hdr::F_DATA_VALID;
use vhost_user_gro::wire::{FlowHash, HashScope, VnetHdr};
use vhost_user_gro::worker::PairConfig;

use crate::packet::{A, B, Host, Packet, tcp4};
use crate::rig::{Rig, at_us, config, numbered, numbers, segment, sequence, with_timeout};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until the queue is readable; fails when it never is.
fn await_readable(queue: &dyn UplinkQueue) {
    let fd = queue.fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec::try_from(LIMIT).unwrap();
    assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "nothing came");
}

fn is_readable(queue: &dyn UplinkQueue) -> bool {
    let fd = queue.fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// A port and the buffers of its worker.
struct Port {
    queue: Box<dyn UplinkQueue>,
    pool: FramePool,
}

impl Port {
    /// Takes what is there, at most `budget`, and holds it.
    fn hold(&mut self, budget: usize) -> (Vec<RxFrame>, RecvEnd) {
        let mut frames = Vec::new();
        let end = self.queue.recv_batch(&self.pool, budget, &mut frames);
        (frames, end.unwrap())
    }

    /// The same for copies.
    fn take(&mut self, budget: usize) -> (Vec<Vec<u8>>, RecvEnd) {
        let (frames, end) = self.hold(budget);
        let bytes = |received: &RxFrame| received.frame.as_ref().to_vec();
        (frames.iter().map(bytes).collect(), end)
    }

    /// Waits for `count` frames.
    fn wait_for(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            await_readable(self.queue.as_ref());
            frames.extend(self.take(64.min(count - frames.len())).0);
        }
        frames
    }

    /// Waits until so many frames were dropped because the ring was full.
    fn await_drops(&self, count: u64) {
        while self.queue.stats().rx_steer_full < count {
            std::thread::yield_now();
        }
    }

    fn await_backlog(&self, count: usize) {
        while self.queue.backlog() < count {
            std::thread::yield_now();
        }
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.queue.send(&TxFrame {
            vnet: VnetHdr::default(),
            head: frame,
            rest: &[],
        })
    }
}

fn steered(device: impl Uplink + 'static, ports: usize, config: &SteerConfig) -> Vec<Port> {
    let mut steered = Steered::around(Box::new(device), ports, config).unwrap();
    assert_eq!(steered.caps().queues, ports);
    let port = |queue| Port {
        queue,
        pool: FramePool::new(64),
    };
    steered.take_queues().into_iter().map(port).collect()
}

/// Active ports in front of a device with one queue.
fn ports(count: usize, config: &SteerConfig) -> (Vec<Port>, PairPeer) {
    let (device, mut peers) = Pair::new(1).unwrap();
    let mut ports = steered(device, count, config);
    for port in &mut ports {
        port.queue.set_active(true).unwrap();
    }
    let peer = peers.remove(0);
    await_active(&peer, true);
    (ports, peer)
}

/// Waits until the reader has told the device.
fn await_active(peer: &PairPeer, is_active: bool) {
    while peer.is_active() != is_active {
        std::thread::yield_now();
    }
}

/// A frame of flow `flow`, the `nth` of it.
fn of_flow(flow: u16, nth: u32) -> Packet {
    let from = Host {
        port: 10_000 + flow,
        ..A
    };
    tcp4(from, B).seq(nth).payload(100)
}

fn flow_and_nth(frame: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes([frame[34], frame[35]]) - 10_000;
    let nth = u32::from_be_bytes(frame[38..42].try_into().unwrap());
    (flow, nth)
}

fn inject(peer: &PairPeer, packet: Packet) {
    let frame = packet.build();
    while let Err(error) = peer.inject(&frame.meta.vnet, &frame.bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        std::thread::yield_now();
    }
}

/// The port among `count` that frames of this flow go to while all are active.
fn port_of(flow: u16, count: usize) -> usize {
    let frame = of_flow(flow, 0).build().bytes;
    let hash = FlowHash::default().of_frame(&frame, HashScope::Flow);
    hash.unwrap() as usize % count
}

fn a_flow_of(port: usize, count: usize) -> u16 {
    (0..).find(|&flow| port_of(flow, count) == port).unwrap()
}

#[test]
fn f12_each_flow_has_one_worker_and_keeps_its_order() {
    const FLOWS: u16 = 40;
    const FRAMES: u32 = 30;
    for (queues, count) in [(1, 4), (2, 5), (1, 1), (3, 32)] {
        let (device, peers) = Pair::new(queues).unwrap();
        let config = SteerConfig {
            ring: 2048,
            ..SteerConfig::default()
        };
        let mut ports = steered(device, count, &config);
        for port in &mut ports {
            port.queue.set_active(true).unwrap();
        }
        peers.iter().for_each(|peer| await_active(peer, true));
        for nth in 0..FRAMES {
            for flow in 0..FLOWS {
                inject(&peers[usize::from(flow) % queues], of_flow(flow, nth));
            }
        }
        let right: Vec<_> = (0..FLOWS).map(|flow| port_of(flow, count)).collect();
        let mut next: BTreeMap<u16, u32> = BTreeMap::new();
        for (at, port) in ports.iter_mut().enumerate() {
            let flows = right.iter().filter(|&&port| port == at).count();
            let expected = flows * FRAMES as usize;
            for received in port.wait_for(expected) {
                let (flow, nth) = flow_and_nth(&received);
                assert_eq!(right[usize::from(flow)], at);
                assert_eq!(nth, *next.entry(flow).or_default(), "flow {flow}");
                assert_eq!(received, of_flow(flow, nth).build().bytes);
                next.insert(flow, nth + 1);
            }
            assert_eq!(port.take(64).1, RecvEnd::Empty);
            assert!(!is_readable(port.queue.as_ref()), "nothing is left");
        }
        assert_eq!(next.len(), usize::from(FLOWS));
        assert!(next.values().all(|&count| count == FRAMES));
    }
}

#[test]
fn what_is_known_of_a_frame_arrives_with_it() {
    let (mut ports, peer) = ports(2, &SteerConfig::default());
    let vnet = VnetHdr {
        flags: F_DATA_VALID,
        ..VnetHdr::default()
    };
    let flow = a_flow_of(1, 2);
    peer.inject(&vnet, &of_flow(flow, 0).build().bytes).unwrap();
    await_readable(ports[1].queue.as_ref());
    let received = ports[1].hold(1).0.remove(0);
    assert_eq!((received.meta.vnet, received.meta.merge_mark), (vnet, 0));
}

#[test]
fn f04_fragments_stay_with_their_flow_by_addresses() {
    let config = SteerConfig {
        scope: HashScope::Addresses,
        ..SteerConfig::default()
    };
    let (mut ports, peer) = ports(4, &config);
    for flow in 0..8 {
        inject(&peer, of_flow(flow, 0));
        let mut fragment = of_flow(flow, 1).build().bytes;
        fragment[20] |= 0x20;
        peer.inject(&VnetHdr::default(), &fragment).unwrap();
    }
    let frame = of_flow(0, 0).build().bytes;
    let hash = FlowHash::default().of_frame(&frame, HashScope::Addresses);
    ports[hash.unwrap() as usize % 4].wait_for(16);
}

#[test]
fn f69_an_overloaded_worker_loses_its_own_frames_and_delays_nobody() {
    const RING: usize = 64;
    const FRAMES: u32 = 1000;
    let config = SteerConfig {
        ring: RING,
        ..SteerConfig::default()
    };
    let (mut ports, peer) = ports(2, &config);
    let (stuck, quick) = (a_flow_of(0, 2), a_flow_of(1, 2));
    for nth in 0..FRAMES {
        inject(&peer, of_flow(stuck, nth));
        inject(&peer, of_flow(quick, nth));
        let received = ports[1].wait_for(1).remove(0);
        assert_eq!(flow_and_nth(&received), (quick, nth));
    }
    // F68: what came in is there or counted, and counted where it was lost.
    let dropped = u64::from(FRAMES) - RING as u64;
    ports[0].await_drops(dropped);
    assert_eq!(ports[0].queue.stats().rx_steer_full, dropped);
    assert_eq!(ports[1].queue.stats().rx_steer_full, 0);
    assert_eq!(ports[0].queue.backlog(), RING);
    for (nth, received) in ports[0].wait_for(RING).iter().enumerate() {
        let nth = u32::try_from(nth).unwrap();
        assert_eq!(flow_and_nth(received), (stuck, nth), "the oldest stay");
    }
    inject(&peer, of_flow(stuck, 7));
    ports[0].wait_for(1);
}

#[test]
fn frames_that_a_worker_holds_keep_no_room_in_its_ring() {
    let config = SteerConfig {
        ring: 64,
        ..SteerConfig::default()
    };
    let (mut ports, peer) = ports(1, &config);
    ports[0].pool = FramePool::new(256);
    let mut held = Vec::new();
    for nth in 0..200 {
        inject(&peer, of_flow(1, nth));
        // It may be woken for a frame that it has already.
        while held.len() <= nth as usize {
            await_readable(ports[0].queue.as_ref());
            held.extend(ports[0].hold(1).0);
        }
    }
    assert_eq!(ports[0].queue.stats().rx_steer_full, 0);
    // The limit is the worker's own pool.
    for nth in 200..260 {
        inject(&peer, of_flow(1, nth));
    }
    ports[0].await_backlog(60);
    let (frames, end) = ports[0].hold(64);
    assert_eq!((frames.len(), end), (56, RecvEnd::PoolEmpty));
    assert!(is_readable(ports[0].queue.as_ref()), "there is more");
    drop(held);
    assert_eq!(ports[0].take(64).0.len(), 4);
}

#[test]
fn a_budget_leaves_the_rest_and_the_descriptor_readable() {
    let (mut ports, peer) = ports(1, &SteerConfig::default());
    for nth in 0..100 {
        inject(&peer, of_flow(1, nth));
    }
    ports[0].await_backlog(100);
    let (frames, end) = ports[0].take(64);
    assert_eq!((frames.len(), end), (64, RecvEnd::Budget));
    assert!(is_readable(ports[0].queue.as_ref()));
    let (frames, end) = ports[0].take(64);
    assert_eq!((frames.len(), end), (36, RecvEnd::Empty));
    assert!(!is_readable(ports[0].queue.as_ref()));
}

#[test]
fn f54_flows_of_a_port_that_is_closed_go_to_the_others() {
    let (mut ports, peer) = ports(2, &SteerConfig::default());
    let flow = a_flow_of(1, 2);
    inject(&peer, of_flow(flow, 0));
    ports[1].wait_for(1);
    ports[1].queue.set_active(false).unwrap();
    inject(&peer, of_flow(flow, 1));
    ports[0].wait_for(1);
    ports[1].queue.set_active(true).unwrap();
    inject(&peer, of_flow(flow, 2));
    ports[1].wait_for(1);
    // With none left the device is told that nobody reads.
    ports
        .iter_mut()
        .for_each(|port| port.queue.set_active(false).unwrap());
    await_active(&peer, false);
    assert_eq!(ports[1].queue.stats().rx_discarded, 0);
}

#[test]
fn f37_frames_of_a_run_that_is_over_never_come() {
    let (mut ports, peer) = ports(1, &SteerConfig::default());
    for nth in 0..10 {
        inject(&peer, of_flow(1, nth));
    }
    ports[0].await_backlog(10);
    ports[0].queue.set_active(false).unwrap();
    assert_eq!(ports[0].queue.backlog(), 0);
    assert_eq!(ports[0].queue.stats().rx_discarded, 10);
    await_active(&peer, false);
    ports[0].queue.set_active(true).unwrap();
    await_active(&peer, true);
    inject(&peer, of_flow(1, 10));
    let received = ports[0].wait_for(1).remove(0);
    assert_eq!(flow_and_nth(&received), (1, 10));
    assert_eq!(ports[0].queue.stats().rx_discarded, 10);
}

#[test]
fn f36_the_device_is_told_what_all_guests_accept() {
    let (mut ports, peer) = ports(2, &SteerConfig::default());
    let all = Offloads {
        csum: true,
        tso4: true,
        tso6: true,
        ..Offloads::default()
    };
    let [v4, v6] = [
        Offloads { tso6: false, ..all },
        Offloads { tso4: false, ..all },
    ];
    let csum = Offloads { tso4: false, ..v4 };
    let await_offloads = |expected| {
        while peer.offloads() != expected {
            std::thread::yield_now();
        }
    };
    ports[0].queue.set_offloads(v4).unwrap();
    ports[1].queue.set_offloads(v6).unwrap();
    await_offloads(csum);
    // A port that is closed has no say.
    ports[1].queue.set_active(false).unwrap();
    await_offloads(v4);
    ports[0].queue.set_active(false).unwrap();
    await_offloads(Offloads::default());
}

#[test]
fn frames_of_all_ports_leave_in_the_order_of_each() {
    const FRAMES: u32 = 2000;
    let (mut ports, peer) = ports(3, &SteerConfig::default());
    let mut next = [0; 3];
    let mut seen = [0; 3];
    while seen != [FRAMES; 3] {
        for (at, port) in ports.iter_mut().enumerate() {
            let number = u32::try_from(at).unwrap() << 16 | next[at];
            if next[at] < FRAMES && port.send(&numbered(number)).is_ok() {
                next[at] += 1;
            }
            assert!(matches!(port.queue.flush(), Ok(Flushed::All)));
        }
        while let Some((_, frame)) = peer.next_sent(Duration::ZERO).unwrap() {
            let number = numbers(&[frame])[0];
            let at = (number >> 16) as usize;
            assert_eq!(number & 0xffff, seen[at], "of port {at}");
            seen[at] += 1;
        }
    }
}

#[test]
fn a_device_without_room_stops_the_senders_and_loses_nothing() {
    let (mut ports, peer) = ports(1, &SteerConfig::default());
    let mut sent = 0;
    // Nobody takes them, so the device is full at some time, and then the ring.
    let big = |number: u32| [&numbered(number)[..], &[0; 60_000]].concat();
    loop {
        match ports[0].send(&big(sent)) {
            Ok(()) => sent += 1,
            Err(SendError::Full) => break,
            Err(error) => panic!("{error}"),
        }
        ports[0].queue.flush().unwrap();
    }
    for number in 0..sent {
        let (_, frame) = peer.next_sent(LIMIT).unwrap().expect("a frame comes");
        assert_eq!(numbers(&[frame]), [number]);
    }
    assert_eq!(ports[0].queue.stats().tx_lost, 0);
    ports[0].send(&numbered(9)).unwrap();
    ports[0].queue.flush().unwrap();
    assert!(peer.next_sent(LIMIT).unwrap().is_some());
}

#[test]
fn f40_the_end_of_the_device_is_known_at_every_port() {
    let (mut ports, peer) = ports(2, &SteerConfig::default());
    ports[1].queue.set_active(false).unwrap();
    // Whatever the ports know, the first one gets them.
    while !is_readable(ports[0].queue.as_ref()) {
        inject(&peer, of_flow(1, 0));
    }
    drop(peer);
    // What was read before comes before the end.
    let mut frames = Vec::new();
    let end = loop {
        await_readable(ports[0].queue.as_ref());
        let Port { queue, pool } = &mut ports[0];
        match queue.recv_batch(pool, 64, &mut frames) {
            Ok(_) => frames.clear(),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, RecvError::Gone(_)));
    await_readable(ports[1].queue.as_ref());
    let end = ports[1].queue.look_after(false);
    assert!(matches!(end, Err(RecvError::Gone(_))));
    assert!(matches!(
        ports[1].send(&numbered(1)),
        Err(SendError::Gone(_))
    ));
}

#[test]
fn readers_have_their_names_and_end_with_the_last_port() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        tasks
            .filter_map(|task| name(task.ok()?).ok())
            .filter(|name| name.trim() == "steer-7")
            .count()
    };
    // No other test has eight queues.
    let (device, _peers) = Pair::new(8).unwrap();
    let mut ports = steered(device, 9, &SteerConfig::default());
    assert_eq!(threads(), 1);
    let last = ports.pop();
    drop(ports);
    assert_eq!(threads(), 1);
    drop(last);
    assert_eq!(threads(), 0);
}

#[test]
fn a_reader_that_cannot_be_placed_is_an_error() {
    let (device, peers) = Pair::new(1).unwrap();
    let config = SteerConfig {
        cpus: Some("1023".parse().unwrap()),
        ..SteerConfig::default()
    };
    let error = Steered::around(Box::new(device), 2, &config).err().unwrap();
    assert_eq!(error.to_string(), "reader 0 cannot be placed");
    assert!(peers[0].next_sent(LIMIT).is_err(), "the device is let go");
}

/// A device with a defect: it panics when it is to receive.
struct Defective(Option<PairQueue>);

impl Uplink for Defective {
    fn name(&self) -> String {
        "defective".to_owned()
    }

    fn caps(&self) -> UplinkCaps {
        UplinkCaps::default()
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        let queue = self.0.take().map(DefectiveQueue).unwrap();
        vec![Box::new(queue)]
    }
}

struct DefectiveQueue(PairQueue);

impl UplinkQueue for DefectiveQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn recv_batch(
        &mut self,
        _pool: &FramePool,
        _budget: usize,
        _out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        panic!("a defect on purpose");
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        self.0.send(frame)
    }

    fn set_offloads(&mut self, offloads: Offloads) -> std::io::Result<()> {
        self.0.set_offloads(offloads)
    }

    fn stats(&self) -> UplinkStats {
        self.0.stats()
    }
}

#[test]
fn a_defect_of_a_reader_ends_the_link_and_nothing_hangs() {
    let (queue, peer) = PairQueue::new().unwrap();
    let mut ports = steered(Defective(Some(queue)), 2, &SteerConfig::default());
    ports[0].queue.set_active(true).unwrap();
    inject(&peer, of_flow(1, 0));
    await_readable(ports[1].queue.as_ref());
    assert!(ports[1].queue.look_after(false).is_err());
    assert_eq!(ports[0].queue.stats().rx_steer_full, 0, "it answers");
}

/// A pair of which all frames are steered to it, and a port beside it that gets none of them.
struct Beside {
    rig: Rig,
    port: Port,
    peer: PairPeer,
    /// A flow of the port.
    other: u16,
}

impl Beside {
    fn new(config: &PairConfig, buffers: usize) -> Self {
        let (device, mut peers) = Pair::new(1).unwrap();
        let mut ports = steered(device, 2, &SteerConfig::default());
        let frame = segment(0).build().bytes;
        let hash = FlowHash::default().of_frame(&frame, HashScope::Flow);
        let at = hash.unwrap() as usize % 2;
        let queue = ports.remove(at).queue;
        let mut port = ports.remove(0);
        port.queue.set_active(true).unwrap();
        let mut rig = Rig::with_uplink(config, 256, |_| queue);
        rig.rx.post_rx(buffers, crate::rig::BUFFER);
        let setup = rig.setup();
        rig.pair.apply(at_us(0), setup);
        let mut beside = Self {
            rig,
            port,
            peer: peers.remove(0),
            other: a_flow_of(1 - at, 2),
        };
        beside.await_reader();
        beside
    }

    /// Waits until the reader has both ports on its list and has read everything so far.
    fn await_reader(&mut self) {
        await_active(&self.peer, true);
        inject(&self.peer, of_flow(self.other, 0));
        while self.port.take(1).0.is_empty() {
            std::thread::yield_now();
        }
    }

    /// Lets `count` frames of one flow into the ring of the pair.
    fn fill(&mut self, count: u32) {
        for nth in 0..count {
            inject(&self.peer, segment(nth));
        }
        self.await_reader();
    }
}

#[test]
fn a_stop_drains_the_ring_into_the_guest() {
    let mut beside = Beside::new(&config(), 256);
    beside.fill(150);
    beside.rig.stop(at_us(1));
    let packets = beside.rig.rx.packets();
    let expected: Vec<u32> = (0..150).map(|nth| 1 + nth * 1448).collect();
    assert_eq!(sequence(&packets), expected);
    assert!(packets.len() < 10, "merged");
    assert_eq!(beside.rig.pair.stats().uplink.rx_discarded, 0);
}

#[test]
fn f68_what_a_guest_without_buffers_leaves_in_the_ring_is_counted() {
    let mut beside = Beside::new(&config(), 0);
    beside.fill(100);
    beside.rig.stop(at_us(1));
    let stats = beside.rig.pair.stats();
    let lost = stats.receive.dropped_at_stop + stats.uplink.rx_discarded;
    assert_eq!((beside.rig.rx.packets().len(), lost), (0, 100));
    assert!(stats.receive.dropped_at_stop < 100 && stats.uplink.rx_discarded < 100);
}

#[test]
fn what_is_held_stays_while_the_ring_has_frames_and_goes_when_it_is_empty() {
    let mut config = with_timeout(Duration::ZERO);
    config.napi.round_budget = config.napi.budget;
    let mut beside = Beside::new(&config, 256);
    beside.fill(100);
    // A poll takes 64 frames, which are more than one packet can have.
    let mut frames_after_turn = |nth: u64| {
        beside.rig.pair.turn(at_us(nth)).unwrap();
        sequence(&beside.rig.rx.packets()).len()
    };
    let first = frames_after_turn(1);
    assert!((1..64).contains(&first), "what is young stays: {first}");
    assert_eq!(
        first + frames_after_turn(2),
        100,
        "an empty ring leaves nothing"
    );
}

#[test]
fn a_steered_pair_allocates_nothing() {
    let mut beside = Beside::new(&config(), 256);
    let mut total = 0;
    for round in 0..30 {
        beside.fill(40);
        beside.rig.tx.post_tx(&numbered(7));
        beside.rig.tx.kick();
        let now = at_us(round * 1000);
        let measured = allocation_counter::measure(|| {
            beside.rig.rest(now);
        });
        // After a few rounds every list has its size.
        if round >= 4 {
            total += measured.count_total;
        }
        let (packets, chains) = beside.rig.rx.collect();
        assert_eq!(sequence(&packets).len(), 40);
        beside.rig.rx.give_back(&chains);
        beside.rig.rx.kick();
        assert!(beside.peer.next_sent(LIMIT).unwrap().is_some());
        beside.rig.tx.driver.collect_all();
    }
    assert_eq!(total, 0);
}
