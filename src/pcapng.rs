//! Writes captures: pcapng, little endian, one Ethernet interface, nanoseconds.
//!
//! Source: draft-ietf-opsawg-pcapng, sections 3.1, 3.5 and 4.1 to 4.3.

use std::io::{self, Write};

use crate::time::Instant;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

/// `opt_endofopt`.
const END_OF_OPTIONS: u16 = 0;
/// `opt_comment`.
const COMMENT: u16 = 1;
/// `epb_flags`; its two lowest bits are the direction.
const FLAGS: u16 = 2;
/// `if_tsresol`; its value is the negative power of ten.
const TIME_RESOLUTION: u16 = 9;
const NANOSECONDS: u8 = 9;

/// Type and both lengths of a block.
const BLOCK_FRAME_LEN: usize = 12;

/// Where a packet went, as its interface sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    Inbound = 1,
    /// It was sent.
    Outbound = 2,
}

/// A capture that is being written.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    out: W,
    /// Body of the block at work, kept for its room.
    body: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Self {
            out,
            body: Vec::new(),
        };
        writer.put(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, and a section of unknown length.
        writer.put(&[1, 0, 0, 0]);
        writer.put(&[0xff; 8]);
        writer.end_block(SECTION_HEADER)?;

        writer.put(&LINKTYPE_ETHERNET.to_le_bytes());
        // Reserved, and no limit to the captured length.
        writer.put(&[0; 6]);
        writer.option(TIME_RESOLUTION, &[NANOSECONDS])?;
        writer.option(END_OF_OPTIONS, &[])?;
        writer.end_block(INTERFACE_DESCRIPTION)?;
        Ok(writer)
    }

    /// Writes one packet, whose bytes lie in `slices`. `time` counts from the Unix epoch.
    ///
    /// # Errors
    /// Those of the output; `InvalidInput` for a packet or comment that no block can hold.
    pub fn packet<'a>(
        &mut self,
        time: Instant,
        slices: impl Iterator<Item = &'a [u8]> + Clone,
        comment: Option<&str>,
    ) -> io::Result<()> {
        self.packet_of(time, slices, None, comment)
    }

    /// The same, of a packet whose direction is known.
    ///
    /// # Errors
    /// As of [`packet`](Self::packet).
    pub fn packet_of<'a>(
        &mut self,
        time: Instant,
        slices: impl Iterator<Item = &'a [u8]> + Clone,
        direction: Option<Direction>,
        comment: Option<&str>,
    ) -> io::Result<()> {
        let len = length(slices.clone().map(<[u8]>::len).sum())?;
        let interface: u32 = 0;
        // The time comes as two words, each in the byte order of the file, the high one first.
        let [low, high] = words(time.as_nanos());
        for word in [interface, high, low, len, len] {
            self.put(&word.to_le_bytes());
        }
        slices.for_each(|slice| self.put(slice));
        self.pad();
        if let Some(direction) = direction {
            self.option(FLAGS, &(direction as u32).to_le_bytes())?;
        }
        if let Some(comment) = comment {
            self.option(COMMENT, comment.as_bytes())?;
        }
        if direction.is_some() || comment.is_some() {
            self.option(END_OF_OPTIONS, &[])?;
        }
        self.end_block(ENHANCED_PACKET)
    }

    /// Writes out what is still buffered.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes out what is still buffered and gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        let padded = self.body.len().next_multiple_of(4);
        self.body.resize(padded, 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) -> io::Result<()> {
        let len = u16::try_from(value.len()).map_err(|_| too_long())?;
        self.put(&code.to_le_bytes());
        self.put(&len.to_le_bytes());
        self.put(value);
        self.pad();
        Ok(())
    }

    /// Puts the body between type and lengths.
    fn end_block(&mut self, kind: u32) -> io::Result<()> {
        let len = length(self.body.len() + BLOCK_FRAME_LEN)?.to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&self.body)?;
        self.out.write_all(&len)?;
        self.body.clear();
        Ok(())
    }
}

/// The low and the high half.
fn words(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes)
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| too_long())
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "too long for a block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_layout_of_the_format() {
        let mut writer = PcapngWriter::new(Vec::new()).unwrap();
        let time = Instant::from_nanos(0x0102_0304_0506_0708);
        let slices = [[1, 2, 3].as_slice(), &[4, 5]];
        writer
            .packet(time, slices.into_iter(), Some("abcde"))
            .unwrap();
        let bytes = writer.finish().unwrap();
        let (section, rest) = bytes.split_at(28);
        assert_eq!(section[..12], [10, 13, 13, 10, 28, 0, 0, 0, 77, 60, 43, 26]);
        assert_eq!(section[24..], [28, 0, 0, 0]);
        let (interface, packet) = rest.split_at(32);
        let options = [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(interface[..10], [1, 0, 0, 0, 32, 0, 0, 0, 1, 0]);
        assert_eq!(interface[16..28], options);
        assert_eq!(packet[..8], [6, 0, 0, 0, 56, 0, 0, 0]);
        assert_eq!(packet[12..20], [4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!(
            packet[20..36],
            [5, 0, 0, 0, 5, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]
        );
        assert_eq!(packet[36..48], *b"\x01\x00\x05\x00abcde\0\0\0");
        assert_eq!(packet[48..], [0, 0, 0, 0, 56, 0, 0, 0]);
    }
}
