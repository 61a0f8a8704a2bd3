//! Inputs to begin with, in the format of each body: the cases of `tests/gro`, and frames of real
//! captures.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::layout;
use vhost_user_gro::wire::vnet_hdr::{
    F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET_HDR_LEN,
};

use super::captured::{self, Captured};
use super::chain;
use super::engine::{Change, Meta, Step, Tunables};
use crate::support::case::{self, Case, Item, Op};
use crate::support::cut::Headers;
use crate::support::packet::{A, B, Built, tcp4, tcp6, udp4};

/// Most bytes of an input that libFuzzer takes; `run.sh` says so to it.
const MAX_LEN: usize = 4096;
/// Frames that are taken of those whose headers say the same.
const ALIKE: usize = 3;

/// The seeds of the body with this name, those of the captures with these paths among them.
pub fn of(body: &str, captures: &[&Path]) -> Vec<Vec<u8>> {
    let captured: Vec<Vec<Captured>> = captures.iter().map(|path| captured::frames(path)).collect();
    let frames = || {
        let mut frames = frames();
        frames.extend(differing(captured.iter().flatten()));
        frames
    };
    match body {
        "layout" => frames().iter().map(|frame| layout(frame)).collect(),
        "tx_frame" => frames().iter().flat_map(|frame| tx_frame(frame)).collect(),
        "engine" => cases()
            .iter()
            .map(engine)
            .chain(bursts())
            .chain(captured.iter().flat_map(|capture| replays(capture)))
            .collect(),
        "chain" => chain::seeds(),
        other => panic!("no body {other}"),
    }
}

/// Frames that differ in what is found in them: a capture has thousands that are alike.
fn differing<'a>(captured: impl Iterator<Item = &'a Captured>) -> Vec<Vec<u8>> {
    let mut counts = HashMap::new();
    let is_rare = |frame: &&Captured| {
        let found = match layout::parse(&frame.bytes) {
            Ok(layout) => {
                let flags = frame.bytes.get(usize::from(layout.l4()) + 13).copied();
                format!("{:?}", (layout.l3(), layout.l4(), layout.payload(), flags))
            }
            Err(unfit) => format!("{:?}", (unfit.reason, frame.bytes.get(12..14))),
        };
        let count = counts.entry(found).or_insert(0);
        *count += 1;
        *count <= ALIKE
    };
    captured
        .filter(|frame| frame.bytes.len() < 2000)
        .filter(is_rare)
        .map(|frame| frame.bytes.clone())
        .collect()
}

/// The start of a capture in pieces, with its own times. A poll ends where the wire is silent.
fn replays(capture: &[Captured]) -> Vec<Vec<u8>> {
    const SILENCE: u64 = 20_000;
    const PIECES: usize = 50;
    let mut pieces = Vec::new();
    let mut piece = vec![0; 8];
    let mut now = capture.first().map_or(0, |frame| frame.time);
    for frame in capture.iter().filter(|frame| frame.bytes.len() < 2000) {
        if piece.len() + frame.bytes.len() > MAX_LEN - 32 {
            pieces.push(std::mem::replace(&mut piece, vec![0; 8]));
            if pieces.len() == PIECES {
                return pieces;
            }
        }
        let pause = frame.time.saturating_sub(now);
        now = frame.time;
        if pause >= SILENCE {
            Step::PollEnd.encode(&mut piece);
        }
        Step::Pass(u32::try_from(pause).unwrap_or(u32::MAX)).encode(&mut piece);
        let bytes = frame.bytes.clone();
        let meta = Meta::default();
        Step::Frame { meta, bytes }.encode(&mut piece);
    }
    pieces.push(piece);
    pieces
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The fuzz crate lies one level below the package whose tests these are.
    let folder = [folder.join("tests/gro"), folder.join("../tests/gro")]
        .into_iter()
        .find(|folder| folder.is_dir())
        .expect("tests/gro is there");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .collect();
    paths.sort();
    let cases = paths.iter().flat_map(|path| case::read(path).unwrap());
    cases.map(|case| case.unwrap()).collect()
}

/// All frames of all cases.
fn frames() -> Vec<Vec<u8>> {
    let frames = cases().into_iter().flat_map(|case| {
        let frames = case
            .frames()
            .map(|(_, frame)| case.packet(frame).unwrap().build());
        frames.collect::<Vec<_>>()
    });
    let frames = frames.map(|frame| frame.bytes);
    let mut frames: Vec<_> = frames.filter(|bytes| bytes.len() < 2000).collect();
    frames.sort();
    frames.dedup();
    frames
}

fn layout(frame: &[u8]) -> Vec<u8> {
    [&gso_header(frame).encode(), frame].concat()
}

/// A frame as a guest would send it: as it is, and as one to be cut.
fn tx_frame(frame: &[u8]) -> [Vec<u8>; 2] {
    let with = |header: VnetHdr, filler: u16| {
        let mut bytes = vec![0, 12, 0];
        bytes.extend(filler.to_le_bytes());
        bytes.extend(header.encode());
        bytes.extend(frame);
        bytes
    };
    [with(VnetHdr::default(), 0), with(gso_header(frame), 3000)]
}

/// A segmentation header that fits the frame, if there is one.
fn gso_header(frame: &[u8]) -> VnetHdr {
    let Ok(headers) = Headers::of(frame) else {
        return VnetHdr::default();
    };
    let field = |len: usize| u16::try_from(len).unwrap();
    VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: match (headers.is_tcp, headers.is_ipv4) {
            (true, true) => GSO_TCPV4,
            (true, false) => GSO_TCPV6,
            (false, _) => GSO_UDP_L4,
        },
        hdr_len: field(headers.payload),
        gso_size: 64,
        csum_start: field(headers.l4),
        csum_offset: field(headers.csum_offset()),
        num_buffers: 0,
    }
}

fn engine(case: &Case) -> Vec<u8> {
    let mut bytes = tunables(case).0.to_vec();
    let mut now = 0;
    for item in &case.input {
        if let Some(time) = item.time().and_then(|time| time.checked_sub(now)) {
            now += time;
            if time > 0 {
                Step::Pass(u32::try_from(time).unwrap_or(u32::MAX)).encode(&mut bytes);
            }
        }
        match item {
            Item::Frame(frame) => {
                let built = case.packet(frame).unwrap().build();
                frame_step(&built).encode(&mut bytes);
            }
            Item::Event(event) => match event.op {
                Op::PollEnd => Step::PollEnd.encode(&mut bytes),
                Op::BudgetEnd => Step::BudgetEnd.encode(&mut bytes),
                // It fires by itself when its time has come.
                Op::Timer => {}
            },
        }
    }
    bytes
}

fn frame_step(built: &Built) -> Step {
    let has_header = built.meta.vnet.flags != 0 || built.meta.vnet.gso_type != GSO_NONE;
    let mark = u8::try_from(built.meta.merge_mark & 3).unwrap();
    Step::Frame {
        meta: Meta {
            bits: u8::from(has_header) | mark << 2,
            host: built.meta.vnet,
        },
        bytes: built.bytes.clone(),
    }
}

fn tunables(case: &Case) -> Tunables {
    let types = case.types();
    let accepted = [
        types.csum, types.tcp4, types.tcp6, types.ecn, types.udp4, types.udp6,
    ];
    let mut bytes = [0; 8];
    for (bit, accepted) in accepted.into_iter().enumerate() {
        bytes[0] |= u8::from(!accepted) << bit;
    }
    bytes[1] = match case.config.gro_flush_timeout_ns {
        0 => 1,
        1..=20_000 => 0,
        20_001..=200_000 => 3,
        _ => 4,
    };
    bytes[2] = u8::try_from(case.config.napi_defer_hard_irqs.min(2)).unwrap();
    bytes[3] = u8::from(case.config.gro_normal_batch == Some(1));
    Tunables(bytes)
}

/// Flows that go on for long, which the cases are too short for.
fn bursts() -> Vec<Vec<u8>> {
    let flows = [
        tcp4(A, B).payload(1448),
        tcp6(A, B).payload(536).seq(0xffff_f000),
        udp4(A, B).payload(1200),
    ];
    let steps = |more: u8, change: Change| {
        let mut bytes = vec![0; 7];
        bytes.push(1);
        for flow in &flows {
            frame_step(&flow.build()).encode(&mut bytes);
        }
        for of in 0..3 {
            let change = change.clone();
            Step::Next { of, more, change }.encode(&mut bytes);
            Step::Pass(10_000).encode(&mut bytes);
            Step::PollEnd.encode(&mut bytes);
        }
        bytes
    };
    let plain = Change::default();
    // The byte of the TTL, once; the payload one byte shorter.
    let other_ttl = Change {
        bits: 0x12,
        flips: vec![(22, 1)],
        ..Change::default()
    };
    let shorter = Change {
        bits: 4,
        payload_len: 535,
        ..Change::default()
    };
    vec![steps(63, plain), steps(3, other_ttl), steps(20, shorter)]
}

const _: () = assert!(VNET_HDR_LEN == 12, "the formats say so");
