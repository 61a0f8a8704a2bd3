//! An uplink that goes on with another descriptor, says whether there is a peer, and sends in
//! batches.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use vhost_user_gro::uplink::pair::PairQueue;
use vhost_user_gro::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
    UplinkStats,
};

use crate::packet::{A, ACK, B, PSH, tcp4};
use crate::rig::{BUFFER, Rig, at_us, config, numbered, numbers};

/// What the test sees of the queue and tells it.
#[derive(Debug, Default)]
struct Seen {
    /// Goes on with this queue when the present one ends.
    next: Option<PairQueue>,
    has_carrier: Option<bool>,
    looks: usize,
    flushes: usize,
    /// How many flushes in a row find no room.
    no_room: usize,
}

/// A queue that survives the end of its descriptor.
struct Recovering {
    inner: PairQueue,
    generation: u64,
    seen: Arc<Mutex<Seen>>,
}

impl Recovering {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn recover(&mut self) -> Result<(), RecvError> {
        let next = self.seen().next.take();
        let gone = || RecvError::Gone(io::ErrorKind::NotConnected.into());
        self.inner = next.ok_or_else(gone)?;
        self.generation += 1;
        Ok(())
    }
}

impl UplinkQueue for Recovering {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn fd_generation(&self) -> u64 {
        self.generation
    }

    fn look_after(&mut self, failed: bool) -> Result<(), RecvError> {
        self.seen().looks += 1;
        if failed { self.recover() } else { Ok(()) }
    }

    fn carrier(&self) -> Option<bool> {
        self.seen().has_carrier
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        match self.inner.recv_batch(pool, budget, out) {
            Err(RecvError::Gone(_)) => {
                self.recover()?;
                Err(RecvError::Down)
            }
            result => result,
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        self.inner.send(frame)
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        let mut seen = self.seen();
        seen.flushes += 1;
        if seen.no_room > 0 {
            seen.no_room -= 1;
            return Ok(Flushed::Partly);
        }
        Ok(Flushed::All)
    }

    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.inner.set_offloads(offloads)
    }

    fn stats(&self) -> UplinkStats {
        self.inner.stats()
    }
}

fn rig() -> (Rig, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut rig = Rig::with_uplink(&config(), 256, |inner| {
        Box::new(Recovering {
            inner,
            generation: 0,
            seen: Arc::clone(&seen),
        })
    });
    rig.rx.post_rx(64, BUFFER);
    rig.apply(at_us(0));
    rig.rest(at_us(0));
    (rig, seen)
}

/// Lets the present peer hang up; another one is ready.
fn change_peer(rig: &mut Rig, seen: &Mutex<Seen>) {
    let (queue, peer) = PairQueue::new().unwrap();
    seen.lock().unwrap().next = Some(queue);
    rig.peer = peer;
}

#[test]
fn a_queue_goes_on_with_another_descriptor() {
    let (mut rig, seen) = rig();
    let frame = tcp4(A, B).flags(PSH | ACK).payload(100).build();
    for round in 1..4 {
        change_peer(&mut rig, &seen);
        let now = rig.rest(at_us(round * 1_000_000));
        rig.inject(&frame);
        rig.rest(now);
        assert_eq!(rig.rx.packets().len(), 1, "round {round}");
    }
    assert_eq!(rig.reports.all(), (0, None));
}

#[test]
fn a_queue_that_nobody_reads_is_looked_after() {
    let (mut rig, seen) = rig();
    rig.rx.setup.enabled = false;
    rig.apply(at_us(1));
    change_peer(&mut rig, &seen);
    assert_eq!(rig.settle(at_us(2)), None);
    assert_eq!(seen.lock().unwrap().looks, 1, "once for the hang-up");
    // What comes over the new one wakes once, and is there when somebody reads.
    rig.inject(&tcp4(A, B).flags(PSH | ACK).payload(100).build());
    assert_eq!(rig.settle(at_us(3)), None);
    assert_eq!(seen.lock().unwrap().looks, 2);
    rig.rx.setup.enabled = true;
    rig.apply(at_us(4));
    rig.rest(at_us(5));
    assert_eq!(rig.rx.packets().len(), 1);
    assert_eq!(rig.reports.all(), (0, None));
}

#[test]
fn frames_that_waited_for_the_old_descriptor_go_to_the_new_one() {
    let (mut rig, seen) = rig();
    seen.lock().unwrap().no_room = 1;
    // The old one is full, in earnest.
    let (queue, peer) = PairQueue::new().unwrap();
    let message = [&[0; 12][..], &[2; 65_000]].concat();
    let parts = rig.tx.driver.tx_parts(&message, &[65_012]);
    for _ in 0..255 {
        rig.tx.driver.post(&parts).unwrap();
    }
    rig.tx.kick();
    rig.settle(at_us(1));
    rig.settle(at_us(2));
    let taken = rig.tx.driver.collect_all().len();
    assert!(taken < 255, "it was never full");
    rig.rx.setup.enabled = false;
    rig.apply(at_us(3));
    seen.lock().unwrap().next = Some(queue);
    rig.peer = peer;
    rig.settle(at_us(4));
    assert!(!rig.tx.driver.collect_all().is_empty());
}

#[test]
fn the_guest_is_told_of_each_change_of_the_carrier_once() {
    let (mut rig, seen) = rig();
    let mut told = 0;
    for (carrier, is_news) in [
        (Some(true), false),
        (Some(false), true),
        (None, false),
        (Some(false), false),
        (Some(true), true),
    ] {
        seen.lock().unwrap().has_carrier = carrier;
        rig.settle(at_us(1));
        told += usize::from(is_news);
        let (count, last) = rig.reports.all();
        assert_eq!(count, told);
        if is_news {
            assert_eq!(last, carrier);
        }
    }
}

#[test]
fn each_bulk_is_one_batch() {
    let (mut rig, seen) = rig();
    let before = seen.lock().unwrap().flushes;
    for number in 0..20 {
        rig.tx.post_tx(&numbered(number));
    }
    rig.tx.kick();
    rig.settle(at_us(1));
    assert_eq!(numbers(&rig.sent()), (0..20).collect::<Vec<_>>());
    assert_eq!(seen.lock().unwrap().flushes, before + 3, "7, 7 and 6");
}

#[test]
fn what_a_batch_left_behind_leaves_without_the_guest() {
    let (mut rig, seen) = rig();
    seen.lock().unwrap().no_room = 3;
    rig.tx.post_tx(&numbered(1));
    rig.tx.kick();
    rig.settle(at_us(1));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.no_room, 0, "the socket is writable all the time");
    drop(seen);
    let drains = rig.tx_stats().drains;
    rig.settle(at_us(2));
    assert_eq!(rig.tx_stats().drains, drains, "and then there is peace");
}
