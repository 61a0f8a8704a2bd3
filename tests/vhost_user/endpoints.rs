//! Listening, connecting and a given descriptor; the link; the end of the program.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use vhost_user_gro::backend::{Endpoint, EndpointError, LinkHandle, Offer, Sessions, StopHandle};
use vhost_user_gro::socket_file::SocketFileError;

use crate::front_end::{FrontEnd, Req, memory};
use crate::recorder::{PATIENCE, Recorder};
use crate::served::{Served, controls, offer, offered};

/// Short, so that tests are fast; nothing depends on it.
const RETRY: Duration = Duration::from_millis(1);

/// Connects as soon as somebody listens. Each attempt is a system call that fails at once, so the
/// wait between them is only there to leave the CPU to others.
fn connect_when_possible(path: &Path) -> FrontEnd {
    let mut waited = Duration::ZERO;
    loop {
        match UnixStream::connect(path) {
            Ok(socket) => return FrontEnd { socket },
            Err(error) => {
                assert!(waited < PATIENCE, "nobody listens: {error}");
                std::thread::park_timeout(RETRY);
                waited += RETRY;
            }
        }
    }
}

#[test]
fn front_ends_are_served_one_after_the_other() {
    let served = Served::listening(1);
    let first = served.connect();
    assert_eq!(first.ask_number(Req::GET_FEATURES), offered());
    let second = served.connect();
    second.say(Req::GET_FEATURES, &[], &[]);
    assert_eq!(
        first.ask_number(Req::GET_FEATURES),
        offered(),
        "the first is not disturbed"
    );
    drop(first);
    assert!(
        second.reply(Req::GET_FEATURES).is_some(),
        "the second has its turn"
    );
}

#[test]
fn stop_ends_a_session_and_removes_the_socket() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    let _events = front.start_ring(0, 0);
    let (path, pair) = (served.path.clone(), served.pairs[0].clone());
    drop(served);
    front.expect_closed();
    assert!(!path.exists());
    assert!(
        crate::recorder::is_nothing(&pair.now()),
        "everything was given back"
    );
}

#[test]
fn socket_has_the_wanted_mode() {
    let served = Served::at(1, |path| Endpoint::Listen {
        path,
        mode: Some(0o660),
    });
    let mode = std::fs::metadata(&served.path)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn live_socket_is_not_taken_over() {
    let served = Served::listening(1);
    let endpoint = Endpoint::Listen {
        path: served.path.clone(),
        mode: None,
    };
    let pairs = Recorder::for_pairs(1);
    let second = Sessions::new(
        endpoint,
        offer(),
        controls(&pairs),
        LinkHandle::new().unwrap(),
    );
    assert!(matches!(
        second,
        Err(EndpointError::File(SocketFileError::InUse { .. }))
    ));
    assert_eq!(served.connect().ask_number(Req::GET_FEATURES), offered());
}

#[test]
fn client_connects_when_there_is_somebody_and_again() {
    let served = Served::at(1, |path| Endpoint::Connect { path, retry: RETRY });
    for _ in 0..3 {
        let listener = UnixListener::bind(&served.path).unwrap();
        let front = FrontEnd {
            socket: listener.accept().unwrap().0,
        };
        front.prepare(&memory());
        let _events = front.start_ring(0, 0);
        assert!(served.pairs[0].now().rx.is_some());
        drop((front, listener));
        served.pairs[0].wait_until_idle();
        std::fs::remove_file(&served.path).unwrap();
    }
}

#[test]
fn client_that_waits_for_its_next_attempt_stops_at_once() {
    let served = Served::at(1, |path| Endpoint::Connect {
        path,
        retry: Duration::from_secs(3600),
    });
    drop(served);
}

#[test]
fn given_socket_is_served_once() {
    let (front, ours) = UnixStream::pair().unwrap();
    let served = Served::at(1, |_| Endpoint::Fd(OwnedFd::from(ours)));
    let front = FrontEnd { socket: front };
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
    drop(front);
    served.wait_for_end();
}

#[test]
fn one_off_ends_with_the_first_front_end_that_speaks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("net.sock");
    let pairs = Recorder::for_pairs(1);
    let endpoint = Endpoint::Listen {
        path: path.clone(),
        mode: None,
    };
    let sessions = Sessions::new(
        endpoint,
        offer(),
        controls(&pairs),
        LinkHandle::new().unwrap(),
    )
    .unwrap()
    .one_off();
    let stop = StopHandle::new().unwrap();
    let thread = std::thread::spawn(move || sessions.run(&stop));
    drop(FrontEnd::connect(&path));
    let front = FrontEnd::connect(&path);
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
    drop(front);
    thread.join().unwrap();
    assert!(!path.exists());
}

#[test]
fn given_descriptor_must_be_a_connected_socket() {
    let unconnected = OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap());
    for fd in [crate::front_end::event(), unconnected] {
        let pairs = Recorder::for_pairs(1);
        let sessions = Sessions::new(
            Endpoint::Fd(fd),
            offer(),
            controls(&pairs),
            LinkHandle::new().unwrap(),
        );
        assert!(matches!(sessions, Err(EndpointError::NotConnected)));
    }
}

#[test]
fn number_and_size_of_rings_are_checked_at_the_start() {
    let sessions = |ring_size_max, pairs| {
        let (_front, ours) = UnixStream::pair().unwrap();
        let offer = Offer {
            ring_size_max,
            ..offer()
        };
        let controls = controls(&Recorder::for_pairs(pairs));
        Sessions::new(
            Endpoint::Fd(ours.into()),
            offer,
            controls,
            LinkHandle::new().unwrap(),
        )
    };
    assert!(matches!(
        sessions(1000, 1),
        Err(EndpointError::RingSize(1000))
    ));
    for pairs in [0, 129] {
        let result = sessions(1024, pairs);
        assert!(matches!(result, Err(EndpointError::PairCount(count)) if count == pairs));
    }
    assert!(sessions(32768, 128).is_ok());
}

#[test]
fn link_held_down_ends_the_session_and_refuses_the_next() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    let _events = front.start_ring(0, 0);

    served.link.hold_down(true);
    front.expect_closed();
    served.pairs[0].wait_until_idle();
    // The socket may take connections for a moment still; none of them is served.
    let refused = loop {
        match UnixStream::connect(&served.path) {
            Ok(socket) => FrontEnd { socket }.expect_closed(),
            Err(error) => break error.kind(),
        }
    };
    assert!(matches!(
        refused,
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    ));

    served.link.hold_down(false);
    let front = connect_when_possible(&served.path);
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
}

#[test]
fn link_held_down_before_the_first_session_counts() {
    let served = Served::listening(1);
    served.link.hold_down(true);
    served.link.hold_down(false);
    let front = connect_when_possible(&served.path);
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
}

#[test]
fn client_does_not_connect_while_the_link_is_down() {
    let served = Served::at(1, |path| Endpoint::Connect { path, retry: RETRY });
    let listener = UnixListener::bind(&served.path).unwrap();
    let front = FrontEnd {
        socket: listener.accept().unwrap().0,
    };
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
    served.link.hold_down(true);
    front.expect_closed();
    served.link.hold_down(false);
    let front = FrontEnd {
        socket: listener.accept().unwrap().0,
    };
    assert_eq!(front.ask_number(Req::GET_FEATURES), offered());
}
