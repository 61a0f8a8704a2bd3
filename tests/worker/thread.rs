//! The hand-shake with a real data thread. Everything waits on descriptors or answers.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::sys::{Placement, Policy};
use vhost_user_gro::uplink::pair::{PairPeer, PairQueue};
use vhost_user_gro::uplink::{
    Flushed, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkQueue,
    UplinkStats,
};
use vhost_user_gro::worker::{
    DataThread, LinkReport, PairControl, PairSetup, Positions, Seat, ThreadConfig,
};

use crate::packet::{A, ACK, B, Built, PSH, tcp4};
use crate::rig::{
    BUFFER, Reports, Rig, Ring, config, linux, numbered, numbers, segment, signals, with_timeout,
};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until an event descriptor is signalled; fails when it never is.
fn await_signal(fd: &OwnedFd) -> u64 {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let limit = Timespec::try_from(LIMIT).unwrap();
    assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "no signal came");
    signals(fd)
}

/// A data thread and the rings for it. The pair of the rig stays idle.
struct Threaded {
    thread: DataThread,
    control: Arc<dyn PairControl>,
    peer: PairPeer,
    rx: Ring,
    tx: Ring,
}

fn thread_config() -> ThreadConfig {
    ThreadConfig {
        index: 7,
        placement: Placement::default(),
        pair: with_timeout(Duration::from_micros(50)),
    }
}

fn seat(queue: impl UplinkQueue + 'static) -> Seat {
    Seat {
        index: 0,
        queue: Box::new(queue),
        link: Arc::new(|_| {}),
        tracer: None,
    }
}

impl Threaded {
    fn new(wrap: impl FnOnce(PairQueue) -> Box<dyn UplinkQueue>, link: LinkReport) -> Self {
        let rig = Rig::unstarted(&config(), 64);
        let (queue, peer) = PairQueue::new().unwrap();
        let seat = Seat {
            index: 0,
            queue: wrap(queue),
            link,
            tracer: None,
        };
        let thread = DataThread::spawn(thread_config(), vec![seat]).unwrap();
        let mut threaded = Self {
            control: thread.control(0),
            thread,
            peer,
            rx: rig.rx,
            tx: rig.tx,
        };
        threaded.rx.post_rx(64, BUFFER);
        threaded
    }

    fn plain() -> Self {
        Self::new(|queue| Box::new(queue), Arc::new(|_| {}))
    }

    fn apply(&self) -> Positions {
        self.control.apply(PairSetup {
            features: linux().bits(),
            memory: Some(Arc::clone(&self.rx.driver.memory)),
            rx: Some(self.rx.setup.clone()),
            tx: Some(self.tx.setup.clone()),
        })
    }

    fn inject(&self, frame: &Built) {
        self.peer.inject(&frame.meta.vnet, &frame.bytes).unwrap();
    }

    fn next_sent(&self) -> Vec<u8> {
        let (_, frame) = self.peer.next_sent(LIMIT).unwrap().expect("a frame comes");
        frame
    }

    /// Waits for `count` frames; returns the packets they came in.
    fn receive(&mut self, count: usize) -> Vec<crate::rig::Got> {
        let mut packets = Vec::new();
        loop {
            packets.extend(self.rx.packets());
            let got: usize = packets.iter().map(crate::rig::Got::segs).sum();
            assert!(got <= count);
            if got == count {
                return packets;
            }
            await_signal(self.rx.setup.call.as_ref().unwrap());
        }
    }
}

#[test]
fn frames_pass_both_ways() {
    let mut threaded = Threaded::plain();
    threaded.apply();
    for nth in 0..20 {
        threaded.inject(&segment(nth).build());
    }
    let packets = threaded.receive(20);
    assert_eq!(crate::rig::sequence(&packets).len(), 20);
    threaded.tx.post_tx(&numbered(1));
    threaded.tx.kick();
    assert_eq!(numbers(&[threaded.next_sent()]), [1]);
}

#[test]
fn f10_a_lone_segment_is_flushed_by_the_timer() {
    let mut threaded = Threaded::plain();
    threaded.apply();
    for nth in 0..3 {
        threaded.inject(&segment(nth).build());
        threaded.receive(1);
    }
}

#[test]
fn f58_apply_returns_when_the_memory_is_free() {
    let threaded = Threaded::plain();
    let memory = Arc::clone(&threaded.rx.driver.memory);
    for round in 0..50_u16 {
        threaded.apply();
        threaded.inject(&tcp4(A, B).flags(PSH | ACK).payload(1).build());
        threaded.control.apply(PairSetup::default());
        assert_eq!(Arc::strong_count(&memory), 3, "round {round}");
    }
}

#[test]
fn f49_positions_come_back_with_the_answer() {
    let mut threaded = Threaded::plain();
    assert_eq!(threaded.apply(), Positions::default());
    threaded.tx.post_tx(&numbered(1));
    threaded.tx.kick();
    threaded.next_sent();
    await_signal(threaded.tx.setup.call.as_ref().unwrap());
    threaded.inject(&tcp4(A, B).flags(PSH | ACK).payload(1).build());
    threaded.receive(1);
    let positions = threaded.control.apply(PairSetup::default());
    assert_eq!((positions.rx, positions.tx), (Some(1), Some(1)));
}

#[test]
fn an_announcement_leaves_without_any_ring() {
    let threaded = Threaded::plain();
    threaded.control.announce(numbered(7));
    assert_eq!(numbers(&[threaded.next_sent()]), [7]);
}

#[test]
fn f40_a_lost_uplink_is_reported_and_the_thread_goes_on() {
    let reports = Arc::new(Reports::default());
    let reported = crate::rig::event();
    let link: LinkReport = {
        let (reports, reported) = (reports.callback(), Arc::clone(&reported));
        Arc::new(move |is_up| {
            reports(is_up);
            crate::rig::signal(&reported);
        })
    };
    let mut threaded = Threaded::new(|queue| Box::new(queue), link);
    threaded.apply();
    let (_, other) = PairQueue::new().unwrap();
    drop(std::mem::replace(&mut threaded.peer, other));
    await_signal(&reported);
    // Nothing is sent any more, and the guest's frames do not pile up.
    threaded.tx.post_tx(&numbered(1));
    threaded.tx.kick();
    await_signal(threaded.tx.setup.call.as_ref().unwrap());
    assert_eq!(threaded.tx.driver.collect_all().len(), 1);
    assert_eq!(threaded.thread.stats(0).unwrap().transmit.dropped_down, 1);
    threaded.control.apply(PairSetup::default());
    assert_eq!(reports.all(), (1, Some(false)));
}

#[test]
fn a_thread_that_has_ended_answers_nothing_and_blocks_nobody() {
    let Threaded {
        thread, control, ..
    } = Threaded::plain();
    drop(thread);
    assert_eq!(control.apply(PairSetup::default()), Positions::default());
    control.announce(numbered(1));
}

/// What makes [`Defective`] fail.
const POISON: u32 = 666;

/// An uplink with a defect: it panics when it is to send a certain frame, or to receive one of a
/// certain length.
struct Defective(PairQueue);

impl UplinkQueue for Defective {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        let end = self.0.recv_batch(pool, budget, out);
        let is_poison = |frame: &RxFrame| frame.frame.as_ref().len() == 54 + POISON as usize;
        assert!(!out.iter().any(is_poison), "a defect on purpose");
        end
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        assert_ne!(
            numbers(&[frame.head.to_vec()]),
            [POISON],
            "a defect on purpose"
        );
        self.0.send(frame)
    }

    fn set_offloads(&mut self, offloads: Offloads) -> std::io::Result<()> {
        self.0.set_offloads(offloads)
    }

    fn stats(&self) -> UplinkStats {
        self.0.stats()
    }
}

fn defective() -> Threaded {
    let mut threaded = Threaded::new(|queue| Box::new(Defective(queue)), Arc::new(|_| {}));
    threaded.apply();
    // Once each way, so that positions are not where they began.
    threaded.inject(&segment(0).build());
    threaded.receive(1);
    threaded.tx.post_tx(&numbered(1));
    threaded.tx.kick();
    threaded.next_sent();
    // The frame is out before its chain is back.
    await_signal(threaded.tx.setup.call.as_ref().unwrap());
    threaded
}

/// Both rings were reported broken; a new start of them serves again.
fn check_recovery(mut threaded: Threaded, expected: Positions) {
    await_signal(threaded.rx.setup.err.as_ref().unwrap());
    await_signal(threaded.tx.setup.err.as_ref().unwrap());
    assert_eq!(threaded.thread.stats(0).unwrap().internal_errors, 1);
    assert_eq!(threaded.control.apply(PairSetup::default()), expected);
    assert_eq!(Arc::strong_count(&threaded.rx.driver.memory), 2);
    threaded.rx.restart();
    threaded.tx.setup.epoch += 1;
    // The driver's frame that did the harm is not to be sent again.
    threaded.tx.setup.next_avail = threaded.tx.driver.avail_idx();
    threaded.apply();
    threaded.inject(&segment(1).build());
    let packets = threaded.receive(1);
    assert_eq!(crate::rig::sequence(&packets), [1449], "nothing of before");
    threaded.tx.post_tx(&numbered(3));
    threaded.tx.kick();
    assert_eq!(numbers(&[threaded.next_sent()]), [3]);
    let stats = threaded.thread.stats(0).unwrap();
    assert_eq!(stats.receive.pool_in_use, 0);
    assert_eq!(stats.internal_errors, 1);
}

#[test]
fn a_defect_in_sending_stops_the_rings_and_not_the_thread() {
    let mut threaded = defective();
    threaded.tx.post_tx(&numbered(POISON));
    threaded.tx.kick();
    let stood = Positions {
        rx: Some(1),
        tx: Some(1),
    };
    check_recovery(threaded, stood);
}

#[test]
fn a_defect_in_receiving_stops_the_rings_and_not_the_thread() {
    let threaded = defective();
    threaded.inject(&segment(0).payload(POISON as usize).build());
    let stood = Positions {
        rx: Some(1),
        tx: Some(1),
    };
    check_recovery(threaded, stood);
}

#[test]
fn f69_a_defect_in_one_pair_leaves_its_neighbour_in_service() {
    let (defective, culprit) = PairQueue::new().unwrap();
    let (queue, peer) = PairQueue::new().unwrap();
    let seats = vec![seat(Defective(defective)), seat(queue)];
    let thread = DataThread::spawn(thread_config(), seats).unwrap();
    let rigs: Vec<_> = (0..2)
        .map(|_| Rig::unstarted(&config(), 64))
        .map(|mut rig| {
            rig.rx.post_rx(64, BUFFER);
            rig
        })
        .collect();
    for (nth, rig) in rigs.iter().enumerate() {
        thread.control(nth).apply(rig.setup());
    }
    let mut neighbour = rigs.into_iter().nth(1).unwrap();
    for round in 0..10 {
        let poison = segment(0).payload(POISON as usize).build();
        let _ = culprit.inject(&poison.meta.vnet, &poison.bytes);
        // Frame and kick may be in the same batch of events as the defect.
        let frame = segment(round).build();
        peer.inject(&frame.meta.vnet, &frame.bytes).unwrap();
        neighbour.tx.post_tx(&numbered(round));
        neighbour.tx.kick();
        let (_, sent) = peer.next_sent(LIMIT).unwrap().expect("a frame comes");
        assert_eq!(numbers(&[sent]), [round]);
        await_signal(neighbour.rx.setup.call.as_ref().unwrap());
    }
    assert_eq!(thread.stats(0).unwrap().internal_errors, 1);
    assert_eq!(thread.stats(1).unwrap().internal_errors, 0);
    assert_eq!(thread.stats(1).unwrap().receive.frames, 10);
}

#[test]
fn a_thread_has_its_name_and_its_place() {
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let is_there = |cpu: &usize| cpus.is_set(*cpu);
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(is_there).unwrap();
    let config = ThreadConfig {
        index: 31,
        placement: Placement {
            cpu: Some(cpu),
            policy: Some(Policy::Batch(19)),
        },
        ..thread_config()
    };
    let (queue, _peer) = PairQueue::new().unwrap();
    let _thread = DataThread::spawn(config, vec![seat(queue)]).unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut statuses = tasks.filter_map(|task| {
        let status = task.ok()?.path().join("status");
        std::fs::read_to_string(status).ok()
    });
    let status = statuses.find(|status| status.contains("Name:\tworker-31\n"));
    let place = format!("Cpus_allowed_list:\t{cpu}\n");
    assert!(status.expect("the thread is there").contains(&place));
}

#[test]
fn a_thread_that_cannot_be_placed_is_not_started() {
    let (queue, peer) = PairQueue::new().unwrap();
    let config = ThreadConfig {
        placement: Placement {
            cpu: Some(1023),
            policy: None,
        },
        ..thread_config()
    };
    let error = DataThread::spawn(config, vec![seat(queue)]).unwrap_err();
    assert_eq!(error.to_string(), "worker 7 cannot be placed");
    assert!(peer.next_sent(LIMIT).is_err(), "its queue is let go");
}

/// The number of a frame that is an announcement.
const ANNOUNCEMENT: u32 = 77;

/// Takes an announcement at once, lets it go at the second flush, and says late that it has left.
struct Late {
    queue: PairQueue,
    is_late: bool,
    bytes: u32,
    flushes: u32,
    questions: u32,
    asked: mpsc::Sender<()>,
}

impl UplinkQueue for Late {
    fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        self.queue.recv_batch(pool, budget, out)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        self.queue.send(frame)?;
        self.is_late |= numbers(&[frame.head.to_vec()]) == [ANNOUNCEMENT];
        self.bytes += 60;
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, SendError> {
        self.flushes += u32::from(self.is_late);
        match self.flushes {
            1 => Err(SendError::Full),
            _ => Ok(Flushed::All),
        }
    }

    fn take_completed(&mut self) -> Option<u32> {
        if self.flushes >= 2 {
            self.questions += 1;
            let _ = self.asked.send(());
        }
        if self.is_late && self.questions < 3 {
            return Some(0);
        }
        Some(std::mem::take(&mut self.bytes))
    }

    fn set_offloads(&mut self, offloads: Offloads) -> std::io::Result<()> {
        self.queue.set_offloads(offloads)
    }

    fn stats(&self) -> UplinkStats {
        self.queue.stats()
    }
}

#[test]
fn f39_frames_posted_while_an_announcement_is_on_its_way_need_no_kick() {
    let (asked, questions) = mpsc::channel();
    let late = |queue| -> Box<dyn UplinkQueue> {
        Box::new(Late {
            queue,
            is_late: false,
            bytes: 0,
            flushes: 0,
            questions: 0,
            asked,
        })
    };
    let mut threaded = Threaded::new(late, Arc::new(|_| {}));
    threaded.apply();
    threaded.tx.post_tx(&numbered(1));
    threaded.tx.kick();
    threaded.next_sent();
    await_signal(threaded.tx.setup.call.as_ref().unwrap());
    while threaded.tx.driver.used_flags() & 1 != 0 {
        std::thread::yield_now();
    }
    threaded.control.announce(numbered(ANNOUNCEMENT));
    assert_eq!(numbers(&[threaded.next_sent()]), [ANNOUNCEMENT]);
    // It is in the middle of a drain, and kicks are off.
    questions.recv_timeout(LIMIT).expect("a question");
    (0..10).for_each(|number| threaded.tx.post_tx(&numbered(number)));
    if threaded.tx.driver.used_flags() & 1 == 0 {
        threaded.tx.kick();
    }
    let sent: Vec<_> = (0..10).map(|_| threaded.next_sent()).collect();
    assert_eq!(numbers(&sent), (0..10).collect::<Vec<_>>());
}
