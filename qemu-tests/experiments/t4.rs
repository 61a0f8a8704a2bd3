//! T4: bulk dequeue with a byte limit, on the way from the guest.

use std::time::Duration;

use anyhow::Result;

use crate::Experiment;
use crate::bench::{Bench, Contender, plain_guest};
use crate::harness::account::count;
use crate::harness::netns::Tags;
use crate::harness::netperf::{self, Workload};
use crate::harness::{Lab, Station, Wire};
use crate::measures::{
    BACKEND_PER_FRAME, BACKEND_PER_KB, BESIDE, BYTES_PER_PACKET, CALLS, FRAMES, HOST_PER_KB,
    NOTIFICATIONS, P50, P90, P99, SENDS, THROUGHPUT, TRANSACTIONS, UPLINK_FULL, VCPU_PER_FRAME,
    WAITS,
};
use crate::part::{Part, Reading, Trial};
use crate::pktgen;
use crate::turns::Outcome;
use crate::works::{Scene, kilobytes};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "T4",
    title: "bulk dequeue on the way from the guest",
    story: "Linux took several packets at once from a queueing discipline, limited by bytes (2014): with \
segmentation offload off, TCP_STREAM needed 4.66 % less CPU in the queue's lock and UDP_STREAM with 1472 bytes 5.26 % \
less; small frames went from 12.8 to 14.8 million a second; on a port of 100 Mbit/s a bulk of 7 added no delay that \
could be measured, 8 up to 0.24 ms. Hoped for here: CPU per frame at least 5 % down, small frames at least 15 % up, \
latency unchanged at the default. The settings are `tx_bulk_packets`.",
    seconds: 2,
    run,
};

const BULKS: [u32; 4] = [1, 7, 8, 64];
/// Of small frames.
const SMALL: [u32; 3] = [1, 7, 64];
/// Calls to a frame hardly differ between rounds.
const COUNTED_ROUNDS: u32 = 2;
/// Beside a stream a rare request is answered in some milliseconds.
const SHAPE: (&str, u32) = ("100mbit", 30_000);

/// What a daemon can be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uplink {
    Tap,
    AfPacket,
    AfXdp,
}

/// A guest with the interface by which its frames leave.
struct Port {
    name: &'static str,
    uplink: Uplink,
    bulk: Option<u32>,
    /// Where its way to the sender can be made slow.
    narrows: String,
    contender: Contender,
}

impl Uplink {
    const ALL: [Uplink; 3] = [Uplink::Tap, Uplink::AfPacket, Uplink::AfXdp];

    fn name(self) -> &'static str {
        match self {
            Uplink::Tap => "tap",
            Uplink::AfPacket => "AF_PACKET",
            Uplink::AfXdp => "AF_XDP",
        }
    }

    fn port(self, bench: &Bench<'_>, lab: &Lab<'_>, bulk: Option<u32>) -> Result<Port> {
        let (words, narrows) = match self {
            Uplink::Tap => (format!("--tap {}", lab.add_tap(1)?), lab.uplink()),
            Uplink::AfPacket | Uplink::AfXdp => {
                let (option, tags) = if self == Uplink::AfXdp {
                    ("--af-xdp", Tags::InFrames)
                } else {
                    ("--af-packet", Tags::Beside)
                };
                let interface = lab.make_interface(lab.next_port(), tags)?;
                (format!("{option} {interface}"), interface)
            }
        };
        let options = bulk.map_or_else(String::new, |bulk| format!("--tx-bulk-packets {bulk}"));
        Ok(Port {
            name: self.name(),
            uplink: self,
            bulk,
            narrows,
            contender: bench.daemon(&words, &options, &plain_guest()),
        })
    }
}

fn run(bench: &Bench<'_>) -> Result<Vec<Outcome>> {
    let lab = Lab::new(bench.kit, Wire::Bulk, 1500)?;
    let _netserver = lab.sender.serve(bench.kit)?;
    let field = Field {
        bench,
        lab: &lab,
        mac: lab.sender.mac(bench.kit)?,
        ports: ports(bench, &lab)?,
    };
    let mut parts = Vec::new();
    if bench.wants("a") {
        parts.push(field.guest_defaults());
    }
    if bench.wants("b") {
        parts.extend(field.no_offload());
    }
    if bench.wants("c") {
        parts.extend(Uplink::ALL.map(|uplink| field.small_frames(uplink)));
    }
    if bench.wants("d") {
        parts.extend([Uplink::Tap, Uplink::AfPacket].map(|uplink| field.head_of_line(uplink)));
    }
    Ok(bench.take_turns(&parts))
}

/// The guests that the wanted parts need.
fn ports(bench: &Bench<'_>, lab: &Lab<'_>) -> Result<Vec<Port>> {
    let mut ports = Vec::new();
    if bench.wants("a") {
        let tap = lab.add_tap(1)?;
        ports.push(Port {
            name: "QEMU's tap",
            uplink: Uplink::Tap,
            bulk: None,
            narrows: lab.uplink(),
            contender: bench.qemu_tap(&tap),
        });
        for uplink in [Uplink::Tap, Uplink::AfPacket] {
            ports.push(uplink.port(bench, lab, None)?);
        }
    }
    let all = ["b", "d"].iter().any(|letter| bench.wants(letter));
    for uplink in Uplink::ALL {
        let bulks = BULKS.iter().filter(|bulk| {
            let is_small = bench.wants("c") && SMALL.contains(bulk);
            is_small || (all && uplink != Uplink::AfXdp)
        });
        for &bulk in bulks {
            ports.push(uplink.port(bench, lab, Some(bulk))?);
        }
    }
    Ok(ports)
}

/// What all parts use.
struct Field<'a> {
    bench: &'a Bench<'a>,
    lab: &'a Lab<'a>,
    /// The sender's.
    mac: String,
    ports: Vec<Port>,
}

impl Field<'_> {
    fn scene<'a>(&'a self, station: &'a Station) -> Scene<'a> {
        Scene {
            bench: self.bench,
            sender: &self.lab.sender,
            station,
        }
    }

    /// A trial for each of these bulks on an uplink.
    fn trials<'a>(
        &'a self,
        uplink: Uplink,
        bulks: &[u32],
        act: impl Fn(&Port, &Scene<'_>, Duration) -> Result<Reading> + Copy + 'a,
    ) -> Vec<Trial<'a>> {
        let wanted = self.ports.iter().filter_map(|port| {
            let bulk = port.bulk.filter(|bulk| bulks.contains(bulk))?;
            (port.uplink == uplink).then_some((port, bulk))
        });
        let trial = |(port, bulk): (&'a Port, u32)| {
            Trial::new(
                format!("bulk {bulk}"),
                &port.contender,
                move |station, length| act(port, &self.scene(station), length),
            )
        };
        wanted.map(trial).collect()
    }

    fn guest_defaults(&self) -> Part<'_> {
        let defaults = self.ports.iter().filter(|port| port.bulk.is_none());
        let trials = defaults.map(|port| {
            Trial::new(port.name, &port.contender, |station, length| {
                stream(&self.scene(station), Workload::TcpStream, true, length)
            })
        });
        Part {
            letter: "a".into(),
            title: "TCP_STREAM from the guest, its defaults".into(),
            measures: &[THROUGHPUT, BACKEND_PER_KB, HOST_PER_KB, BYTES_PER_PACKET],
            trials: trials.collect(),
            most_rounds: None,
        }
    }

    /// Each is measured, and in a run of its own counted by strace.
    fn no_offload(&self) -> Vec<Part<'_>> {
        let works = [
            ("TCP_STREAM", Workload::TcpStream),
            ("UDP_STREAM of 1472 bytes", Workload::UdpStream),
        ];
        let mut parts = Vec::new();
        for uplink in [Uplink::Tap, Uplink::AfPacket] {
            for (name, work) in works {
                let on = uplink.name();
                parts.push(Part {
                    letter: "b".into(),
                    title: format!("{name} on {on}, TSO and GSO off"),
                    measures: &[
                        THROUGHPUT,
                        BACKEND_PER_FRAME,
                        NOTIFICATIONS,
                        VCPU_PER_FRAME,
                        UPLINK_FULL,
                    ],
                    trials: self.trials(uplink, &BULKS, move |_, scene, length| {
                        stream(scene, work, false, length)
                    }),
                    most_rounds: None,
                });
                parts.push(Part {
                    letter: "b".into(),
                    title: format!("{name} on {on}, system calls, a run of its own"),
                    measures: &[CALLS, SENDS, WAITS],
                    trials: self.trials(uplink, &BULKS, move |_, scene, _| calls(scene, work)),
                    most_rounds: Some(COUNTED_ROUNDS),
                });
            }
        }
        parts
    }

    fn small_frames(&self, uplink: Uplink) -> Part<'_> {
        Part {
            letter: "c".into(),
            title: format!("frames of 60 bytes on {}", uplink.name()),
            measures: &[FRAMES, BACKEND_PER_FRAME, NOTIFICATIONS, UPLINK_FULL],
            trials: self.trials(uplink, &SMALL, |_, scene, length| {
                small(scene, &self.mac, length)
            }),
            most_rounds: None,
        }
    }

    fn head_of_line(&self, uplink: Uplink) -> Part<'_> {
        Part {
            letter: "d".into(),
            title: format!("TCP_RR beside a stream, 100 Mbit/s, {}", uplink.name()),
            measures: &[P50, P90, P99, TRANSACTIONS, BESIDE, UPLINK_FULL],
            trials: self.trials(uplink, &BULKS, |port, scene, length| {
                self.lab.shape(&port.narrows, Some(SHAPE))?;
                let reading = beside(scene, length);
                self.lab.shape(&port.narrows, None)?;
                reading
            }),
            most_rounds: None,
        }
    }
}

/// A stream from the guest to the sender.
fn stream(
    scene: &Scene<'_>,
    work: Workload,
    is_offloaded: bool,
    length: Duration,
) -> Result<Reading> {
    scene.segmentation(is_offloaded)?;
    let (outcome, spent, counted) = scene
        .observe(|| netperf::run_in_guest(&scene.station.vm, &scene.sender.ip4, work, length))?;
    let throughput = match work {
        Workload::UdpStream => "REMOTE_RECV_THROUGHPUT",
        Workload::TcpStream | Workload::TcpRr(_) => "THROUGHPUT",
    };
    let kb = kilobytes(&outcome, throughput)?;
    let frames = spent.tx_packets;
    let mut reading = Reading::default()
        .with(THROUGHPUT, outcome.value(throughput)?)
        .with(BYTES_PER_PACKET, spent.tx_bytes / frames)
        .with(BACKEND_PER_KB, spent.backend_us / kb)
        .with(BACKEND_PER_FRAME, spent.backend_us / frames)
        .with(VCPU_PER_FRAME, spent.vcpu_us / frames)
        .with(
            NOTIFICATIONS,
            counted.rose("/tx/notifications/sent") / frames,
        )
        .with(UPLINK_FULL, counted.rose("/tx/uplink_full"));
    if let Some(host_us) = spent.host_us {
        reading = reading.with(HOST_PER_KB, host_us / kb);
    }
    Ok(reading)
}

/// The daemon's system calls during such a stream, without offload.
fn calls(scene: &Scene<'_>, work: Workload) -> Result<Reading> {
    scene.segmentation(false)?;
    let vm = &scene.station.vm;
    let ((calls, _), spent, _) = scene.observe(|| {
        let (_, calls) = scene
            .trace(|| netperf::run_in_guest(vm, &scene.sender.ip4, work, Duration::from_secs(1)))?;
        Ok((calls, ()))
    })?;
    let per_frame = |calls| count(calls) / spent.tx_packets;
    Ok(Reading::default()
        .with(CALLS, per_frame(calls.total()))
        .with(SENDS, per_frame(calls.of(&["write", "send", "io_uring"])))
        .with(WAITS, per_frame(calls.of(&["epoll", "poll", "ppoll"]))))
}

/// The smallest frames, as many as the guest can send.
fn small(scene: &Scene<'_>, mac: &str, length: Duration) -> Result<Reading> {
    let ((), spent, counted) = scene.observe(|| pktgen::run(&scene.station.vm, mac, length))?;
    let frames = spent.sender_frames;
    Ok(Reading::default()
        .with(FRAMES, frames / length.as_secs_f64() / 1000.0)
        .with(BACKEND_PER_FRAME, spent.backend_us / frames)
        .with(
            NOTIFICATIONS,
            counted.rose("/tx/notifications/sent") / frames,
        )
        .with(UPLINK_FULL, counted.rose("/tx/uplink_full")))
}

/// Requests of a byte, while a stream goes the same way.
fn beside(scene: &Scene<'_>, length: Duration) -> Result<Reading> {
    scene.segmentation(false)?;
    let ((rr, bulk), _, counted) = scene.observe(|| {
        let (vm, to) = (&scene.station.vm, &scene.sender.ip4);
        netperf::run_beside(vm, to, Workload::TcpRr(1), Workload::TcpStream, length)
    })?;
    Ok(Reading::default()
        .with(P50, rr.value("P50_LATENCY")?)
        .with(P90, rr.value("P90_LATENCY")?)
        .with(P99, rr.value("P99_LATENCY")?)
        .with(TRANSACTIONS, rr.value("THROUGHPUT")?)
        .with(BESIDE, bulk.value("THROUGHPUT")?)
        .with(UPLINK_FULL, counted.rose("/tx/uplink_full")))
}
