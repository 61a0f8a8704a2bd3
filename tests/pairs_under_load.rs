//! Queue pairs that come and go a thousand times while frames pass both ways: none is lost that was
//! not counted, and nothing is left behind. It counts descriptors, threads and memory of the whole
//! process, so it is one test in a binary of its own.
#![cfg(feature = "daemon")]
#![allow(
    clippy::unwrap_used,
    reason = "what helps a test is not seen as a test"
)]

#[path = "../src/device/driver_model.rs"]
mod driver_model;
#[path = "support/packet.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "each test target uses another part of it"
)]
mod packet;
#[path = "worker/rig.rs"]
#[allow(dead_code, reason = "each test target uses another part of it")]
mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vhost_user_gro::sys::{Placement, clock};
use vhost_user_gro::uplink::pair::{Pair, PairPeer};
use vhost_user_gro::uplink::steer::{SteerConfig, Steered};
use vhost_user_gro::uplink::{Uplink, UplinkQueue};
use vhost_user_gro::worker::{
    DataThread, PairConfig, PairControl, PairSetup, PairStats, Seat, ThreadConfig,
};

use packet::{A, B, Built, Host, tcp4};
use rig::{BUFFER, Got, Rig, Ring, config, linux, numbered};

const PAIRS: usize = 4;
const CHANGES: u32 = 1000;
/// Changes after which everything has been in use.
const WARM: u32 = 100;
/// Frames that must have come in between two changes.
const FRAMES_BETWEEN: u64 = 16;
/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Descriptors and threads of the process, and its memory in KiB.
fn resources() -> (usize, usize, usize) {
    let count = |directory| std::fs::read_dir(directory).unwrap().count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let memory = status.lines().find(|line| line.starts_with("VmRSS:"));
    let memory = memory.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    (
        count("/proc/self/fd"),
        count("/proc/self/task"),
        memory.unwrap(),
    )
}

/// What the outside has counted.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    injected: AtomicU64,
    received: AtomicU64,
    posted: AtomicU64,
    returned: AtomicU64,
    sent: AtomicU64,
}

impl Load {
    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }
}

/// The host: frames of 16 flows into every queue of the device, and what comes out of them.
fn play_host(peers: &[PairPeer], load: &Load) {
    let frames: Vec<Built> = (0..256_u16)
        .map(|nth| {
            let from = Host {
                port: 1000 + nth % 16,
                ..A
            };
            tcp4(from, B)
                .seq(1 + u32::from(nth / 16) * 200)
                .payload(200)
        })
        .map(|packet| packet.build())
        .collect();
    let mut next = (0..frames.len()).cycle();
    loop {
        let is_over = load.is_over.load(Ordering::SeqCst);
        for peer in peers {
            while peer.next_sent(Duration::ZERO).unwrap().is_some() {
                load.sent.fetch_add(1, Ordering::SeqCst);
            }
            let frame = &frames[next.next().unwrap()];
            if !is_over && peer.inject(&frame.meta.vnet, &frame.bytes).is_ok() {
                load.injected.fetch_add(1, Ordering::SeqCst);
            }
        }
        if is_over && Load::get(&load.returned) == Load::get(&load.posted) {
            // What was counted as sent is in the queue by now.
            for peer in peers {
                while peer
                    .next_sent(Duration::from_millis(200))
                    .unwrap()
                    .is_some()
                {
                    load.sent.fetch_add(1, Ordering::SeqCst);
                }
            }
            return;
        }
        std::thread::yield_now();
    }
}

/// The guest: takes what comes, gives the buffers back, sends all the time.
fn play_guest(mut rings: Vec<(Ring, Ring)>, load: &Load, is_quiet: &AtomicBool) {
    for (_, tx) in &mut rings {
        for _ in 0..16 {
            load.posted.fetch_add(1, Ordering::SeqCst);
            tx.post_tx(&numbered(1));
        }
        tx.kick();
    }
    loop {
        let is_last = is_quiet.load(Ordering::SeqCst);
        for (rx, tx) in &mut rings {
            let (packets, chains) = rx.collect();
            let frames: usize = packets.iter().map(Got::segs).sum();
            load.received.fetch_add(frames as u64, Ordering::SeqCst);
            rx.give_back(&chains);
            rx.kick();
            for sent in tx.driver.collect_all() {
                if !load.is_over.load(Ordering::SeqCst) {
                    load.posted.fetch_add(1, Ordering::SeqCst);
                    tx.driver.post(&sent.parts).unwrap();
                }
                load.returned.fetch_add(1, Ordering::SeqCst);
            }
            tx.kick();
        }
        if is_last {
            return;
        }
        std::thread::yield_now();
    }
}

struct Device {
    threads: Vec<DataThread>,
    /// Those of pair `n` belong to thread `n % threads`.
    setups: Vec<PairSetup>,
}

impl Device {
    /// A thread for each of `workers`, with the pairs dealt out in turn.
    fn start(queues: Vec<Box<dyn UplinkQueue>>, workers: usize, rings: &[(Ring, Ring)]) -> Self {
        let mut seats: Vec<Vec<Seat>> = (0..workers).map(|_| Vec::new()).collect();
        for (index, queue) in queues.into_iter().enumerate() {
            seats[index % workers].push(Seat {
                index,
                queue,
                link: Arc::new(|_| {}),
                tracer: None,
            });
        }
        let start = |(index, seats)| {
            let config = ThreadConfig {
                index,
                placement: Placement::default(),
                pair: pair_config(),
            };
            DataThread::spawn(config, seats).unwrap()
        };
        let setup = |(rx, tx): &(Ring, Ring)| PairSetup {
            features: linux().bits(),
            memory: Some(Arc::clone(&rx.driver.memory)),
            rx: Some(rx.setup.clone()),
            tx: Some(tx.setup.clone()),
        };
        Self {
            threads: seats.into_iter().enumerate().map(start).collect(),
            setups: rings.iter().map(setup).collect(),
        }
    }

    fn control(&self, pair: usize) -> Arc<dyn PairControl> {
        let workers = self.threads.len();
        self.threads[pair % workers].control(pair / workers)
    }

    fn set_enabled(&mut self, pair: usize, is_enabled: bool) {
        let setup = &mut self.setups[pair];
        for ring in [&mut setup.rx, &mut setup.tx].into_iter().flatten() {
            ring.enabled = is_enabled;
        }
        self.control(pair).apply(self.setups[pair].clone());
    }

    fn is_enabled(&self, pair: usize) -> bool {
        self.setups[pair].rx.as_ref().unwrap().enabled
    }

    fn stats(&self) -> Vec<PairStats> {
        let workers = self.threads.len();
        let stats = |pair: usize| self.threads[pair % workers].stats(pair / workers);
        (0..PAIRS).map(|pair| stats(pair).unwrap()).collect()
    }
}

fn pair_config() -> PairConfig {
    PairConfig {
        pool_frames: 128,
        ..config()
    }
}

fn sum(stats: &[PairStats], get: impl Fn(&PairStats) -> u64) -> u64 {
    stats.iter().map(get).sum()
}

/// Frames that came in and of which something became.
fn accounted_for(stats: &[PairStats]) -> u64 {
    sum(stats, |pair| {
        let (rx, uplink) = (&pair.receive, &pair.uplink);
        rx.frames
            + rx.dropped_at_stop
            + rx.dropped_too_big
            + rx.above_mtu
            + uplink.rx_discarded
            + uplink.rx_steer_full
    })
}

/// Lets pairs come and go.
fn run(queues: Vec<Box<dyn UplinkQueue>>, peers: &[PairPeer], workers: usize) {
    let rings: Vec<_> = (0..PAIRS)
        .map(|_| Rig::unstarted(&pair_config(), 256))
        .map(|mut rig| {
            rig.rx.post_rx(256, BUFFER);
            (rig.rx, rig.tx)
        })
        .collect();
    let memories: Vec<_> = rings
        .iter()
        .map(|(rx, _)| Arc::clone(&rx.driver.memory))
        .collect();
    let mut device = Device::start(queues, workers, &rings);
    let (load, is_quiet) = (Load::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| play_host(peers, &load));
        scope.spawn(|| play_guest(rings, &load, &is_quiet));
        (0..PAIRS).for_each(|pair| device.set_enabled(pair, true));
        let mut random = 1_u32;
        let mut warm = None;
        for change in 0..CHANGES {
            random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let pair = (random >> 16) as usize % PAIRS;
            let is_enabled = device.is_enabled(pair);
            device.set_enabled(pair, !is_enabled);
            let until = Load::get(&load.injected) + FRAMES_BETWEEN;
            let is_any = (0..PAIRS).any(|pair| device.is_enabled(pair));
            // With none left the queues of the device are full at some time.
            while is_any && Load::get(&load.injected) < until {
                std::thread::yield_now();
            }
            if change == WARM {
                warm = Some(resources());
            }
        }
        let (fds, threads, memory) = resources();
        let (warm_fds, warm_threads, warm_memory) = warm.unwrap();
        assert_eq!((fds, threads), (warm_fds, warm_threads));
        // One page lost at each change would be as much.
        assert!(
            memory < warm_memory + 4 * (CHANGES - WARM) as usize,
            "{warm_memory} KiB to {memory}"
        );

        (0..PAIRS).for_each(|pair| device.set_enabled(pair, true));
        load.is_over.store(true, Ordering::SeqCst);
        let deadline = clock::now() + LIMIT;
        let mut stats = device.stats();
        while accounted_for(&stats) < Load::get(&load.injected)
            || Load::get(&load.returned) < Load::get(&load.posted)
        {
            assert!(clock::now() < deadline, "frames are missing: {stats:?}");
            std::thread::yield_now();
            stats = device.stats();
        }
        is_quiet.store(true, Ordering::SeqCst);
    });
    let stats = device.stats();
    assert_eq!(accounted_for(&stats), Load::get(&load.injected));
    assert_eq!(sum(&stats, |pair| pair.receive.pool_in_use), 0);
    // F68: the guest has counted the same.
    assert_eq!(
        sum(&stats, |pair| pair.receive.frames),
        Load::get(&load.received)
    );
    let lost = sum(&stats, |pair| {
        let tx = &pair.transmit;
        let dropped = tx.dropped_disabled + tx.dropped_down + tx.dropped_misfit;
        dropped + tx.refused.total() + pair.uplink.tx_lost
    });
    assert_eq!(Load::get(&load.sent) + lost, Load::get(&load.posted));
    assert!(sum(&stats, |pair| pair.transmit.dropped_disabled) > 0);
    for (pair, stats) in stats.iter().enumerate() {
        device.control(pair).apply(PairSetup::default());
        assert!(stats.receive.frames > 0, "pair {pair} was never in use");
    }
    device.setups.clear();
    assert!(memories.iter().all(|memory| Arc::strong_count(memory) == 1));
}

#[test]
fn f54_f68_pairs_come_and_go_a_thousand_times_under_load() {
    let (mut pair, peers) = Pair::new(PAIRS).unwrap();
    run(pair.take_queues(), &peers, PAIRS);
    drop(peers);

    // One queue, steered to pairs of which two share a thread.
    let (pair, peers) = Pair::new(1).unwrap();
    let mut steered = Steered::around(Box::new(pair), PAIRS, &SteerConfig::default()).unwrap();
    run(steered.take_queues(), &peers, 2);
}
