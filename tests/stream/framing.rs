//! What comes over the socket and goes into it, in pieces of any size, damaged, and to a peer that
//! does not read.

use std::io::{ErrorKind, Read, Write};

use rustix::event::PollFlags;
use rustix::net::sockopt::set_socket_send_buffer_size;
use vhost_user_gro::uplink::{Flushed, RecvEnd, RecvError, SendError};

use crate::rig::{Rig, numbered, stream_of};

/// Sizes around every bound there is.
fn frames() -> Vec<Vec<u8>> {
    let lens = [14, 15, 60, 61, 1514, 9014, 65549, 1513, 14, 65534];
    (0..)
        .zip(lens)
        .map(|(nth, len)| numbered(nth, len))
        .collect()
}

#[test]
fn f59_frames_arrive_whole_in_whatever_pieces_the_stream_comes() {
    for piece in [1, 3, 4, 5, 1460, 65536] {
        let (mut rig, mut peer) = Rig::pair();
        let mut got = Vec::new();
        for bytes in stream_of(&frames()).chunks(piece) {
            peer.write_all(bytes).unwrap();
            let (frames, end) = rig.recv();
            got.extend(frames);
            assert!(matches!(end, Ok(RecvEnd::Empty)), "{end:?}");
        }
        assert!(got == frames(), "in pieces of {piece}");
        assert_eq!(rig.stats().rx_out_of_step, 0);
    }
}

#[test]
fn f59_frames_leave_whole_to_a_peer_that_takes_them_in_pieces() {
    for piece in [1, 3, 4, 5, 1460, 65536] {
        let (ours, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        // The least that the system gives, so that every write is short.
        set_socket_send_buffer_size(&ours, 1).unwrap();
        let stream = vhost_user_gro::uplink::stream::Stream::given(ours.into());
        let mut rig = Rig::new(stream.unwrap());
        let expected = stream_of(&frames());
        let len = expected.len();
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; len];
            for part in got.chunks_mut(piece) {
                peer.read_exact(part).unwrap();
            }
            got
        });
        rig.send_all(&frames());
        assert!(reader.join().unwrap() == expected, "in pieces of {piece}");
    }
}

#[test]
fn f59_a_length_that_no_frame_has_ends_the_connection_and_is_counted() {
    for len in [0_u32, 1, 13, 65550, 1 << 31, u32::MAX] {
        let (mut rig, mut peer) = Rig::pair();
        let good = vec![numbered(1, 60), numbered(2, 61)];
        peer.write_all(&stream_of(&good)).unwrap();
        peer.write_all(&len.to_be_bytes()).unwrap();
        // What might be taken for a frame.
        peer.write_all(&stream_of(&[numbered(3, 60)])).unwrap();
        let (frames, end) = rig.recv();
        assert_eq!(frames, good, "length {len}");
        // A connection that was given cannot be made again.
        assert!(matches!(end, Err(RecvError::Gone(_))), "{end:?}");
        assert_eq!(rig.stats().rx_out_of_step, 1);
        let at_peer = peer.read(&mut [0; 8]);
        let is_closed = matches!(&at_peer, Ok(0))
            || at_peer.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_closed, "length {len}");
    }
}

#[test]
fn a_peer_that_hangs_up_within_a_frame_leaves_nothing_but_a_count() {
    let (mut rig, mut peer) = Rig::pair();
    let stream = stream_of(&[numbered(1, 60), numbered(2, 60)]);
    peer.write_all(&stream[..stream.len() - 1]).unwrap();
    drop(peer);
    let (frames, _) = rig.recv();
    assert_eq!(frames, [numbered(1, 60)]);
    rig.wait(PollFlags::IN);
    let (frames, end) = rig.recv();
    assert!(frames.is_empty());
    assert!(matches!(end, Err(RecvError::Gone(_))), "{end:?}");
    assert_eq!(rig.stats().rx_truncated, 1);
}

#[test]
fn many_frames_come_with_one_read_and_the_budget_holds() {
    let (mut rig, mut peer) = Rig::pair();
    let frames: Vec<_> = (0..100).map(|nth| numbered(nth, 1514)).collect();
    peer.write_all(&stream_of(&frames)).unwrap();
    let (first, end) = rig.recv();
    assert_eq!(first, frames[..64]);
    assert!(matches!(end, Ok(RecvEnd::Budget)));
    drop(peer);
    // The rest was read already, and comes before the end does.
    let (rest, _) = rig.recv();
    assert_eq!(rest, frames[64..]);
}

#[test]
fn f60_frames_of_every_length_come_whole() {
    let (mut rig, mut peer) = Rig::pair();
    let lens = [65549, 9014, 1514, 14].into_iter().cycle().take(40);
    let frames: Vec<_> = (0..)
        .zip(lens)
        .map(|(nth, len)| numbered(nth, len))
        .collect();
    let stream = stream_of(&frames);
    let writer = std::thread::spawn(move || {
        peer.write_all(&stream).unwrap();
        peer
    });
    assert!(rig.recv_many(40) == frames);
    assert_eq!(rig.stats().rx_truncated, 0);
    drop(writer.join().unwrap());
}

#[test]
fn frames_wait_for_buffers() {
    let (mut rig, mut peer) = Rig::pair();
    let held: Vec<_> = std::iter::from_fn(|| rig.pool.take()).collect();
    peer.write_all(&stream_of(&[numbered(1, 60)])).unwrap();
    let (frames, end) = rig.recv();
    assert!(frames.is_empty() && matches!(end, Ok(RecvEnd::PoolEmpty)));
    drop(held);
    assert_eq!(rig.recv().0, [numbered(1, 60)]);
}

#[test]
fn a_peer_that_does_not_read_is_waited_for_with_bounded_memory() {
    let (mut rig, mut peer) = Rig::pair();
    let frame = |nth| numbered(nth, 1514);
    let mut sent = 0;
    let error = loop {
        match rig.send(&frame(sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 10_000, "it is never full");
    };
    assert!(matches!(error, SendError::Full));
    assert_eq!(rig.queue.flush().unwrap(), Flushed::Partly);
    // It is full for as long as nobody reads, and loses nothing.
    assert!(matches!(rig.send(&frame(sent)), Err(SendError::Full)));
    peer.set_nonblocking(true).unwrap();
    let mut got = Vec::new();
    let total = stream_of(&[frame(0)]).len() * usize::try_from(sent).unwrap();
    while got.len() < total {
        let mut bytes = vec![0; 100_000];
        match peer.read(&mut bytes) {
            Ok(len) => got.extend_from_slice(&bytes[..len]),
            Err(_) => {
                rig.wait(PollFlags::OUT);
                rig.queue.flush().unwrap();
            }
        }
    }
    let all: Vec<_> = (0..sent).map(frame).collect();
    assert!(got == stream_of(&all));
    assert_eq!(rig.stats().tx_lost, 0);
}

#[test]
fn frames_that_were_taken_and_never_left_are_counted() {
    let (mut rig, mut peer) = Rig::pair();
    let mut taken = 0_u64;
    while rig.send(&numbered(0, 1514)).is_ok() {
        taken += 1;
    }
    // Whole frames that reached the peer, read or not, are none of the lost.
    let mut bytes = Vec::new();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    rig.wait(PollFlags::IN);
    assert!(matches!(rig.recv().1, Err(RecvError::Gone(_))));
    peer.read_to_end(&mut bytes).unwrap();
    let arrived = (bytes.len() / 1518) as u64;
    assert_eq!(arrived + rig.stats().tx_lost, taken);
    assert!(matches!(rig.send(&[0; 60]), Err(SendError::Gone(_))));
}

#[test]
fn a_frame_above_the_maximum_is_refused_and_the_stream_stays_in_step() {
    let (mut rig, mut peer) = Rig::pair();
    assert!(matches!(rig.send(&[0; 65550]), Err(SendError::Refused(_))));
    rig.send_all(&[numbered(1, 60)]);
    let mut got = [0; 64];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(got.to_vec(), stream_of(&[numbered(1, 60)]));
}
