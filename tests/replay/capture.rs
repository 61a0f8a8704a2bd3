//! Captures for tests: written by hand in every format, read by `pcap-parser`.

use pcap_parser::pcapng::Block;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{PcapBlockOwned, PcapError, create_reader};

const ETHERNET: u16 = 1;

/// How a capture is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) is_ng: bool,
    pub(crate) is_nano: bool,
    pub(crate) is_big_endian: bool,
    pub(crate) link_type: u16,
}

/// What most tests use.
pub(crate) const PCAP: Format = Format {
    is_ng: false,
    is_nano: true,
    is_big_endian: false,
    link_type: ETHERNET,
};

/// The same as pcapng.
pub(crate) const PCAPNG: Format = Format {
    is_ng: true,
    ..PCAP
};

/// A frame of a capture.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) nanos: u64,
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the frame that the capture does not have.
    pub(crate) cut: u32,
}

impl Record {
    pub(crate) fn new(nanos: u64, bytes: Vec<u8>) -> Self {
        Self {
            nanos,
            bytes,
            cut: 0,
        }
    }
}

impl Format {
    /// All eight of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self {
            is_ng: bits & 1 != 0,
            is_nano: bits & 2 != 0,
            is_big_endian: bits & 4 != 0,
            ..PCAP
        })
    }

    pub(crate) fn capture(self, records: &[Record]) -> Vec<u8> {
        let mut bytes = self.header();
        for record in records {
            bytes.extend(self.record(record));
        }
        bytes
    }

    pub(crate) fn header(self) -> Vec<u8> {
        if self.is_ng {
            let section = [
                self.long(0x1a2b_3c4d),
                [self.short(1), self.short(0)].concat(),
                vec![0xff; 8],
            ];
            let mut bytes = self.block(0x0a0d_0d0a, &section.concat());
            bytes.extend(self.interface());
            return bytes;
        }
        let magic = if self.is_nano {
            0xa1b2_3c4d
        } else {
            0xa1b2_c3d4
        };
        let network = self.link_type.into();
        let version = [self.short(2), self.short(4)].concat();
        let rest = [0, 0, 262_144, network].map(|field| self.long(field));
        [self.long(magic), version, rest.concat()].concat()
    }

    /// A description of one more interface.
    pub(crate) fn interface(self) -> Vec<u8> {
        let mut body = [self.short(self.link_type), vec![0; 6]].concat();
        if self.is_nano {
            body.extend([self.short(9), self.short(1), vec![9, 0, 0, 0]].concat());
            body.extend([0; 4]);
        }
        self.block(1, &body)
    }

    pub(crate) fn record(self, record: &Record) -> Vec<u8> {
        self.record_of(0, record)
    }

    /// A record of another interface than the first.
    pub(crate) fn record_of(self, interface: u32, record: &Record) -> Vec<u8> {
        let len = u32::try_from(record.bytes.len()).expect("a frame is small");
        let lens = [self.long(len), self.long(len + record.cut)].concat();
        let unit = if self.is_nano { 1 } else { 1000 };
        let half = |value: u64| u32::try_from(value).expect("half of a time");
        if self.is_ng {
            let time = record.nanos / unit;
            let time = [
                self.long(half(time >> 32)),
                self.long(half(time & 0xffff_ffff)),
            ];
            let mut body = [self.long(interface), time.concat(), lens].concat();
            body.extend(&record.bytes);
            body.resize(body.len().next_multiple_of(4), 0);
            return self.block(6, &body);
        }
        let time = [
            self.long(half(record.nanos / 1_000_000_000)),
            self.long(half(record.nanos % 1_000_000_000 / unit)),
        ];
        [time.concat(), lens, record.bytes.clone()].concat()
    }

    /// A block of a pcapng file.
    pub(crate) fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len() + 12).expect("a block is small");
        let len = self.long(len);
        [&self.long(kind), &len, body, &len].concat()
    }

    pub(crate) fn long(self, value: u32) -> Vec<u8> {
        if self.is_big_endian {
            value.to_be_bytes().to_vec()
        } else {
            value.to_le_bytes().to_vec()
        }
    }

    fn short(self, value: u16) -> Vec<u8> {
        if self.is_big_endian {
            value.to_be_bytes().to_vec()
        } else {
            value.to_le_bytes().to_vec()
        }
    }
}

/// A packet of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) nanos: u64,
    pub(crate) bytes: Vec<u8>,
    /// Number of segments and their size, as the comment says; 1 and 0 without one.
    pub(crate) segs: (usize, u16),
}

/// Reads a pcapng file with nanoseconds.
pub(crate) fn read(bytes: &[u8]) -> Vec<Received> {
    let mut packets = Vec::new();
    let mut reader = create_reader(1 << 20, bytes).expect("it is a capture");
    loop {
        match reader.next() {
            Ok((len, block)) => {
                match block {
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        assert_eq!((interface.linktype.0, interface.if_tsresol), (1, 9));
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                        assert_eq!(packet.caplen, packet.origlen);
                        let comment = packet.options.first();
                        packets.push(Received {
                            nanos: u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low),
                            bytes: packet.packet_data().to_vec(),
                            segs: comment.map_or((1, 0), |comment| {
                                segments(comment.as_bytes().expect("it has a length"))
                            }),
                        });
                    }
                    PcapBlockOwned::NG(_) => {}
                    _ => panic!("not pcapng"),
                }
                reader.consume(len);
            }
            Err(PcapError::Eof) => return packets,
            Err(PcapError::Incomplete(_)) => reader.refill().expect("it is in memory"),
            Err(error) => panic!("the result is damaged: {error:?}"),
        }
    }
}

/// Takes apart `N segments of S bytes`.
fn segments(comment: &[u8]) -> (usize, u16) {
    let words: Vec<_> = std::str::from_utf8(comment)
        .expect("it is text")
        .split(' ')
        .collect();
    assert_eq!([words[1], words[2], words[4]], ["segments", "of", "bytes"]);
    let number = |word: &str| word.parse().expect("a number");
    (usize::from(number(words[0])), number(words[3]))
}
