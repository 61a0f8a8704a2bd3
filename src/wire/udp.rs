//! UDP header (RFC 768).

use super::{array_at, array_at_mut, be16};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Where in the header the checksum lies.
pub const CHECKSUM_OFFSET: u16 = 6;
/// IP protocol number.
pub const PROTOCOL: u8 = 17;

/// A view of a UDP header.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a>(&'a [u8; HEADER_LEN]);

impl<'a> Udp<'a> {
    /// Borrows the header at `l4`; `None` if the frame is too short for it.
    #[must_use]
    #[inline]
    pub fn at(frame: &'a [u8], l4: usize) -> Option<Self> {
        array_at(frame, l4).map(Self)
    }

    /// Destination port.
    #[must_use]
    pub const fn destination_port(self) -> u16 {
        be16(self.0, 2)
    }

    /// Length of header and payload, in bytes.
    #[must_use]
    pub const fn len(self) -> u16 {
        be16(self.0, 4)
    }

    /// Whether the length field is zero, which no sound datagram has.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Checksum; zero means that the sender computed none.
    #[must_use]
    pub const fn checksum(self) -> u16 {
        be16(self.0, 6)
    }
}

/// Writes length and checksum of the header at `l4`. A frame without a whole header is left
/// alone.
pub fn rewrite(frame: &mut [u8], l4: usize, len: u16, checksum: u16) {
    if let Some(header) = array_at_mut::<HEADER_LEN>(frame, l4) {
        [header[4], header[5]] = len.to_be_bytes();
        [header[6], header[7]] = checksum.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_survive_a_rewrite() {
        let mut bytes = [0x12, 0xb5, 0x1f, 0x40, 0, 108, 0xbe, 0xef];
        let udp = Udp::at(&bytes, 0).unwrap();
        assert_eq!((udp.destination_port(), udp.len()), (8000, 108));
        assert_eq!(udp.checksum(), 0xbeef);
        rewrite(&mut bytes, 0, 9, 0x0102);
        assert_eq!(bytes, [0x12, 0xb5, 0x1f, 0x40, 0, 9, 1, 2]);
    }
}
