//! Real front-ends, replayed.
//!
//! Each file of `tests/transcripts` is a session of a QEMU with this daemon, written down by a
//! proxy between them: `>` is a request with its flag and its number of descriptors, `<` a reply,
//! both with the payload in hexadecimal, `#` what was done to the guest. Here everything is said
//! again, with descriptors of our own, and the replies must be the same.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_user_gro::backend::{Endpoint, Offer};
use vhost_user_gro::worker::PairSetup;

use crate::front_end::{FrontEnd, PROTOCOL_BIT, Req, event};
use crate::served::{Served, offer};

/// Enough for every region of the transcripts.
const MEMORY: u64 = 0x2000_0000;

/// A line of a transcript.
enum Line {
    Request {
        request: Req,
        need_reply: bool,
        descriptors: usize,
        payload: Vec<u8>,
    },
    Reply {
        request: Req,
        payload: Vec<u8>,
    },
    /// Something was done to the guest; the name of it.
    Act(String),
}

fn parse(text: &str) -> Vec<Line> {
    let numbers: BTreeMap<String, Req> = (1..45)
        .map(|number| Req::try_from(number).unwrap())
        .map(|request| (format!("{request:?}"), request))
        .collect();
    text.lines()
        .map(|line| parse_line(line, &numbers))
        .collect()
}

fn parse_line(line: &str, numbers: &BTreeMap<String, Req>) -> Line {
    let (sign, rest) = line.split_once(' ').unwrap();
    if sign == "#" {
        return Line::Act(rest.to_owned());
    }
    let mut words = rest.split(' ');
    let request = numbers[words.next().unwrap()];
    let (mut need_reply, mut descriptors, mut payload) = (false, 0, Vec::new());
    for word in words {
        match word.strip_prefix("fds=") {
            Some(count) => descriptors = count.parse().unwrap(),
            None if word == "need_reply" => need_reply = true,
            None => payload = from_hex(word),
        }
    }
    match sign {
        ">" => Line::Request {
            request,
            need_reply,
            descriptors,
            payload,
        },
        "<" => Line::Reply { request, payload },
        _ => panic!("{line}"),
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Replays a transcript and returns what the data threads worked with after each act, in order.
fn replay(name: &str, pairs: usize) -> Vec<(String, Vec<PairSetup>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/transcripts")
        .join(name);
    let lines = parse(&fs::read_to_string(path).unwrap());

    // The device offers what it offered when the transcript was made.
    let features = lines.iter().find_map(|line| match line {
        Line::Reply {
            request: Req::GET_FEATURES,
            payload,
        } => Some(number(payload)),
        _ => None,
    });
    let offer = Offer {
        features: features.unwrap() & !PROTOCOL_BIT,
        ..offer()
    };
    let served = Served::offering(offer, pairs, |path| Endpoint::Listen { path, mode: None });
    let front = served.connect();
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, MEMORY).unwrap();

    let mut states = Vec::new();
    let mut act = "boot".to_owned();
    for line in lines {
        match line {
            Line::Request {
                request,
                need_reply,
                descriptors,
                payload,
            } => {
                say(
                    &front,
                    (request, need_reply),
                    &payload,
                    (descriptors, &memory),
                );
            }
            Line::Reply { request, payload } => {
                assert_eq!(
                    front.reply(request),
                    Some(payload),
                    "{name}: {request:?} after {act}"
                );
            }
            Line::Act(next) => {
                states.push((std::mem::replace(&mut act, next), now(&front, &served)));
            }
        }
    }
    states.push((act, now(&front, &served)));
    states
}

/// What the data threads work with when every message has taken effect that was sent so far.
fn now(front: &FrontEnd, served: &Served) -> Vec<PairSetup> {
    front.ask_number(Req::GET_MAX_MEM_SLOTS);
    served.pairs.iter().map(|pair| pair.now()).collect()
}

fn say(
    front: &FrontEnd,
    (request, need_reply): (Req, bool),
    payload: &[u8],
    (descriptors, memory): (usize, &OwnedFd),
) {
    let event = event();
    let fd = match request {
        Req::SET_MEM_TABLE | Req::ADD_MEM_REG | Req::REM_MEM_REG => memory.as_fd(),
        _ => event.as_fd(),
    };
    let fds: Vec<BorrowedFd<'_>> = (0..descriptors).map(|_| fd).collect();
    let flags = if need_reply { 9 } else { 1 };
    front.send(request.into(), flags, payload, &fds).unwrap();
}

fn number(payload: &[u8]) -> u64 {
    u64::from_ne_bytes(payload.try_into().unwrap())
}

/// Both rings are in service, enabled, with kick and call.
fn works(setup: &PairSetup) -> bool {
    [&setup.rx, &setup.tx].into_iter().all(|ring| {
        ring.as_ref()
            .is_some_and(|ring| ring.enabled && ring.kick.is_some() && ring.call.is_some())
    })
}

fn is_stopped(setup: &PairSetup) -> bool {
    setup.rx.is_none() && setup.tx.is_none() && setup.memory.is_none()
}

fn assert_one_pair(name: &str) {
    let states = replay(name, 1);
    let acts: Vec<&str> = states.iter().map(|(act, _)| act.as_str()).collect();
    let expected = [
        "boot",
        "set_link off",
        "set_link on",
        "stop",
        "cont",
        "system_reset",
        "quit",
    ];
    assert_eq!(acts, expected, "{name}");
    for (act, setups) in &states {
        let setup = &setups[0];
        let should_work = !["set_link off", "stop", "quit"].contains(&act.as_str());
        assert_eq!(works(setup), should_work, "{name}: {act}: {setup:?}");
        assert_eq!(is_stopped(setup), !should_work, "{name}: {act}: {setup:?}");
    }
}

fn assert_two_pairs(name: &str) {
    let states = replay(name, 2);
    let acts: Vec<&str> = states.iter().map(|(act, _)| act.as_str()).collect();
    assert_eq!(acts, ["boot", "system_reset", "quit"], "{name}");
    for (act, setups) in &states {
        if act == "quit" {
            assert!(setups.iter().all(is_stopped), "{name}: {act}: {setups:?}");
        } else {
            assert!(works(&setups[0]), "{name}: {act}: {:?}", setups[0]);
            // The guest has not asked for the second pair yet.
            let rings = [&setups[1].rx, &setups[1].tx];
            let is_waiting = rings
                .into_iter()
                .all(|ring| ring.as_ref().is_some_and(|ring| !ring.enabled));
            assert!(is_waiting, "{name}: {act}: {:?}", setups[1]);
        }
    }
}

#[test]
fn qemu_10_with_one_pair() {
    assert_one_pair("qemu-10.0.2-one-pair.txt");
}

#[test]
fn qemu_10_with_two_pairs_and_an_mtu() {
    assert_two_pairs("qemu-10.0.2-two-pairs.txt");
}

#[test]
fn qemu_7_with_one_pair() {
    assert_one_pair("qemu-7.2.22-one-pair.txt");
}

#[test]
fn qemu_7_with_two_pairs_and_an_mtu() {
    assert_two_pairs("qemu-7.2.22-two-pairs.txt");
}
