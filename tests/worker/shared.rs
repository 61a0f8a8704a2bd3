//! Several queue pairs on one data thread: each has its turn, whatever the others do. Turns are
//! counted, so nothing here depends on how fast the machine is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::uplink::pair::{PairPeer, PairQueue};
use vhost_user_gro::uplink::{
    FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue, UplinkStats,
};
use vhost_user_gro::wire::RxMeta;
use vhost_user_gro::worker::{LinkReport, PairConfig, PairSet, PairSetup, PairStats, Seat};

use crate::rig::{BUFFER, Rig, Ring, at_us, config, event, linux, numbered, numbers, segment};

/// Frames of one poll and of one round. A round has five polls.
const BUDGET: u32 = 64;
const ROUND_BUDGET: u32 = 300;
const POLLS: u64 = 5;
/// Frames of one drain of a transmit ring.
const TX_QUOTA: usize = 64;

/// An uplink that always has another frame.
struct Endless(Arc<OwnedFd>);

impl Endless {
    fn boxed() -> Box<dyn UplinkQueue> {
        let fd = event();
        crate::rig::signal(&fd);
        Box::new(Self(fd))
    }
}

impl UplinkQueue for Endless {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        for _ in 0..budget {
            let Some(mut frame) = pool.take() else {
                return Ok(RecvEnd::PoolEmpty);
            };
            frame.set_range(0, 60);
            let meta = RxMeta::default();
            out.push(RxFrame { frame, meta });
        }
        Ok(RecvEnd::Budget)
    }

    fn send(&mut self, _frame: &TxFrame<'_>) -> Result<(), SendError> {
        Ok(())
    }

    fn set_offloads(&mut self, _offloads: Offloads) -> std::io::Result<()> {
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        UplinkStats::default()
    }
}

/// A set of running pairs, and a driver for each.
struct Shared {
    set: PairSet,
    rings: Vec<(Ring, Ring)>,
    turns: u64,
}

impl Shared {
    fn new(queues: Vec<Box<dyn UplinkQueue>>) -> Self {
        let config = PairConfig {
            napi: NapiConfig {
                budget: BUDGET,
                round_budget: ROUND_BUDGET,
                ..NapiConfig::default()
            },
            pool_frames: 2 * BUDGET as usize,
            ..config()
        };
        let link: LinkReport = Arc::new(|_| {});
        let seat = |(index, queue)| Seat {
            index,
            queue,
            link: Arc::clone(&link),
            tracer: None,
        };
        let seats: Vec<_> = queues.into_iter().enumerate().map(seat).collect();
        let rings = seats.iter().map(|_| {
            let mut rig = Rig::unstarted(&config, 512);
            rig.rx.post_rx(512, BUFFER);
            (rig.rx, rig.tx)
        });
        let mut shared = Self {
            turns: 0,
            rings: rings.collect(),
            set: PairSet::new(&config, seats).unwrap(),
        };
        for nth in 0..shared.rings.len() {
            let setup = shared.setup(nth);
            shared.set.apply(nth, at_us(0), setup);
        }
        shared
    }

    fn setup(&self, nth: usize) -> PairSetup {
        let (rx, tx) = &self.rings[nth];
        PairSetup {
            features: linux().bits(),
            memory: Some(Arc::clone(&rx.driver.memory)),
            rx: Some(rx.setup.clone()),
            tx: Some(tx.setup.clone()),
        }
    }

    /// One turn of the thread, after all deadlines; guests have buffers all the time.
    fn turn(&mut self) {
        self.turns += 1;
        self.set.turn(at_us(100 * self.turns)).unwrap();
        for (rx, _) in &mut self.rings {
            let (_, chains) = rx.collect();
            rx.give_back(&chains);
        }
    }

    fn stats(&self, nth: usize) -> PairStats {
        self.set.stats(nth)
    }
}

fn pairs(count: usize) -> (Vec<Box<dyn UplinkQueue>>, Vec<PairPeer>) {
    let made = (0..count).map(|_| {
        let (queue, peer) = PairQueue::new().unwrap();
        (Box::new(queue) as Box<dyn UplinkQueue>, peer)
    });
    made.unzip()
}

#[test]
fn f69_a_pair_that_never_runs_dry_leaves_the_others_their_turn() {
    let (mut queues, peers) = pairs(3);
    queues.insert(0, Endless::boxed());
    let mut shared = Shared::new(queues);
    for round in 1..=20 {
        for peer in &peers {
            let frame = segment(round).build();
            peer.inject(&frame.meta.vnet, &frame.bytes).unwrap();
        }
        shared.turn();
        for neighbour in 1..4 {
            let read = shared.stats(neighbour).receive.gro.frames;
            assert_eq!(read, u64::from(round), "read in the round it came");
        }
        assert_eq!(shared.stats(0).squeezed, u64::from(round));
    }
    // A round of its own has five polls; here the others had one of them each.
    let polls = shared.stats(0).receive.polls;
    assert!((20..=20 * POLLS).contains(&polls), "{polls}");
}

#[test]
fn f69_pairs_that_never_run_dry_get_equal_shares() {
    const PAIRS: usize = 8;
    let queues = (0..PAIRS).map(|_| Endless::boxed()).collect();
    let mut shared = Shared::new(queues);
    // A round ends after five of eight pairs, and the next one goes on with the sixth.
    for _round in 0..PAIRS {
        shared.turn();
    }
    for nth in 0..PAIRS {
        let stats = shared.stats(nth);
        assert_eq!(stats.receive.polls, POLLS, "pair {nth}");
        assert_eq!(stats.receive.gro.frames, POLLS * u64::from(BUDGET));
        assert_eq!(stats.squeezed, PAIRS as u64);
    }
}

#[test]
fn f69_a_guest_that_sends_without_end_leaves_the_others_their_turn() {
    let (queues, peers) = pairs(2);
    let mut shared = Shared::new(queues);
    for _ in 0..5 * TX_QUOTA {
        shared.rings[0].1.post_tx(&numbered(1));
    }
    shared.rings[0].1.kick();
    for turn in 1..=4_u64 {
        shared.rings[1].1.post_tx(&numbered(7));
        shared.rings[1].1.kick();
        shared.turn();
        assert_eq!(shared.stats(0).transmit.frames, turn * TX_QUOTA as u64);
        assert_eq!(shared.stats(1).transmit.frames, turn);
        let (_, frame) = peers[1].next_sent(Duration::ZERO).unwrap().unwrap();
        assert_eq!(numbers(&[frame]), [7]);
    }
}

#[test]
fn frames_and_kicks_of_one_pair_are_not_those_of_another() {
    let (queues, peers) = pairs(3);
    let mut shared = Shared::new(queues);
    let frame = segment(0).build();
    peers[1].inject(&frame.meta.vnet, &frame.bytes).unwrap();
    shared.rings[2].1.post_tx(&numbered(2));
    shared.rings[2].1.kick();
    shared.turn();
    let read: Vec<_> = (0..3)
        .map(|nth| shared.stats(nth).receive.gro.frames)
        .collect();
    let sent: Vec<_> = (0..3)
        .map(|nth| shared.stats(nth).transmit.frames)
        .collect();
    assert_eq!((read, sent), (vec![0, 1, 0], vec![0, 0, 1]));
    let shares = |nth: usize| Arc::strong_count(&shared.rings[nth].0.driver.memory);
    assert!(shares(0) > 2);
    shared.set.apply(0, at_us(2), PairSetup::default());
    let shares = |nth: usize| Arc::strong_count(&shared.rings[nth].0.driver.memory);
    assert_eq!(shares(0), 2, "one pair is stopped");
    assert!(shares(1) > 2, "and no other one");
}
