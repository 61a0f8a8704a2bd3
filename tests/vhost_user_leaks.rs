//! Whether descriptors, threads and mappings stay level over many connections. It counts those
//! of the whole process, so it is one test in a binary of its own.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "vhost_user/front_end.rs"]
#[allow(dead_code, reason = "shared with another test binary")]
mod front_end;
#[path = "vhost_user/recorder.rs"]
#[allow(dead_code, reason = "shared with another test binary")]
mod recorder;
#[path = "vhost_user/served.rs"]
#[allow(dead_code, reason = "shared with another test binary")]
mod served;

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use front_end::{FrontEnd, Req, memory};
use served::Served;

/// Descriptors, threads and mappings of guest memory.
fn resources() -> (usize, usize, usize) {
    let count = |directory| std::fs::read_dir(directory).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let guest = maps
        .lines()
        .filter(|line| line.contains("memfd:guest"))
        .count();
    (count("/proc/self/fd"), count("/proc/self/task"), guest)
}

/// Makes sure that the former session was taken apart: only then is this one served.
fn settle(served: &Served) -> FrontEnd {
    for pair in &served.pairs {
        pair.wait_until_idle();
        pair.forget_former();
    }
    let front = served.connect();
    front.ask_number(Req::GET_FEATURES);
    front
}

/// A session with four rings that is broken off.
fn full_session(served: &Served) {
    let front = served.connect();
    front.prepare(&memory());
    let _events: Vec<_> = (0..4).map(|ring| front.start_ring(ring, 0)).collect();
    (0..4).for_each(|ring| front.enable(ring, 1));
    front.stop_ring(0);
}

/// A request with a payload of some length and some descriptors, right or wrong.
fn odd_session(served: &Served, round: u32) {
    let front = served.connect();
    let fd = memory();
    let fds: Vec<BorrowedFd<'_>> = (0..round % 10).map(|_| fd.as_fd()).collect();
    let request = round % 47;
    let payload = vec![0; [0, 8, 40, 7, 12, 72, 4096, 4097][round as usize / 47 % 8]];
    // It may be cut off in the middle of any of this.
    let _ = front.send(request, 1 | (round & 8), &payload, &fds);
    let _ = front.send(Req::GET_FEATURES.into(), 1, &[], &[]);
    front.socket.shutdown(std::net::Shutdown::Write).unwrap();
    while (&front.socket)
        .read(&mut [0; 4096])
        .is_ok_and(|count| count > 0)
    {}
}

#[test]
fn connections_leave_nothing_behind() {
    let served = Served::listening(2);
    for _ in 0..10 {
        full_session(&served);
    }
    let front = settle(&served);
    let before = resources();
    drop(front);
    for _ in 0..300 {
        full_session(&served);
    }
    let front = settle(&served);
    assert_eq!(resources(), before, "after 300 connections");
    drop(front);
    for round in 0..20_000 {
        odd_session(&served, round);
    }
    let _front = settle(&served);
    assert_eq!(resources(), before, "after 20000 odd ones");
}
