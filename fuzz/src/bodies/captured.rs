//! Frames of real captures, for seeds.

use std::fs;
use std::path::{Path, PathBuf};

use pcap_parser::pcapng::Block;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

/// A frame and when it was captured, in nanoseconds; times are only compared within a capture.
#[derive(Clone, Debug)]
pub struct Captured {
    pub time: u64,
    pub bytes: Vec<u8>,
}

/// Short frames of what `tests/captures` records, made by `fuzz/frames.sh`.
pub fn recorded() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // In the fuzz crate itself, or in the package whose tests run the bodies.
    [folder.join("frames.pcap"), folder.join("fuzz/frames.pcap")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("fuzz/frames.pcap is there")
}

/// The Ethernet frames of a capture, up to where it is damaged.
pub fn frames(path: &Path) -> Vec<Captured> {
    let file = fs::File::open(path).unwrap();
    let mut capture = Capture::default();
    let Ok(mut reader) = create_reader(1 << 20, file) else {
        return capture.frames;
    };
    loop {
        let taken = match reader.next() {
            Ok((len, block)) => {
                capture.take(block);
                Ok(len)
            }
            Err(error) => Err(error.to_owned_vec()),
        };
        match taken {
            Ok(len) => reader.consume(len),
            Err(PcapError::Incomplete(_)) if !reader.reader_exhausted() => {
                if reader.refill().is_err() {
                    return capture.frames;
                }
            }
            Err(_) => return capture.frames,
        }
    }
}

/// A capture that is being read.
#[derive(Default)]
struct Capture {
    frames: Vec<Captured>,
    links: Vec<Linktype>,
    /// Time stamps are in nanoseconds; in pcapng all are taken for microseconds.
    is_nano: bool,
}

impl Capture {
    fn take(&mut self, block: PcapBlockOwned<'_>) {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.links = vec![header.network];
                self.is_nano = header.is_nanosecond_precision();
            }
            PcapBlockOwned::Legacy(record) => {
                let unit = if self.is_nano { 1 } else { 1000 };
                let seconds = u64::from(record.ts_sec) * 1_000_000_000;
                self.frame(0, seconds + u64::from(record.ts_usec) * unit, record.data);
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.links.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                self.links.push(interface.linktype);
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                self.frame(
                    packet.if_id,
                    units.saturating_mul(1000),
                    packet.packet_data(),
                );
            }
            PcapBlockOwned::NG(_) => {}
        }
    }

    fn frame(&mut self, link: u32, time: u64, bytes: &[u8]) {
        if self.links.get(link as usize) == Some(&Linktype::ETHERNET) {
            self.frames.push(Captured {
                time,
                bytes: bytes.to_vec(),
            });
        }
    }
}
