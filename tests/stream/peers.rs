//! Peers that come, go and come again.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::uplink::stream::{Stream, StreamError};
use vhost_user_gro::uplink::{RecvError, SendError};

use crate::rig::{Rig, numbered, stream_of};

/// A path for a socket, and what keeps its directory.
fn path() -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("peer.sock");
    (path.to_str().unwrap().to_owned(), directory)
}

/// Lets a frame go each way.
fn exchange(rig: &mut Rig, mut peer: impl Read + Write) {
    peer.write_all(&stream_of(&[numbered(7, 60)])).unwrap();
    assert_eq!(rig.recv_many(1), [numbered(7, 60)]);
    rig.send_all(&[numbered(8, 1514)]);
    let mut got = vec![0; 1518];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(got, stream_of(&[numbered(8, 1514)]));
}

#[test]
fn a_peer_that_is_not_there_yet_is_no_error_and_not_missed() {
    let (path, _directory) = path();
    let mut rig = Rig::at(&path);
    for _ in 0..3 {
        rig.wait(PollFlags::IN);
        let (frames, end) = rig.recv();
        assert!(frames.is_empty() && matches!(end, Err(RecvError::Down)));
        assert!(matches!(rig.send(&[0; 60]), Err(SendError::Down)));
        assert_eq!(rig.queue.carrier(), None);
    }
    let listener = UnixListener::bind(&path).unwrap();
    rig.until_carrier(true);
    exchange(&mut rig, listener.accept().unwrap().0);
}

#[test]
fn a_client_connects_again_and_again() {
    let (path, _directory) = path();
    let listener = UnixListener::bind(&path).unwrap();
    let mut rig = Rig::at(&path);
    for round in 1..4 {
        let generation = rig.queue.fd_generation();
        rig.until_carrier(true);
        assert_ne!(rig.queue.fd_generation(), generation);
        let (peer, _) = listener.accept().unwrap();
        // A peer that says nothing at all is as good as any.
        if round != 2 {
            exchange(&mut rig, &peer);
        }
        drop(peer);
        rig.until_carrier(false);
        assert_eq!(rig.stats().connects, round);
    }
}

#[test]
fn a_server_serves_one_peer_after_the_other() {
    let (path, _directory) = path();
    let mut rig = Rig::at(&format!("listen:{path}"));
    rig.wait(PollFlags::IN);
    assert!(matches!(rig.recv().1, Err(RecvError::Down)));
    for round in 1..3 {
        let peer = UnixStream::connect(&path).unwrap();
        exchange(&mut rig, &peer);
        drop(peer);
        rig.until_carrier(false);
        assert_eq!(rig.stats().connects, round);
    }
}

/// Whether the queue's second descriptor can be read.
fn is_called(rig: &Rig) -> bool {
    let events = rig.queue.events().expect("it listens");
    let mut fds = [PollFd::from_borrowed_fd(events, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn who_comes_while_another_is_served_is_refused_at_once() {
    let (path, _directory) = path();
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap();
    drop(probe);
    let mut by_path = Rig::at(&format!("listen:{path}"));
    let mut by_port = Rig::at(&format!("listen:{port}"));
    refuses(&mut by_path, || UnixStream::connect(&path).unwrap());
    refuses(&mut by_port, || TcpStream::connect(port).unwrap());
}

fn refuses<P: Read + Write>(rig: &mut Rig, connect: impl Fn() -> P) {
    rig.wait(PollFlags::IN);
    assert!(matches!(rig.recv().1, Err(RecvError::Down)));
    let mut first = connect();
    assert!(!is_called(rig), "it is waited for by the queue itself");
    exchange(rig, &mut first);
    for _ in 0..3 {
        let mut further = connect();
        assert!(is_called(rig));
        rig.queue.follow_device();
        assert!(!is_called(rig));
        // Of frames that it has sent nothing is taken.
        assert_eq!(further.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    exchange(rig, &mut first);
    drop(first);
    rig.until_carrier(false);
    let mut next = connect();
    assert!(!is_called(rig));
    rig.until_carrier(true);
    exchange(rig, &mut next);
    assert_eq!(rig.stats().connects, 2);
}

#[test]
fn f59_a_peer_out_of_step_is_left_and_the_next_connection_is_in_step() {
    let (path, _directory) = path();
    let listener = UnixListener::bind(&path).unwrap();
    let mut rig = Rig::at(&path);
    rig.until_carrier(true);
    let (mut bad, _) = listener.accept().unwrap();
    // Half a frame, so that what follows would be taken for the rest of it.
    bad.write_all(&stream_of(&[numbered(1, 1000)])[..500])
        .unwrap();
    rig.wait(PollFlags::IN);
    assert!(rig.recv().0.is_empty());
    bad.write_all(&[0xff; 2000]).unwrap();
    while rig.queue.carrier() == Some(true) {
        rig.wait(PollFlags::IN);
        let _ = rig.recv();
    }
    assert_eq!(rig.stats().rx_out_of_step, 1);
    rig.until_carrier(true);
    exchange(&mut rig, listener.accept().unwrap().0);
}

#[test]
fn tcp_works_both_ways_and_ends_alike() {
    for host in ["127.0.0.1", "[::1]"] {
        let Ok(probe) = TcpListener::bind(format!("{host}:0")) else {
            eprintln!("SKIPPED: no {host} here");
            continue;
        };
        let address = probe.local_addr().unwrap();
        let mut client = Rig::at(&address.to_string());
        client.until_carrier(true);
        exchange(&mut client, probe.accept().unwrap().0);
        drop(probe);
        client.until_carrier(false);

        let mut server = Rig::at(&format!("listen:{address}"));
        server.wait(PollFlags::IN);
        assert!(server.recv().0.is_empty());
        // The former client finds the new server by itself.
        while server.queue.carrier() != Some(true) || client.queue.carrier() != Some(true) {
            let _ = (server.recv(), client.recv());
        }
        client.send_all(&[numbered(1, 9014)]);
        assert_eq!(server.recv_many(1), [numbered(1, 9014)]);
        server.send_all(&[numbered(2, 60)]);
        assert_eq!(client.recv_many(1), [numbered(2, 60)]);
        drop(server);
        client.until_carrier(false);
    }
}

#[test]
fn a_hang_up_while_nobody_reads_keeps_what_was_sent() {
    let (path, _directory) = path();
    let listener = UnixListener::bind(&path).unwrap();
    let mut rig = Rig::at(&path);
    rig.until_carrier(true);
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(&stream_of(&[numbered(1, 60)])).unwrap();
    drop(peer);
    let generation = rig.queue.fd_generation();
    rig.queue.look_after(true).unwrap();
    assert_ne!(
        rig.queue.fd_generation(),
        generation,
        "it would be called for ever"
    );
    assert!(matches!(rig.send(&[0; 60]), Err(SendError::Down)));
    assert_eq!(rig.recv_many(1), [numbered(1, 60)]);
    rig.until_carrier(false);
    rig.until_carrier(true);
    exchange(&mut rig, listener.accept().unwrap().0);
}

#[test]
fn a_guest_that_is_not_there_holds_no_peer_up() {
    let (path, _directory) = path();
    let listener = UnixListener::bind(&path).unwrap();
    let mut rig = Rig::at(&path);
    rig.queue.set_active(false).unwrap();
    while rig.queue.carrier() != Some(true) {
        rig.wait(PollFlags::IN);
        let _ = rig.queue.look_after(false);
    }
    let (mut peer, _) = listener.accept().unwrap();
    let frames: Vec<_> = (0..2000).map(|nth| numbered(nth, 1514)).collect();
    let writer = std::thread::spawn(move || {
        peer.write_all(&stream_of(&frames)).unwrap();
        peer
    });
    while rig.stats().rx_discarded < 2000 {
        rig.wait(PollFlags::IN);
        rig.queue.look_after(false).unwrap();
    }
    let mut peer = writer.join().unwrap();
    rig.queue.set_active(true).unwrap();
    exchange(&mut rig, &mut peer);
    // And when it is away again, the end of the connection is seen all the same.
    rig.queue.set_active(false).unwrap();
    drop(peer);
    rig.wait(PollFlags::IN);
    assert!(matches!(rig.queue.look_after(true), Err(RecvError::Down)));
    assert_eq!(rig.queue.carrier(), Some(false));
}

#[test]
fn what_can_never_be_a_stream_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let open = |address: &str| Stream::open(&address.parse().unwrap(), true).unwrap_err();
    let taken = open(&format!("listen:{}", file.display()));
    assert!(matches!(taken, StreamError::File(_)), "{taken}");
    let nowhere = open("listen:192.0.2.1:9");
    assert!(matches!(nowhere, StreamError::Listen { .. }), "{nowhere}");
    let no_socket = Stream::given(std::fs::File::open(&file).unwrap().into()).unwrap_err();
    assert!(
        matches!(no_socket, StreamError::NotConnected),
        "{no_socket}"
    );
    let datagrams = std::os::unix::net::UnixDatagram::pair().unwrap().0;
    let datagrams = Stream::given(datagrams.into()).unwrap_err();
    assert!(
        matches!(datagrams, StreamError::NotConnected),
        "{datagrams}"
    );
}

#[test]
fn nobody_is_connected_to_himself() {
    // A port of those that the system gives to clients, with nobody behind it.
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    let (near, far) = (
        TcpStream::connect(address).unwrap(),
        probe.accept().unwrap(),
    );
    let port = near.local_addr().unwrap();
    drop((near, far, probe));
    let mut rig = Rig::at(&port.to_string());
    for _ in 0..4 {
        rig.wait(PollFlags::IN);
        assert!(matches!(rig.recv().1, Err(RecvError::Down)));
        assert_eq!(rig.queue.carrier(), None);
    }
}
