//! Inputs to begin with: the cases of `tests/gro`, in the format of each body.

use std::fs;
use std::path::Path;

use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{
    F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET_HDR_LEN,
};

use super::chain;
use super::engine::{Change, Meta, Step, Tunables};
use crate::support::case::{self, Case, Item, Op};
use crate::support::cut::Headers;
use crate::support::packet::{A, B, Built, tcp4, tcp6, udp4};

/// The seeds of the body with this name.
pub fn of(body: &str) -> Vec<Vec<u8>> {
    match body {
        "layout" => frames().iter().map(layout).collect(),
        "tx_frame" => frames().iter().flat_map(tx_frame).collect(),
        "engine" => cases().iter().map(engine).chain(bursts()).collect(),
        "chain" => chain::seeds(),
        other => panic!("no body {other}"),
    }
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
fn frames() -> Vec<Built> {
    let frames = cases().into_iter().flat_map(|case| {
        let frames = case
            .frames()
            .map(|(_, frame)| case.packet(frame).unwrap().build());
        frames.collect::<Vec<_>>()
    });
    let mut frames: Vec<Built> = frames.filter(|frame| frame.bytes.len() < 2000).collect();
    frames.sort_by(|a, b| a.bytes.cmp(&b.bytes));
    frames.dedup_by(|a, b| a.bytes == b.bytes);
    frames
}

fn layout(frame: &Built) -> Vec<u8> {
    [&gso_header(frame).encode(), &frame.bytes[..]].concat()
}

/// A frame as a guest would send it: as it is, and as one to be cut.
fn tx_frame(frame: &Built) -> [Vec<u8>; 2] {
    let with = |header: VnetHdr, filler: u16| {
        let mut bytes = vec![0, 12, 0];
        bytes.extend(filler.to_le_bytes());
        bytes.extend(header.encode());
        bytes.extend(&frame.bytes);
        bytes
    };
    [with(VnetHdr::default(), 0), with(gso_header(frame), 3000)]
}

/// A segmentation header that fits the frame, if there is one.
fn gso_header(frame: &Built) -> VnetHdr {
    let Ok(headers) = Headers::of(&frame.bytes) else {
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
