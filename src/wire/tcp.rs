//! TCP header (RFC 9293).

use super::{array_at, array_at_mut, be16, be32};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Where in the header the checksum lies.
pub const CHECKSUM_OFFSET: u16 = 16;
/// IP protocol number.
pub const PROTOCOL: u8 = 6;

/// Flags, as bits of the byte at offset 13.
pub const FIN: u8 = 0x01;
/// Synchronise.
pub const SYN: u8 = 0x02;
/// Reset.
pub const RST: u8 = 0x04;
/// Push.
pub const PSH: u8 = 0x08;
/// Urgent pointer valid.
pub const URG: u8 = 0x20;
/// Congestion window reduced (RFC 3168).
pub const CWR: u8 = 0x80;

/// A view of the fixed part of a TCP header.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a>(&'a [u8; HEADER_LEN]);

impl<'a> Tcp<'a> {
    /// Borrows the header at `l4`; `None` if the frame is too short for it.
    #[must_use]
    #[inline]
    pub fn at(frame: &'a [u8], l4: usize) -> Option<Self> {
        array_at(frame, l4).map(Self)
    }

    /// Sequence number of the first payload byte.
    #[must_use]
    pub const fn seq(self) -> u32 {
        be32(self.0, 4)
    }

    /// Acknowledgement number.
    #[must_use]
    pub const fn ack(self) -> u32 {
        be32(self.0, 8)
    }

    /// Header length with options, in bytes: 0 to 60, sound from 20 on.
    #[must_use]
    pub const fn header_len(self) -> usize {
        (self.0[12] >> 4) as usize * 4
    }

    /// The word with data offset, reserved bits, all flags and the window.
    ///
    /// Source: `tcp_flag_word`, `include/uapi/linux/tcp.h`.
    #[must_use]
    pub const fn flag_word(self) -> u32 {
        be32(self.0, 12)
    }

    /// The eight flags FIN to CWR.
    #[must_use]
    pub const fn flags(self) -> u8 {
        self.0[13]
    }

    /// Window, unscaled.
    #[must_use]
    pub const fn window(self) -> u16 {
        be16(self.0, 14)
    }

    /// Urgent pointer, also when URG is clear.
    #[must_use]
    pub const fn urgent_pointer(self) -> u16 {
        be16(self.0, 18)
    }
}

/// Writes flags and checksum of the header at `l4`. A frame without a whole header is left alone.
pub fn rewrite(frame: &mut [u8], l4: usize, flags: u8, checksum: u16) {
    if let Some(header) = array_at_mut::<HEADER_LEN>(frame, l4) {
        header[13] = flags;
        [header[16], header[17]] = checksum.to_be_bytes();
    }
}

/// Writes the sequence number of the header at `l4`.
pub fn set_seq(frame: &mut [u8], l4: usize, seq: u32) {
    if let Some(header) = array_at_mut::<HEADER_LEN>(frame, l4) {
        [header[4], header[5], header[6], header[7]] = seq.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_known_header() {
        let bytes = [
            0x9c, 0x40, 0x1f, 0x40, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 1, 0x80, 0x98, 0xff, 0xfe, 0xab,
            0xcd, 0, 77,
        ];
        let tcp = Tcp::at(&bytes, 0).unwrap();
        assert_eq!((tcp.seq(), tcp.ack()), (1_000_000, 1));
        assert_eq!((tcp.header_len(), tcp.window()), (32, 0xfffe));
        assert_eq!(tcp.flags(), CWR | PSH | 0x10);
        assert_eq!(tcp.flag_word(), 0x8098_fffe);
        assert_eq!(tcp.urgent_pointer(), 77);
    }

    #[test]
    fn f23_rewrite_touches_flags_and_checksum_only() {
        let mut bytes = [0x55_u8; 24];
        rewrite(&mut bytes, 2, FIN | PSH, 0x1234);
        let mut expected = [0x55_u8; 24];
        expected[15] = 9;
        expected[18..20].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(bytes, expected);
    }
}
