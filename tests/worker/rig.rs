//! One queue pair with a driver on one side and the test on the other, and a clock of our own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use vhost_user_gro::device::Features;
use vhost_user_gro::gro::GroConfig;
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::time::Instant;
use vhost_user_gro::tx::TxConfig;
use vhost_user_gro::uplink::pair::{PairPeer, PairQueue};
use vhost_user_gro::uplink::{Offloads, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::VNET_HDR_LEN;
use vhost_user_gro::worker::{
    LinkReport, PairConfig, PairSetup, Positions, QueuePair, ReceiveStats, RingSetup, TransmitStats,
};

use crate::driver_model::{Driver, FILLER, Part, Used};
use crate::packet::{A, B, Built, Packet, tcp4};

/// Payload of a frame of a full MTU with TCP timestamps.
pub(crate) const MSS: usize = 1448;
/// Room for a frame of a full MTU and its virtio-net header.
pub(crate) const BUFFER: u32 = 1536;
/// Bytes of Ethernet, IPv4 and TCP headers without options.
pub(crate) const HEADERS: usize = 54;
/// Turns after which something must have come to rest.
const TURNS_MAX: usize = 10_000;

/// A guest that takes everything but UDP super-frames.
pub(crate) fn linux() -> Features {
    plain()
        | Features::MRG_RXBUF
        | Features::GUEST_CSUM
        | Features::GUEST_TSO4
        | Features::GUEST_TSO6
        | Features::GUEST_ECN
        | Features::CSUM
}

/// A guest that takes nothing but frames.
pub(crate) fn plain() -> Features {
    Features::VERSION_1 | Features::IN_ORDER
}

/// Those of an uplink that takes over all that there is.
pub(crate) fn all_offloads() -> Offloads {
    Offloads {
        csum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
    }
}

/// The tunables by default, but that of the pool.
pub(crate) fn config() -> PairConfig {
    PairConfig {
        gro: GroConfig::default(),
        napi: NapiConfig::default(),
        pool_frames: 256,
        mtu: None,
        tx: TxConfig::default(),
        uplink_offloads: all_offloads(),
    }
}

/// The tunables by default with this flush timeout.
pub(crate) fn with_timeout(timeout: Duration) -> PairConfig {
    PairConfig {
        napi: NapiConfig {
            gro_flush_timeout: timeout,
            ..NapiConfig::default()
        },
        ..config()
    }
}

pub(crate) fn event() -> Arc<OwnedFd> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    Arc::new(eventfd(0, flags).expect("descriptors are left"))
}

pub(crate) fn signal(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).expect("the counter is not full");
}

/// How often an event descriptor was signalled since the last look.
pub(crate) fn signals(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

pub(crate) fn at_us(micros: u64) -> Instant {
    Instant::from_nanos(1_000_000_000 + micros * 1000)
}

/// Segment `nth` of one stream between A and B.
pub(crate) fn segment(nth: u32) -> Packet {
    tcp4(A, B).seq(1 + nth * 1448).payload(MSS)
}

/// A packet as the guest got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) vnet: VnetHdr,
    pub(crate) frame: Vec<u8>,
}

impl Got {
    /// Frames of the wire in it.
    pub(crate) fn segs(&self) -> usize {
        if self.vnet.gso_size == 0 {
            return 1;
        }
        (self.frame.len() - usize::from(self.vnet.hdr_len))
            .div_ceil(usize::from(self.vnet.gso_size))
    }
}

/// How often the state of the link was reported, and the last report.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) count: AtomicUsize,
    last: Mutex<Option<bool>>,
}

impl Reports {
    pub(crate) fn callback(self: &Arc<Self>) -> LinkReport {
        let reports = Arc::clone(self);
        Arc::new(move |is_up| {
            reports.count.fetch_add(1, Ordering::SeqCst);
            *reports.last.lock().unwrap() = Some(is_up);
        })
    }

    pub(crate) fn all(&self) -> (usize, Option<bool>) {
        (
            self.count.load(Ordering::SeqCst),
            *self.last.lock().unwrap(),
        )
    }
}

/// A started ring and the driver's ends of its descriptors.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) driver: Driver,
    pub(crate) setup: RingSetup,
}

impl Ring {
    fn new(driver: Driver) -> Self {
        let setup = RingSetup {
            epoch: 1,
            size: driver.size,
            desc_table: driver.desc(),
            avail_ring: driver.avail(),
            used_ring: driver.used(),
            next_avail: driver.used_idx(),
            enabled: true,
            kick: Some(event()),
            call: Some(event()),
            err: Some(event()),
        };
        Self { driver, setup }
    }

    pub(crate) fn kick(&self) {
        signal(self.setup.kick.as_ref().unwrap());
    }

    /// Interrupts since the last look.
    pub(crate) fn calls(&self) -> u64 {
        signals(self.setup.call.as_ref().unwrap())
    }

    /// Reports of a broken ring since the last look.
    pub(crate) fn errors(&self) -> u64 {
        signals(self.setup.err.as_ref().unwrap())
    }

    /// Posts `count` receive buffers of `len` bytes each.
    pub(crate) fn post_rx(&mut self, count: usize, len: u32) {
        for _ in 0..count {
            self.driver.post_rx(&[len]);
        }
    }

    /// Posts a frame to send, behind a header that asks for nothing.
    pub(crate) fn post_tx(&mut self, frame: &[u8]) {
        let bytes = [&[0; VNET_HDR_LEN], frame].concat();
        let len = u32::try_from(bytes.len()).unwrap();
        self.driver.post_tx(&bytes, &[len]);
    }

    /// A start from what the driver has in memory, as after a stop.
    pub(crate) fn restart(&mut self) {
        self.setup.epoch += 1;
        self.setup.next_avail = self.driver.used_idx();
    }

    /// The packets that the guest got, and the chains they were in.
    pub(crate) fn collect(&mut self) -> (Vec<Got>, Vec<Used>) {
        let chains = self.driver.collect_all();
        let mut packets = Vec::new();
        let mut rest = chains.as_slice();
        while let Some(first) = rest.first() {
            let bytes = self.driver.written(first);
            let (hdr, frame) = bytes.split_first_chunk().expect("a header");
            let vnet = VnetHdr::decode(hdr);
            let (mine, later) = rest.split_at(usize::from(vnet.num_buffers));
            let mut frame = frame.to_vec();
            for chain in &mine[1..] {
                frame.extend(self.driver.written(chain));
            }
            for chain in &mine[..mine.len() - 1] {
                let room: u32 = chain.parts.iter().map(|part| part.len).sum();
                assert_eq!(chain.len, room, "all buffers but the last are full");
            }
            packets.push(Got { vnet, frame });
            rest = later;
        }
        (packets, chains)
    }

    pub(crate) fn packets(&mut self) -> Vec<Got> {
        self.collect().0
    }

    /// Makes used receive buffers available again.
    pub(crate) fn give_back(&mut self, chains: &[Used]) {
        for chain in chains {
            self.give_back_parts(&chain.parts);
        }
    }

    fn give_back_parts(&mut self, parts: &[Part]) {
        for part in parts {
            self.driver
                .write(part.addr, &vec![FILLER; part.len as usize]);
        }
        self.driver.post(parts).expect("descriptors are left");
    }
}

/// The whole set-up.
pub(crate) struct Rig {
    pub(crate) pair: QueuePair,
    pub(crate) peer: PairPeer,
    pub(crate) rx: Ring,
    pub(crate) tx: Ring,
    pub(crate) features: Features,
    pub(crate) reports: Arc<Reports>,
}

impl Rig {
    /// Rings of `size`, not applied yet, and an uplink that `wrap` may change.
    pub(crate) fn with_uplink(
        config: &PairConfig,
        size: u16,
        wrap: impl FnOnce(PairQueue) -> Box<dyn UplinkQueue>,
    ) -> Self {
        let (queue, peer) = PairQueue::new().expect("descriptors are left");
        let [rx, tx] = Driver::two(size, 0);
        let reports = Arc::new(Reports::default());
        let pair = QueuePair::new(config, wrap(queue), reports.callback()).unwrap();
        Self {
            pair,
            peer,
            rx: Ring::new(rx),
            tx: Ring::new(tx),
            features: linux(),
            reports,
        }
    }

    /// Rings of `size`, not applied yet.
    pub(crate) fn unstarted(config: &PairConfig, size: u16) -> Self {
        Self::with_uplink(config, size, |queue| Box::new(queue))
    }

    /// A running pair of a Linux guest with a full receive ring of 256.
    pub(crate) fn new(config: &PairConfig) -> Self {
        let mut rig = Self::unstarted(config, 256);
        rig.rx.post_rx(256, BUFFER);
        rig.apply(at_us(0));
        rig
    }

    pub(crate) fn setup(&self) -> PairSetup {
        PairSetup {
            features: self.features.bits(),
            memory: Some(Arc::clone(&self.rx.driver.memory)),
            rx: Some(self.rx.setup.clone()),
            tx: Some(self.tx.setup.clone()),
        }
    }

    /// Hands the set-up over and lets the pair come to rest.
    pub(crate) fn apply(&mut self, now: Instant) -> Positions {
        let positions = self.pair.apply(now, self.setup());
        self.settle(now);
        positions
    }

    /// Takes everything away from the pair.
    pub(crate) fn stop(&mut self, now: Instant) -> Positions {
        self.pair.apply(now, PairSetup::default())
    }

    pub(crate) fn inject(&self, frame: &Built) {
        self.peer
            .inject(&frame.meta.vnet, &frame.bytes)
            .expect("the uplink has room");
    }

    pub(crate) fn inject_all<'a>(&self, frames: impl IntoIterator<Item = &'a Built>) {
        frames.into_iter().for_each(|frame| self.inject(frame));
    }

    /// Takes turns until nothing is left to do at `now`; returns the next deadline.
    pub(crate) fn settle(&mut self, now: Instant) -> Option<Instant> {
        let mut quiet = 0;
        for _ in 0..TURNS_MAX {
            let due = self.pair.turn(now).unwrap();
            quiet = if due == Some(now) { 0 } else { quiet + 1 };
            // One may have unmasked what is ready already, and an uplink that fails may claim a
            // few times to have nothing.
            if quiet == 8 {
                return due;
            }
        }
        panic!("the pair does not come to rest");
    }

    /// Lets time pass from deadline to deadline until there is none; returns when the last was.
    pub(crate) fn rest(&mut self, mut now: Instant) -> Instant {
        for _ in 0..TURNS_MAX {
            match self.settle(now) {
                Some(due) => now = due,
                None => return now,
            }
        }
        panic!("the pair wakes up for ever");
    }

    pub(crate) fn rx_stats(&self) -> ReceiveStats {
        self.pair.stats().receive
    }

    pub(crate) fn tx_stats(&self) -> TransmitStats {
        self.pair.stats().transmit
    }

    /// Frames that the uplink has given out are with the guest, counted as dropped, or in a
    /// buffer of the pool; none is anywhere else.
    pub(crate) fn check_conservation(&self, injected: u64) {
        let stats = self.rx_stats();
        let refused: u64 = vhost_user_gro::gro::DropReason::ALL
            .iter()
            .map(|&reason| stats.gro.dropped(reason))
            .sum();
        assert_eq!(
            injected,
            stats.frames
                + stats.above_mtu
                + stats.dropped_at_stop
                + stats.dropped_too_big
                + refused
                + stats.pool_in_use,
            "{stats:?}"
        );
    }

    /// Everything that came out of the uplink so far.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.peer.next_sent(Duration::ZERO).expect("it is there"))
            .map(|(_, frame)| frame)
            .collect()
    }
}

/// Each frame of `packets` by its sequence number, super-frames cut into their segments.
pub(crate) fn sequence(packets: &[Got]) -> Vec<u32> {
    let seq = |frame: &[u8]| u32::from_be_bytes(frame[38..42].try_into().unwrap());
    packets
        .iter()
        .flat_map(|packet| {
            let first = seq(&packet.frame);
            let step = u32::from(packet.vnet.gso_size);
            (0..u32::try_from(packet.segs()).unwrap()).map(move |nth| first + nth * step)
        })
        .collect()
}

/// A frame to send that tells its number.
pub(crate) fn numbered(number: u32) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[0] = 2;
    frame[20..24].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The numbers of frames made by [`numbered`].
pub(crate) fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames
        .iter()
        .map(|frame| u32::from_be_bytes(frame[20..24].try_into().unwrap()))
        .collect()
}
