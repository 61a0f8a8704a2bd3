//! The uplinks for tests: a socket pair behaves like a tap, and faults come as told.
#![cfg(feature = "daemon")]

use std::time::Duration;

use rustix::io::Errno;
use vhost_user_gro::sys::GuestSlice;
use vhost_user_gro::uplink::fault::{FaultQueue, Pattern, Verdict};
use vhost_user_gro::uplink::null::{Null, NullQueue};
use vhost_user_gro::uplink::pair::{Pair, PairPeer, PairQueue};
use vhost_user_gro::uplink::{
    FramePool, Offloads, RecvEnd, RecvError, SendError, TxFrame, Uplink, UplinkQueue,
};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4};

const AT_ONCE: Duration = Duration::ZERO;
/// The largest frame with its Ethernet header.
const LARGEST: usize = 65535 + 14;

fn pair() -> (PairQueue, PairPeer) {
    PairQueue::new().expect("descriptors are left")
}

fn numbered(number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![number; len];
    frame[0] = 2;
    frame
}

fn send(queue: &mut impl UplinkQueue, frame: &[u8]) -> Result<(), SendError> {
    queue.send(&TxFrame {
        vnet: VnetHdr::default(),
        head: frame,
        rest: &[],
    })
}

/// Everything that waits at the other end.
fn sent(peer: &PairPeer) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| peer.next_sent(AT_ONCE).expect("the queue is there"))
        .map(|(_, frame)| frame)
        .collect()
}

#[test]
fn f60_frames_of_every_size_and_their_header_come_through() {
    let (mut queue, peer) = pair();
    let pool = FramePool::new(4);
    let vnet = VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1448,
        ..VnetHdr::default()
    };
    for len in [14, 60, 1514, 9014, LARGEST + 8] {
        let frame = numbered(7, len);
        peer.inject(&vnet, &frame).unwrap();
        let mut out = Vec::new();
        assert_eq!(
            queue.recv_batch(&pool, 1, &mut out).unwrap(),
            RecvEnd::Budget
        );
        assert!(out[0].frame.as_ref() == frame, "{len} bytes differ");
        assert_eq!(out[0].meta.vnet, vnet);
        // The IP header lies on a boundary that suits word-wise reads.
        assert_eq!(out[0].frame.as_ref().as_ptr().addr() % 4, 2);
    }
    assert_eq!(queue.stats().rx_truncated, 0);
}

#[test]
fn f60_cut_and_short_frames_are_counted_and_use_up_budget() {
    let (mut queue, peer) = pair();
    let pool = FramePool::new(2);
    let message = vec![0; 70_000];
    peer.inject_raw(&[&message]).unwrap();
    peer.inject_raw(&[&[0; 25]]).unwrap();
    peer.inject_raw(&[&[0; 3]]).unwrap();
    peer.inject(&VnetHdr::default(), &numbered(1, 60)).unwrap();
    let mut out = Vec::new();
    let end = queue.recv_batch(&pool, 3, &mut out).unwrap();
    assert_eq!((end, out.len()), (RecvEnd::Budget, 0));
    let end = queue.recv_batch(&pool, 3, &mut out).unwrap();
    assert_eq!((end, out.len()), (RecvEnd::Empty, 1));
    assert_eq!(queue.stats().rx_truncated, 3);
    drop(out);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn f42_a_frame_in_any_number_of_pieces_is_sent_whole() {
    let (mut queue, peer) = pair();
    let frame: Vec<u8> = (0..LARGEST).map(|i| (i % 253).to_le_bytes()[0]).collect();
    let vnet = VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1448,
        ..VnetHdr::default()
    };
    // 4084 bytes and their header are the most that is put together before it is written.
    for len in [67, 4084, 4085, LARGEST] {
        for pieces in [1, 2, 19, 62, 63, 64, 256, 1024, 4096] {
            let mut guest = frame[66..len].to_vec();
            let rest: Vec<_> = guest
                .chunks_mut((len - 66).div_ceil(pieces))
                .map(GuestSlice::from)
                .collect();
            let head = &frame[..66];
            let rest = &rest[..];
            queue.send(&TxFrame { vnet, head, rest }).unwrap();
            let (got_vnet, got) = peer.next_sent(AT_ONCE).unwrap().unwrap();
            assert!(got == frame[..len], "{len} bytes in {pieces} pieces differ");
            assert_eq!(got_vnet, vnet);
        }
    }
}

#[test]
fn f42_more_than_a_frame_can_be_is_refused() {
    let (mut queue, peer) = pair();
    let mut guest = vec![0; 80_000];
    let rest: Vec<_> = guest.chunks_mut(100).map(GuestSlice::from).collect();
    let result = queue.send(&TxFrame {
        vnet: VnetHdr::default(),
        head: &[0; 14],
        rest: &rest,
    });
    assert!(matches!(result, Err(SendError::Refused(_))), "{result:?}");
    assert!(sent(&peer).is_empty());
}

#[test]
fn f39_a_full_queue_says_so_and_goes_on_with_the_same_frame() {
    let (mut queue, peer) = pair();
    let mut got = Vec::new();
    let mut full = 0;
    for number in 0..200 {
        let frame = numbered(number, 60_000);
        while let Err(err) = send(&mut queue, &frame) {
            assert!(matches!(err, SendError::Full), "{err}");
            full += 1;
            let (_, frame) = peer.next_sent(AT_ONCE).unwrap().unwrap();
            got.push(frame[1]);
        }
    }
    got.extend(sent(&peer).iter().map(|frame| frame[1]));
    assert!(full > 0, "the queue never filled up");
    assert_eq!(got, (0..200).collect::<Vec<u8>>());
}

#[test]
fn f40_an_end_that_went_away_is_gone_on_both_sides() {
    let (mut queue, peer) = pair();
    drop(peer);
    let mut out = Vec::new();
    let end = queue.recv_batch(&FramePool::new(1), 64, &mut out);
    assert!(matches!(end, Err(RecvError::Gone(_))), "{end:?}");
    let result = send(&mut queue, &numbered(0, 60));
    assert!(matches!(result, Err(SendError::Gone(_))), "{result:?}");

    let (queue, peer) = pair();
    drop(queue);
    assert!(peer.next_sent(AT_ONCE).is_err());
    assert!(peer.inject(&VnetHdr::default(), &[0; 60]).is_err());
}

#[test]
fn each_queue_of_a_pair_has_its_own_peer_and_offloads() {
    let (mut device, peers) = Pair::new(2).unwrap();
    assert_eq!(device.caps().queues, 2);
    let mut queues = device.take_queues();
    assert!(device.take_queues().is_empty());
    let csum = Offloads {
        csum: true,
        ..Offloads::default()
    };
    queues[1].set_offloads(csum).unwrap();
    assert_eq!(peers[0].offloads(), Offloads::default());
    assert_eq!(peers[1].offloads(), csum);
    peers[1].inject(&VnetHdr::default(), &[5; 60]).unwrap();
    let pool = FramePool::new(1);
    let mut out = Vec::new();
    assert_eq!(
        queues[0].recv_batch(&pool, 1, &mut out).unwrap(),
        RecvEnd::Empty
    );
    assert_eq!(
        queues[1].recv_batch(&pool, 1, &mut out).unwrap(),
        RecvEnd::Budget
    );
}

#[test]
fn f39_a_cycle_of_faults_repeats_in_order() {
    let (queue, peer) = pair();
    let cycle = vec![
        Verdict::Pass,
        Verdict::Full,
        Verdict::NoMemory,
        Verdict::Refuse,
        Verdict::TooLong,
        Verdict::Down,
    ];
    let mut queue = FaultQueue::new(queue, Pattern::Cycle(cycle), Pattern::Cycle(vec![]));
    for round in 0..2 {
        assert!(send(&mut queue, &numbered(round, 60)).is_ok());
        assert!(matches!(send(&mut queue, &[9; 60]), Err(SendError::Full)));
        let no_memory = send(&mut queue, &[9; 60]);
        assert!(matches!(no_memory, Err(SendError::NoMemory)));
        for errno in [Errno::INVAL, Errno::MSGSIZE] {
            let refused = send(&mut queue, &[9; 60]);
            let Err(SendError::Refused(error)) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(Errno::from_io_error(&error), Some(errno));
        }
        assert!(matches!(send(&mut queue, &[9; 60]), Err(SendError::Down)));
    }
    assert_eq!(sent(&peer), [numbered(0, 60), numbered(1, 60)]);
}

#[test]
fn faults_from_a_seed_repeat_and_are_about_as_many_as_asked_for() {
    let run = |seed| {
        let pattern = Pattern::Seeded {
            seed,
            one_in: 4,
            faults: vec![Verdict::Full, Verdict::Down],
        };
        let null = NullQueue::new().expect("descriptors are left");
        let mut queue = FaultQueue::new(null, pattern, Pattern::Cycle(vec![]));
        let fails = |_| send(&mut queue, &[0; 60]).is_err();
        (0..1000).map(fails).collect::<Vec<_>>()
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
    let failed = first.iter().filter(|failed| **failed).count();
    assert!((200..300).contains(&failed), "{failed} of 1000 failed");
}

#[test]
fn a_receive_fault_leaves_the_frames_for_the_next_call() {
    let (queue, peer) = pair();
    peer.inject(&VnetHdr::default(), &[5; 60]).unwrap();
    let cycle = Pattern::Cycle(vec![
        Verdict::Down,
        Verdict::Refuse,
        Verdict::Full,
        Verdict::Pass,
    ]);
    let mut queue = FaultQueue::new(queue, Pattern::Cycle(vec![]), cycle);
    let pool = FramePool::new(1);
    let mut out = Vec::new();
    let mut recv = || queue.recv_batch(&pool, 64, &mut out);
    assert!(matches!(recv(), Err(RecvError::Down)));
    assert!(matches!(recv(), Err(RecvError::Failed(_))));
    assert!(matches!(recv(), Ok(RecvEnd::Empty)));
    assert!(recv().is_ok());
    assert_eq!(out.len(), 1);
}

#[test]
fn null_takes_everything_and_gives_nothing() {
    let mut device = Null::new(1).unwrap();
    let mut queues = device.take_queues();
    let frame = TxFrame {
        vnet: VnetHdr::default(),
        head: &[0; 60],
        rest: &[],
    };
    assert!(queues[0].send(&frame).is_ok());
    let mut out = Vec::new();
    let end = queues[0].recv_batch(&FramePool::new(1), 64, &mut out);
    assert!(matches!(end, Ok(RecvEnd::Empty)));
    assert!(out.is_empty());
}
