//! Where the frames come from: a capture, read record by record in bounded memory.

use std::fs::File;

use pcap_parser::pcapng::Block;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{
    InterfaceDescriptionBlock, Linktype, OptionCode, PcapBlockOwned, PcapError, PcapHeader,
    create_reader,
};

use crate::time::Instant;

/// Bytes read at once.
const BUFFER: usize = 1 << 20;
/// Longest record, in bytes; some 60 times the longest frame that any capturing tool writes.
const BUFFER_MAX: usize = 1 << 24;
/// Block type of packets in early files; the format's draft calls it obsolete.
const OBSOLETE_PACKET: u32 = 2;
const NANOS_PER_SEC: u128 = 1_000_000_000;

/// One frame of the capture.
#[derive(Debug)]
pub(super) struct Captured {
    /// Its place among all records of the capture, from 1, as other tools count.
    pub(super) number: u64,
    /// When it was captured, since the Unix epoch.
    pub(super) time: Instant,
    pub(super) bytes: Vec<u8>,
}

/// Records that could not be used, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Skipped {
    /// Only the first bytes were captured.
    pub(super) snapped: u64,
    /// From an interface that is not Ethernet.
    pub(super) not_ethernet: u64,
    /// In a kind of block that is no longer in use.
    pub(super) obsolete: u64,
}

/// Why a capture cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(in crate::app) enum SourceError {
    #[error("expected a capture in pcap or pcapng format, not compressed")]
    Format,
    #[error("link type {0}: expected Ethernet, which is 1")]
    LinkType(i32),
    #[error("all {0} frames are from interfaces that are not Ethernet")]
    NoEthernet(u64),
    #[error("record {record} at byte {offset} is damaged or cut off")]
    Damaged { record: u64, offset: usize },
    #[error("cannot be read behind byte {0}")]
    Read(usize),
}

/// A capture that is being read.
pub(super) struct Source {
    reader: Box<dyn PcapReaderIterator + Send>,
    records: Records,
}

/// What is known from the records so far.
#[derive(Debug, Default)]
struct Records {
    /// Nanoseconds in the unit of the time stamps of a pcap file.
    unit: u64,
    is_big_endian: bool,
    interfaces: Vec<Interface>,
    count: u64,
    used: u64,
    time: Instant,
    skipped: Skipped,
}

#[derive(Debug)]
struct Interface {
    is_ethernet: bool,
    snaplen: u32,
    /// As in the option `if_tsresol`.
    resolution: u8,
    /// Seconds to be added to all times.
    offset: i64,
}

/// A record that does not fit its capture.
struct Damage;

impl Source {
    /// Begins to read.
    pub(super) fn new(file: File) -> Result<Self, SourceError> {
        let reader = create_reader(BUFFER, file).map_err(|error| match error {
            PcapError::ReadError => SourceError::Read(0),
            _ => SourceError::Format,
        })?;
        let mut source = Self {
            reader,
            records: Records::default(),
        };
        source.check_link_type()?;
        Ok(source)
    }

    /// The next frame; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<Captured>, SourceError> {
        loop {
            let offset = self.reader.consumed();
            let damaged = SourceError::Damaged {
                record: self.records.count + 1,
                offset,
            };
            let taken = match self.reader.next() {
                Ok((len, block)) => Ok((len, self.records.take(block))),
                Err(error) => Err(error.to_owned_vec()),
            };
            match taken {
                Ok((len, taken)) => {
                    self.reader.consume(len);
                    match taken {
                        Ok(None) => {}
                        Ok(captured) => return Ok(captured),
                        Err(Damage) => return Err(damaged),
                    }
                }
                Err(PcapError::Eof) => return self.records.check_any_ethernet().map(|()| None),
                Err(PcapError::Incomplete(_)) => self.refill(offset, damaged)?,
                Err(PcapError::BufferTooSmall) if self.reader.grow(BUFFER_MAX) => {}
                Err(PcapError::ReadError) => return Err(SourceError::Read(offset)),
                Err(_) => return Err(damaged),
            }
        }
    }

    /// Reads on. A record that says it is longer than it is asks for more for ever: `damaged`.
    fn refill(&mut self, offset: usize, damaged: SourceError) -> Result<(), SourceError> {
        let before = self.reader.data().len();
        let read = self.reader.refill().map_err(|_| SourceError::Read(offset));
        read?;
        let is_stuck = self.reader.data().len() == before && !self.reader.reader_exhausted();
        if is_stuck { Err(damaged) } else { Ok(()) }
    }

    pub(super) fn skipped(&self) -> Skipped {
        self.records.skipped
    }

    /// A pcap file says its link type once, at the start.
    ///
    /// Source: draft-ietf-opsawg-pcap, section 4: the upper bits of the word are about the frame
    /// check sequence.
    fn check_link_type(&mut self) -> Result<(), SourceError> {
        const LINK_TYPE: i32 = 0xffff;
        match self.reader.next() {
            Ok((_, PcapBlockOwned::LegacyHeader(PcapHeader { network, .. }))) => {
                match Linktype(network.0 & LINK_TYPE) {
                    Linktype::ETHERNET => Ok(()),
                    Linktype(other) => Err(SourceError::LinkType(other)),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Records {
    /// Takes one record or block; gives the frame in it.
    fn take(&mut self, block: PcapBlockOwned<'_>) -> Result<Option<Captured>, Damage> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.unit = if header.is_nanosecond_precision() {
                    1
                } else {
                    1000
                };
            }
            PcapBlockOwned::Legacy(record) => {
                let seconds = u64::from(record.ts_sec) * 1_000_000_000;
                let nanos = seconds + u64::from(record.ts_usec) * self.unit;
                let time = Instant::from_nanos(nanos);
                return Ok(self.frame(time, record.data, record.origlen));
            }
            PcapBlockOwned::NG(Block::SectionHeader(header)) => {
                self.is_big_endian = header.big_endian();
                self.interfaces.clear();
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                let interface = Interface::new(&block, self.is_big_endian);
                self.interfaces.push(interface);
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
                let interface = self.interfaces.get(block.if_id as usize).ok_or(Damage)?;
                if !interface.is_ethernet {
                    return Ok(self.skip(|skipped| &mut skipped.not_ethernet));
                }
                let units = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
                let time = interface.time(units);
                return Ok(self.frame(time, block.packet_data(), block.origlen));
            }
            PcapBlockOwned::NG(Block::SimplePacket(block)) => {
                let interface = self.interfaces.first().ok_or(Damage)?;
                if !interface.is_ethernet {
                    return Ok(self.skip(|skipped| &mut skipped.not_ethernet));
                }
                // It has neither time nor captured length.
                let limit = match interface.snaplen {
                    0 => usize::MAX,
                    snaplen => snaplen as usize,
                };
                let bytes = block.packet_data();
                let bytes = bytes.get(..limit).unwrap_or(bytes);
                return Ok(self.frame(self.time, bytes, block.origlen));
            }
            PcapBlockOwned::NG(Block::Unknown(block)) => {
                let kind = if self.is_big_endian {
                    block.block_type.swap_bytes()
                } else {
                    block.block_type
                };
                if kind == OBSOLETE_PACKET {
                    return Ok(self.skip(|skipped| &mut skipped.obsolete));
                }
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(None)
    }

    fn frame(&mut self, time: Instant, bytes: &[u8], original_len: u32) -> Option<Captured> {
        if bytes.len() < original_len as usize {
            return self.skip(|skipped| &mut skipped.snapped);
        }
        self.count += 1;
        self.used += 1;
        self.time = time;
        Some(Captured {
            number: self.count,
            time,
            bytes: bytes.to_vec(),
        })
    }

    fn skip(&mut self, counter: impl Fn(&mut Skipped) -> &mut u64) -> Option<Captured> {
        self.count += 1;
        *counter(&mut self.skipped) += 1;
        None
    }

    fn check_any_ethernet(&self) -> Result<(), SourceError> {
        let others = self.skipped.not_ethernet;
        if others > 0 && others == self.count {
            return Err(SourceError::NoEthernet(others));
        }
        Ok(())
    }
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>, is_big_endian: bool) -> Self {
        // Read here, because the crate takes it for little endian always.
        let offset = block
            .options
            .iter()
            .find(|option| option.code == OptionCode::IfTsoffset)
            .and_then(|option| option.value.first_chunk().copied())
            .map_or(0, |bytes| {
                if is_big_endian {
                    i64::from_be_bytes(bytes)
                } else {
                    i64::from_le_bytes(bytes)
                }
            });
        Self {
            is_ethernet: block.linktype == Linktype::ETHERNET,
            snaplen: block.snaplen,
            resolution: block.if_tsresol,
            offset,
        }
    }

    /// The instant `units` after the epoch; one that the clock cannot express becomes its nearest
    /// end.
    fn time(&self, units: u64) -> Instant {
        const IS_BINARY: u8 = 0x80;
        let exponent = u32::from(self.resolution & !IS_BINARY);
        let per_second = if self.resolution & IS_BINARY != 0 {
            1 << exponent
        } else {
            10_u128.checked_pow(exponent).unwrap_or(u128::MAX)
        };
        let nanos = u128::from(units) * NANOS_PER_SEC / per_second;
        let shift = u128::from(self.offset.unsigned_abs()) * NANOS_PER_SEC;
        let nanos = if self.offset < 0 {
            nanos.saturating_sub(shift)
        } else {
            nanos + shift
        };
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(resolution: u8, offset: i64, units: u64) -> u64 {
        let interface = Interface {
            is_ethernet: true,
            snaplen: 0,
            resolution,
            offset,
        };
        interface.time(units).as_nanos()
    }

    #[test]
    fn time_stamps_have_any_resolution() {
        assert_eq!(nanos(6, 0, 5), 5000);
        assert_eq!(nanos(9, 0, 5), 5);
        assert_eq!(nanos(12, 0, 5999), 5);
        assert_eq!(nanos(0x80 | 10, 0, 512), 500_000_000);
        assert_eq!(nanos(0x80 | 127, 0, u64::MAX), 0);
        assert_eq!(nanos(127, 0, u64::MAX), 0);
        assert_eq!(nanos(0, 0, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_time_offset_is_in_seconds() {
        assert_eq!(nanos(9, 2, 5), 2_000_000_005);
        assert_eq!(nanos(9, -2, 5_000_000_000), 3_000_000_000);
        assert_eq!(nanos(9, i64::MIN, 5), 0);
        assert_eq!(nanos(9, i64::MAX, 5), u64::MAX);
    }
}
