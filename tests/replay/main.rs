//! `replay` through the built program: every format in, the packets of a guest out, and what is
//! said of both. What comes out is cut apart by `tests/support/cut.rs`, which stands on
//! `etherparse`.
#![cfg(feature = "daemon")]

mod capture;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::{Command, Output};

use capture::{Format, PCAP, PCAPNG, Received, Record, read};
use support::cut::cut;
use support::packet::{A, ACK, B, PSH, Packet, tcp4, tcp6, udp4, udp6};
use vhost_user_gro::wire::VnetHdr;

/// Start of all captures: a whole number of microseconds that needs both halves of a time stamp.
const START: u64 = 1_700_000_000_123_456_000;

/// A run of `replay` over one capture.
struct Run {
    folder: tempfile::TempDir,
    output: Output,
}

impl Run {
    fn of(capture: &[u8], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let input = folder.path().join("in");
        std::fs::write(&input, capture).expect("it can be written");
        let output = replay(&[input, folder.path().join("out")], options);
        Self { folder, output }
    }

    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn status(&self) -> Option<i32> {
        self.output.status.code()
    }

    fn result(&self) -> Vec<Received> {
        read(&std::fs::read(self.folder.path().join("out")).expect("it was written"))
    }

    /// Packets of the result that were made of several frames.
    fn super_frames(&self) -> usize {
        let result = self.result();
        result.iter().filter(|packet| packet.segs.0 > 1).count()
    }

    /// Super-frames by what ended them, as the summary has it.
    fn ended(&self) -> impl Iterator<Item = usize> {
        let text = self.stdout();
        let table = text.split("ended by\n").nth(1).unwrap_or_default();
        let rows = table.lines().map_while(|row| row.split_whitespace().next());
        let counts: Vec<_> = rows.map_while(|count| count.parse().ok()).collect();
        counts.into_iter()
    }

    /// The lines of the summary, with single blanks.
    #[track_caller]
    fn says(&self, expected: &str) {
        let text = self.stdout();
        let lines = text.lines();
        let mut lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(
            lines.any(|line| line == expected),
            "no {expected:?} in\n{text}"
        );
    }
}

fn replay(files: &[PathBuf], options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vhost-user-gro"))
        .arg("replay")
        .args(files)
        .args(options)
        .env_remove("JOURNAL_STREAM")
        .output()
        .expect("the program was built")
}

/// Replays with `--check`, which must hold.
#[track_caller]
fn checked(capture: &[u8], options: &[&str]) -> Run {
    let run = Run::of(capture, &[&["--check"], options].concat());
    assert_eq!(run.status(), Some(0), "{}", run.stderr());
    run.says("checked every byte");
    assert_eq!(run.ended().sum::<usize>(), run.super_frames());
    run
}

/// Frames of one stream, `payload` bytes each.
fn stream(first: &Packet, count: u16, payload: u16) -> Vec<Vec<u8>> {
    let nth = |i: u16| {
        let seq = u32::from(i) * u32::from(payload);
        let packet = first.clone().seq(1 + seq).id(i).payload(payload.into());
        packet.build().bytes
    };
    (0..count).map(nth).collect()
}

/// Frames that arrive one `gap` after the other.
fn arriving(frames: &[Vec<u8>], gap: u64) -> Vec<Record> {
    let times = (START..).step_by(usize::try_from(gap).expect("a gap"));
    let each = times.zip(frames);
    each.map(|(nanos, bytes)| Record::new(nanos, bytes.clone()))
        .collect()
}

/// Frames that a packet of the result gives back when it is cut apart, by `etherparse`.
fn frames_of(packet: &Received) -> Vec<Vec<u8>> {
    let (segs, gso_size) = packet.segs;
    if segs == 1 {
        return vec![packet.bytes.clone()];
    }
    let vnet = VnetHdr {
        gso_size,
        ..VnetHdr::default()
    };
    let frames = cut(&vnet, &packet.bytes).expect("it can be cut apart");
    assert_eq!(frames.len(), segs);
    frames
}

#[test]
fn every_format_gives_the_same_result() {
    let mut frames = stream(&tcp4(A, B), 5, 1000);
    frames.extend(stream(&tcp6(A, B), 3, 999));
    let records = arriving(&frames, 1000);
    let reference = checked(&PCAP.capture(&records), &[]);
    assert_eq!(reference.result().len(), 2);
    for format in Format::all() {
        let run = checked(&format.capture(&records), &[]);
        assert_eq!(run.result(), reference.result(), "{format:?}");
        assert_eq!(run.stdout(), reference.stdout(), "{format:?}");
    }
}

#[test]
fn what_comes_out_cuts_into_what_went_in() {
    let tagged = |packet: Packet| packet.vlan(vec![(0x88a8, 0x2007), (0x8100, 9)]);
    let options = vec![1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
    for first in [
        tcp4(A, B),
        tcp6(A, B),
        tcp4(A, B).options(options),
        tagged(tcp4(A, B)),
        tagged(tcp6(A, B)),
        udp4(A, B),
        udp6(A, B),
        tagged(udp4(A, B)),
    ] {
        let frames = stream(&first, 40, 1400);
        let types = "--guest-types=tso4,tso6,uso4,uso6";
        let run = checked(&PCAPNG.capture(&arriving(&frames, 400)), &[types]);
        let result = run.result();
        assert_eq!(result.len(), 1, "{first:?}");
        assert_eq!(frames_of(&result[0]), frames);
        run.says("merge ratio 40.00 frames a packet");
        run.says("out 1 packets: 1 super-frames of 40 segments, 0 single frames");
        run.says("1 40 poll_end");
    }
}

#[test]
fn flows_with_losses_and_oddities_come_out_whole_and_in_order() {
    // Over IPv6 no identification tells of a loss.
    let flow = |port: u16| match port % 2 {
        0 => tcp4(A.port(port), B),
        _ => tcp6(A.port(port), B),
    };
    let flows = (1..=12).map(|port| {
        let mut frames = stream(&flow(port), 50, 700 + port);
        frames.remove(usize::from(port));
        frames.swap(20, 21);
        let repeated = frames[30].clone();
        frames.insert(32, repeated);
        frames[40] = flow(port).seq(9).payload(80).bad_csum().build().bytes;
        frames[41] = flow(port).padding(6).build().bytes;
        frames[42] = flow(port).mf(true).payload(64).build().bytes;
        frames
    });
    let flows: Vec<Vec<Vec<u8>>> = flows.collect();
    let frames: Vec<_> = (0..50)
        .flat_map(|i| flows.iter().map(move |flow| flow[i].clone()))
        .collect();
    let run = checked(&PCAPNG.capture(&arriving(&frames, 150)), &[]);
    let cut: Vec<_> = run.result().iter().flat_map(frames_of).collect();
    assert_eq!(cut.len(), frames.len());
    assert!(run.super_frames() > 50, "{}", run.stdout());
    for flow in &flows {
        let of_flow: Vec<_> = cut.iter().filter(|frame| flow.contains(frame)).collect();
        assert_eq!(of_flow, flow.iter().collect::<Vec<_>>());
    }
}

#[test]
fn datagrams_merge_only_for_a_guest_that_takes_them() {
    let capture = PCAP.capture(&arriving(&stream(&udp4(A, B), 10, 500), 100));
    let run = checked(&capture, &[]);
    run.says("merge ratio 1.00 frames a packet");
    run.says("10 not_negotiated");
    assert_eq!(run.result().len(), 10);
    checked(&capture, &["--guest-types=uso4"]).says("merge ratio 10.00 frames a packet");
    checked(&capture, &["--guest-types=uso6"]).says("merge ratio 1.00 frames a packet");
}

#[test]
fn merging_can_be_turned_off() {
    let frames = stream(&tcp4(A, B), 10, 500);
    let run = checked(&PCAP.capture(&arriving(&frames, 100)), &["--gro=off"]);
    let bytes: Vec<_> = run
        .result()
        .into_iter()
        .map(|packet| packet.bytes)
        .collect();
    assert_eq!(bytes, frames);
}

#[test]
fn a_packet_is_held_for_the_timeout_and_no_longer() {
    // Every third frame comes 30 us after the first of its packet.
    let frames = stream(&tcp4(A, B), 9, 500);
    let capture = PCAP.capture(&arriving(&frames, 10_000));
    let options = ["--gro-flush-timeout-ns=25000", "--napi-defer-hard-irqs=0"];
    let run = checked(&capture, &options);
    let held: Vec<_> = run
        .result()
        .iter()
        .map(|packet| (packet.nanos - START, packet.segs.0))
        .collect();
    assert_eq!(held, [(25_000, 3), (55_000, 3), (85_000, 3)]);
    run.says("longest hold 25.000 us from being read to being handed over, frame 1");
    run.says("polls 12, 3 by the timer; 3 hand-overs");
}

#[test]
fn without_a_timeout_frames_merge_if_one_poll_finds_them_together() {
    let frames = stream(&tcp4(A, B), 8, 500);
    let off = ["--gro-flush-timeout-ns=0", "--napi-defer-hard-irqs=0"];
    let apart = PCAP.capture(&arriving(&frames, 10_000));
    checked(&apart, &off).says("merge ratio 1.00 frames a packet");
    // Frames of one instant.
    let mut together = arriving(&frames, 10_000);
    together.iter_mut().for_each(|record| record.nanos = START);
    let together = PCAP.capture(&together);
    checked(&together, &off).says("merge ratio 8.00 frames a packet");
    let by_budget = [&off[..], &["--budget=3"]].concat();
    let run = checked(&together, &by_budget);
    run.says("polls 3, 0 by the timer; 1 hand-overs");
    run.says("merge ratio 8.00 frames a packet");
    // A daemon that wakes up late finds more, and so does one that is slow.
    let late = [&off[..], &["--wakeup-ns=35000"]].concat();
    let run = checked(&apart, &late);
    run.says("merge ratio 4.00 frames a packet");
    assert_eq!(run.result()[0].nanos, START + 35_000);
    let slow = [&off[..], &["--frame-ns=10000"]].concat();
    checked(&apart, &slow).says("merge ratio 1.00 frames a packet");
    let slow = [&off[..], &["--frame-ns=25000"]].concat();
    checked(&apart, &slow).says("out 3 packets: 2 super-frames of 7 segments, 1 single frames");
}

#[test]
fn a_deferral_leaves_the_source_alone_until_the_timer() {
    // A bare ACK is never held, so only the deferral can keep what follows waiting.
    let mut frames = vec![tcp4(A, B.port(9)).flags(ACK).build().bytes];
    frames.extend(stream(&tcp4(A, B).flags(ACK | PSH), 3, 100));
    let capture = PCAP.capture(&arriving(&frames, 1000));
    let times = |options: &[&str]| -> Vec<u64> {
        let result = checked(&capture, options).result();
        result.iter().map(|packet| packet.nanos - START).collect()
    };
    let deferred = times(&["--napi-defer-hard-irqs=1"]);
    assert_eq!(deferred, [0, 20_000, 20_000, 20_000]);
    assert_eq!(times(&[]), [0, 1000, 2000, 3000]);
}

#[test]
fn limits_end_a_super_frame() {
    let capture = PCAP.capture(&arriving(&stream(&tcp4(A, B), 12, 1000), 100));
    let run = checked(&capture, &["--gro-max-segs=5"]);
    run.says("2 10 conflict: segments");
    let run = checked(&capture, &["--gro-max-size-bytes=4040"]);
    run.says("2 8 conflict: size");
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut records = arriving(&stream(&tcp4(A, B), 4, 500), 5000);
    records[2].nanos = START - 3_000_000_000;
    let run = checked(&PCAPNG.capture(&records), &[]);
    run.says("note 1 frames older than the one before, taken to have come together with it");
    run.says("in 4 frames, 2216 bytes, 0.000015 s");
    assert!(run.result().iter().all(|packet| packet.nanos >= START));
}

#[test]
fn an_empty_capture_gives_an_empty_result() {
    for format in Format::all() {
        let run = checked(&format.capture(&[]), &[]);
        run.says("in 0 frames, 0 bytes, 0.000000 s");
        run.says("out 0 packets: 0 super-frames of 0 segments, 0 single frames");
        assert_eq!(run.result(), []);
    }
}

#[test]
fn the_longest_frames_pass() {
    let longest = stream(&tcp4(A, B), 3, 65535 - 40);
    assert_eq!(longest[0].len(), 65549);
    let run = checked(&PCAP.capture(&arriving(&longest, 100)), &[]);
    let bytes: Vec<_> = run
        .result()
        .into_iter()
        .map(|packet| packet.bytes)
        .collect();
    assert_eq!(bytes, longest);
    run.says(
        "note 3 frames above 1522 bytes: a larger MTU, or merged already where they were captured",
    );
}

#[test]
fn frames_that_the_capturing_host_merged_are_frames_like_others() {
    let merged = stream(&tcp4(A, B), 60, 20_000);
    let run = checked(&PCAPNG.capture(&arriving(&merged, 100)), &[]);
    let frames: Vec<_> = run.result().iter().flat_map(frames_of).collect();
    assert_eq!(frames, merged);
    run.says("19 57 conflict: size");
}

#[test]
fn frames_captured_in_part_are_skipped_and_counted() {
    let mut records = arriving(&stream(&tcp4(A, B), 6, 500), 100);
    records[2].bytes.truncate(96);
    records[2].cut = 458;
    for format in [PCAP, PCAPNG] {
        let run = checked(&format.capture(&records), &[]);
        run.says("note 1 frames skipped, captured only in part: what follows them cannot merge");
        run.says("out 2 packets: 2 super-frames of 5 segments, 0 single frames");
        run.says("1 2 conflict: id");
    }
}

#[test]
fn checksums_left_to_the_card_are_taken_as_a_tap_gives_them() {
    let frames = stream(&tcp4(A, B).partial_csum(), 5, 500);
    let run = checked(&PCAP.capture(&arriving(&frames, 100)), &[]);
    run.says("merge ratio 5.00 frames a packet");
    run.says("note 5 frames with a checksum left to the card, captured where they were sent");
    let frames = stream(&tcp4(A, B).bad_csum(), 5, 500);
    let run = checked(&PCAP.capture(&arriving(&frames, 100)), &[]);
    run.says("merge ratio 1.00 frames a packet");
    run.says("5 checksum");
}

#[test]
fn flows_are_listed_with_the_largest_first() {
    let mut frames = stream(&tcp4(A, B), 2, 100);
    frames.extend(stream(&tcp6(A.port(7), B).vlan(vec![(0x8100, 12)]), 6, 100));
    frames.extend(stream(&udp4(A, B), 1, 100));
    frames.push(vec![0xff; 60]);
    let capture = PCAP.capture(&arriving(&frames, 100));
    let run = checked(&capture, &["--top=3"]);
    run.says("frames packets ratio bytes flow (3 of 4)");
    run.says("6 1 6.0 1068 tcp [2001:db8::1]:7 > [2001:db8:1::2]:8000 vlan 12");
    run.says("2 1 2.0 308 tcp 192.0.2.1:40000 > 198.51.100.2:8000");
    assert!(!run.stdout().contains("udp "), "{}", run.stdout());
    checked(&capture, &["--top=4"]).says("1 1 1.0 60 no flow");
}

#[test]
fn a_frame_shorter_than_its_link_header_is_dropped_and_counted() {
    let records = arriving(&[vec![1; 13], vec![], vec![1; 14]], 100);
    let run = checked(&PCAP.capture(&records), &[]);
    run.says("note 2 frames dropped, shorter than an Ethernet header");
    assert_eq!(run.result().len(), 1);
}

#[test]
fn a_damaged_capture_is_replayed_until_there() {
    let records = arriving(&stream(&tcp4(A, B), 4, 500), 100);
    for format in [PCAP, PCAPNG] {
        let whole = format.capture(&records);
        let run = Run::of(&whole[..whole.len() - 100], &["--check"]);
        assert_eq!(run.status(), Some(1));
        let last = whole.len() - format.record(&records[3]).len();
        let expected = format!("record 4 at byte {last} is damaged or cut off");
        assert!(run.stderr().contains(&expected), "{}", run.stderr());
        run.says("out 1 packets: 1 super-frames of 3 segments, 0 single frames");
        assert_eq!(run.result().len(), 1);
    }
}

#[test]
fn lengths_that_cannot_be_are_damage() {
    let records = arriving(&stream(&tcp4(A, B), 2, 500), 100);
    // The captured length of the second record: behind its time in pcap, and behind type, length,
    // interface and time in pcapng.
    for (format, at) in [(PCAP, 8), (PCAPNG, 20)] {
        for len in [0x7fff_ffff, 100_000] {
            let mut capture = format.capture(&records);
            let field = capture.len() - format.record(&records[1]).len() + at;
            capture[field..field + 4].copy_from_slice(&format.long(len));
            let run = Run::of(&capture, &[]);
            assert_eq!(run.status(), Some(1));
            assert!(
                run.stderr().contains("record 2 at byte"),
                "{}",
                run.stderr()
            );
            run.says("in 1 frames, 554 bytes, 0.000000 s");
        }
    }
    let stray = PCAPNG.record_of(1, &records[0]);
    let run = Run::of(&[PCAPNG.header(), stray].concat(), &[]);
    assert!(
        run.stderr().contains("record 1 at byte"),
        "{}",
        run.stderr()
    );
}

#[test]
fn what_is_no_capture_is_refused() {
    for bytes in [
        &b""[..],
        b"\x1f\x8b\x08",
        b"#!/bin/sh\nexit 0\n# not a capture at all\n",
    ] {
        let run = Run::of(bytes, &[]);
        assert_eq!(run.status(), Some(1));
        assert!(
            run.stderr()
                .contains("expected a capture in pcap or pcapng format")
        );
        assert!(run.stderr().contains("/in"), "{}", run.stderr());
        assert_eq!(run.stdout(), "");
    }
}

#[test]
fn other_links_than_ethernet_are_refused_or_skipped() {
    const COOKED: u16 = 113;
    let records = arriving(&stream(&tcp4(A, B), 3, 500), 100);
    let cooked = |format: Format| Format {
        link_type: COOKED,
        ..format
    };
    let run = Run::of(&cooked(PCAP).capture(&records), &[]);
    assert_eq!(run.status(), Some(1));
    assert!(run.stderr().contains("link type 113: expected Ethernet"));
    // Bits about a frame check sequence stand beside the link type.
    let mut capture = PCAP.capture(&records);
    capture[23] = 0xf0;
    checked(&capture, &[]).says("merge ratio 3.00 frames a packet");
    let run = Run::of(&cooked(PCAPNG).capture(&records), &[]);
    assert_eq!(run.status(), Some(1));
    assert!(
        run.stderr()
            .contains("all 3 frames are from interfaces that are not Ethernet")
    );
    // One interface of each kind.
    let mixed = [
        PCAPNG.header(),
        cooked(PCAPNG).interface(),
        PCAPNG.record_of(0, &records[0]),
        PCAPNG.record_of(1, &records[1]),
        PCAPNG.record_of(0, &records[2]),
    ];
    let run = checked(&mixed.concat(), &[]);
    run.says("note 1 frames skipped, not from Ethernet");
    run.says("in 2 frames, 1108 bytes, 0.000000 s");
}

#[test]
fn unknown_blocks_are_passed_over_and_simple_packets_take_the_time_before() {
    let frames = stream(&tcp4(A, B), 3, 500);
    let records = arriving(&frames, 100);
    let mut simple = PCAPNG.long(554);
    simple.extend(&frames[1]);
    simple.extend([0, 0]);
    let capture = [
        PCAPNG.header(),
        PCAPNG.block(0x7777, &[1; 40]),
        PCAPNG.record(&records[0]),
        PCAPNG.block(3, &simple),
        PCAPNG.block(2, &[0; 40]),
        PCAPNG.record(&records[2]),
    ];
    let run = checked(&capture.concat(), &[]);
    run.says("merge ratio 3.00 frames a packet");
    run.says("note 1 frames skipped, in obsolete packet blocks");
}

#[test]
fn sections_of_either_byte_order_may_follow_each_other() {
    let records = arriving(&stream(&tcp4(A, B), 4, 500), 100);
    let other = Format {
        is_big_endian: true,
        is_nano: false,
        ..PCAPNG
    };
    let capture = [PCAPNG.capture(&records[..2]), other.capture(&records[2..])];
    checked(&capture.concat(), &[]).says("in 4 frames, 2216 bytes, 0.000000 s");
}

#[test]
fn the_capture_that_is_read_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("in");
    let capture = PCAP.capture(&arriving(&stream(&tcp4(A, B), 4, 500), 100));
    std::fs::write(&file, &capture).expect("it can be written");
    let link = folder.path().join("out");
    std::os::unix::fs::symlink(&file, &link).expect("it can be made");
    let output = replay(&[file.clone(), link], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read(file).expect("it is there"), capture);
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let nowhere = PathBuf::from("/nowhere/at/all");
    let output = replay(&[nowhere.clone(), nowhere], &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("/nowhere/at/all: cannot be opened"), "{text}");
    let run = Run::of(&PCAP.capture(&[]), &[]);
    let files = [run.folder.path().join("in"), "/nowhere/out".into()];
    let output = replay(&files, &[]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn options_are_those_of_the_daemon_and_refused_alike() {
    let files = ["in", "out"].map(PathBuf::from);
    for (options, expected) in [
        (&["--budget=65"][..], "1 to 64 frames"),
        (&["--round-budget=8"], "round_budget is 8"),
        (&["--guest-types=ufo"], "tso4"),
        (&["--socket-path=/s"], "--socket-path"),
    ] {
        let output = replay(&files, options);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "{options:?}: {text}");
    }
}
