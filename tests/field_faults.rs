//! Faults that merging had in the field, by their number in `docs/field-faults.md`: what the tests
//! beside the code leave open, with the second opinion on every packet. Frames are built by hand
//! and judged by `etherparse`.

mod support;

use std::time::Duration;

use support::invariants::{Flow, Record, Recorder, Setup};
use support::packet::{
    A, ACK, B, CWR, FIN, Host, Ip, PSH, Packet, RST, SYN, URG, tcp4, tcp6, udp6,
};
use vhost_user_gro::gro::{GroConfig, GroTypes};
use vhost_user_gro::napi::NapiConfig;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;

fn setup() -> Setup {
    Setup {
        gro: GroConfig::default(),
        napi: NapiConfig::default(),
        types: GroTypes {
            csum: true,
            tcp4: true,
            tcp6: true,
            ecn: true,
            udp4: true,
            udp6: true,
        },
    }
}

/// Gives the frames to a context, ending a poll after every `poll` of them, and checks all
/// invariants on what comes out.
fn run(frames: &[Packet], poll: usize) -> Record {
    try_run(frames, poll).expect("the invariants hold")
}

fn try_run(frames: &[Packet], poll: usize) -> Result<Record, String> {
    let mut recorder = Recorder::new(setup());
    for batch in frames.chunks(poll) {
        for frame in batch {
            let built = frame.build();
            let flow = Flow::of(&built.bytes);
            recorder.frame(built, flow)?;
        }
        recorder.end(false)?;
        recorder.pass(Duration::from_nanos(100))?;
    }
    let record = recorder.finish()?;
    record.check()?;
    Ok(record)
}

/// Segments per packet that the frames become in one poll.
fn merged(frames: &[Packet]) -> Vec<u32> {
    let record = run(frames, frames.len());
    record.delivered.iter().map(|packet| packet.segs).collect()
}

/// `count` segments of one flow, in order.
fn stream(from: Host, ip: Ip, count: u16, len: usize) -> Vec<Packet> {
    let step = u32::try_from(len).expect("a test frame is small");
    let segment = |nth: u16| {
        Packet::new(from, B, ip, TCP)
            .id(nth)
            .seq(1 + u32::from(nth) * step)
            .payload(len)
    };
    (0..count).map(segment).collect()
}

#[test]
fn f02_a_frame_beyond_its_length_field_passes_unmerged() {
    let mut recorder = Recorder::new(setup());
    let mut sent = tcp6(A, B).payload(60_000).build();
    sent.bytes.resize(80_000, 0x5a);
    sent.bytes[18..20].fill(0);
    sent.payload_len = sent.bytes.len() - sent.payload;
    let flow = Flow::of(&sent.bytes);
    recorder
        .frame(tcp6(A, B).payload(100).build(), flow.clone())
        .unwrap();
    recorder.frame(sent.clone(), flow).unwrap();
    let record = recorder.finish().unwrap();
    // It does not overtake what is held of its flow. Whether it fits is for the ring to say.
    assert_eq!(record.delivered[0].bytes.len(), 174);
    assert!(record.delivered[1].bytes == sent.bytes);
    assert_eq!(record.delivered.len(), 2);
}

#[test]
fn f04_fragments_in_any_order_keep_their_place() {
    let fragment = |ip: Ip, protocol: u8, offset: u16, is_last: bool| {
        let whole = Packet::new(A, B, ip, protocol).payload(1000);
        match ip {
            Ip::V4 => whole.df(false).mf(!is_last).fragment_offset(offset),
            Ip::V6 => {
                let word = offset << 3 | u16::from(!is_last);
                let rest = [&word.to_be_bytes()[..], &[0, 0, 0, 1]].concat();
                whole.extensions(vec![(FRAGMENT, rest)])
            }
        }
    };
    for ip in [Ip::V4, Ip::V6] {
        for protocol in [TCP, UDP] {
            let mut frames = stream(A, ip, 6, 1448);
            let fragments = [(0, false), (125, false), (250, true)];
            let fragments = fragments.map(|(at, is_last)| fragment(ip, protocol, at, is_last));
            let place = frames.len() / 2;
            frames.splice(place..place, fragments.clone());
            assert_eq!(merged(&frames), [3, 1, 1, 1, 3]);
            frames.splice(place..place + 3, fragments.into_iter().rev());
            assert_eq!(merged(&frames), [3, 1, 1, 1, 3]);
        }
    }
}

/// The text lets identifications do as they like under DF. Rule IP4-8 wins: they stand still or go
/// up by one, because a guest that cuts the packet again counts up.
#[test]
fn f05_identifications_that_jump_do_not_merge_even_under_df() {
    let with_ids = |ids: [u16; 3]| {
        let frames = stream(A, Ip::V4, 3, 100).into_iter().zip(ids);
        let frames: Vec<_> = frames.map(|(frame, id)| frame.df(true).id(id)).collect();
        merged(&frames)
    };
    assert_eq!(with_ids([7, 8, 9]), [3]);
    assert_eq!(with_ids([7, 7, 7]), [3]);
    assert_eq!(with_ids([7, 20, 3]), [1, 1, 1]);
}

#[test]
fn f12_order_holds_in_both_families_and_across_polls() {
    type Special = fn(Packet) -> Packet;
    let specials: [Special; 12] = [
        |packet| packet.flags(ACK | PSH),
        |packet| packet.flags(ACK | FIN),
        |packet| packet.flags(ACK | RST),
        |packet| packet.flags(ACK | URG),
        |packet| packet.flags(SYN),
        |packet| packet.flags(ACK | CWR),
        |packet| packet.options(vec![1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 1]),
        Packet::bad_csum,
        Packet::partial_csum,
        |packet| {
            packet
                .ip_options(vec![1; 4])
                .extensions(vec![(60, vec![1, 4, 0, 0, 0, 0])])
        },
        |packet| {
            packet
                .mf(true)
                .extensions(vec![(FRAGMENT, vec![0, 1, 0, 0, 0, 9])])
        },
        |packet| packet.padding(4),
    ];
    for ip in [Ip::V4, Ip::V6] {
        for special in specials {
            for poll in [1, 3, 6, 64] {
                let mut frames = stream(A, ip, 11, 100);
                frames[5] = special(frames[5].clone());
                let record = run(&frames, poll);
                let from = record.delivered.iter().flat_map(|packet| &packet.from);
                assert!(from.copied().eq(0..11), "polls of {poll}");
            }
        }
    }
}

#[test]
fn f13_duplicate_acks_keep_their_number_with_any_sack_blocks() {
    let sack = |edge: u8| {
        let block = [0, 0, edge, 0, 0, 0, edge, 100];
        [&[1, 1, 5, 10][..], &block].concat()
    };
    for edges in [[1, 1, 1, 1], [1, 2, 3, 4]] {
        let data = tcp4(A, B).payload(100).options(sack(1));
        let acks = edges.map(|edge| tcp4(A, B).seq(101).options(sack(edge)));
        let frames = [&[data][..], &acks].concat();
        let record = run(&frames, 64);
        assert_eq!(record.delivered.len(), 5);
        // Each leaves within the poll that it came in.
        assert!(
            record
                .delivered
                .iter()
                .all(|packet| packet.handed_over <= 5)
        );
    }
}

#[test]
fn f17_pseudo_header_sums_hold_for_any_addresses_and_lengths() {
    let from = Host {
        v4: [203, 0, 113, 249].into(),
        v6: [
            0xfd12, 0x3456, 0x789a, 0xbcde, 0xf012, 0x3579, 0xace1, 0xfedb,
        ]
        .into(),
        ..A
    };
    // The check of each packet completes its sum, for the whole and for each piece.
    for ip in [Ip::V4, Ip::V6] {
        for (len, count) in [(1, 2), (1, 200), (7, 9), (1448, 45), (8948, 7), (32_000, 2)] {
            assert_eq!(merged(&stream(from, ip, count, len)), [u32::from(count)]);
        }
    }
    for (len, count) in [(1, 64), (101, 63), (1448, 40)] {
        let datagram = |nth: u32| udp6(from, B).seq(nth).payload(len);
        let frames: Vec<_> = (0..count).map(datagram).collect();
        assert_eq!(merged(&frames), [count]);
    }
}
