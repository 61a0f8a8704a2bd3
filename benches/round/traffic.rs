//! The frames that are measured, by kind of traffic.

use etherparse::PacketBuilder;

/// Frames of one poll: the budget by default.
const BATCH: usize = 64;
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

/// A kind of traffic.
///
/// Its frames have one length and differ in their headers only.
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    /// Frames of a round and their payload.
    pub(crate) size: &'static str,
    pub(crate) frames: usize,
    /// The n-th frame.
    frame: fn(usize) -> Vec<u8>,
}

impl Traffic {
    /// The frames of a round.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        (0..self.frames).map(self.frame).collect()
    }
}

pub(crate) const TRAFFIC: [Traffic; 8] = [
    Traffic {
        name: "tcp4_in_order",
        size: "64x1448B",
        frames: BATCH,
        frame: |n| tcp4(0, n, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp6_in_order",
        size: "64x1428B",
        frames: BATCH,
        frame: |n| tcp6(n, 1428),
    },
    Traffic {
        name: "tcp4_8_flows",
        size: "64x1448B",
        frames: BATCH,
        frame: |n| tcp4(n % 8, n / 8, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp4_64_flows",
        size: "512x1448B",
        frames: 8 * BATCH,
        frame: |n| tcp4(n % 64, n / 64, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp4_1000_flows",
        size: "2000x1448B",
        frames: 2000,
        frame: |n| tcp4(n % 1000, n / 1000, 1448, Kind::Data),
    },
    Traffic {
        name: "tcp4_bare_acks",
        size: "64x0B",
        frames: BATCH,
        frame: |n| tcp4(0, n, 0, Kind::Data),
    },
    Traffic {
        name: "tcp4_unmergeable",
        size: "64x1448B",
        frames: BATCH,
        frame: |n| tcp4(0, n, 1448, Kind::Reset),
    },
    Traffic {
        name: "udp4_in_order",
        size: "64x1472B",
        frames: BATCH,
        frame: |_| udp4(1472),
    },
];

#[derive(Clone, Copy)]
enum Kind {
    Data,
    /// With a flag that keeps it out of every packet.
    Reset,
}

fn tcp4(flow: usize, number: usize, len: usize, kind: Kind) -> Vec<u8> {
    let flow = u16::try_from(flow).expect("few flows");
    let ip = etherparse::Ipv4Header {
        identification: u16::try_from(number).expect("few segments"),
        dont_fragment: true,
        time_to_live: 64,
        source: [192, 0, 2, 1],
        destination: [198, 51, 100, 2],
        ..Default::default()
    };
    let header = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .tcp(20000 + flow, 8000, seq(number, len), 65535)
        .ack(1)
        .options_raw(&TIMESTAMPS)
        .expect("12 bytes of options");
    let header = match kind {
        Kind::Data => header,
        Kind::Reset => header.rst(),
    };
    let mut frame = Vec::new();
    header
        .write(&mut frame, &vec![0x5a; len])
        .expect("a frame that fits");
    frame
}

fn tcp6(number: usize, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv6([0x20; 16], [0x21; 16], 64)
        .tcp(20000, 8000, seq(number, len), 65535)
        .ack(1)
        .options_raw(&TIMESTAMPS)
        .expect("12 bytes of options")
        .write(&mut frame, &vec![0x5a; len])
        .expect("a frame that fits");
    frame
}

fn udp4(len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 2], 64)
        .udp(20000, 8000)
        .write(&mut frame, &vec![0x5a; len])
        .expect("a frame that fits");
    frame
}

fn seq(number: usize, len: usize) -> u32 {
    u32::try_from(number * len).expect("a short stream")
}
