//! IPv4 header (RFC 791), without options: those never take part in a merge.

use super::checksum::{Sum, words_sum};
use super::{array_at, array_at_mut, be16};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// "Don't fragment".
pub const DF: u16 = 0x4000;
/// "More fragments".
pub const MF: u16 = 0x2000;
/// The bit that must be zero.
pub const RESERVED: u16 = 0x8000;
/// Bits of the fragment offset, in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// Largest total length, in bytes.
pub const MAX_LEN: usize = 0xffff;

/// A view of the fixed part of an IPv4 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a>(&'a [u8; HEADER_LEN]);

impl<'a> Ipv4<'a> {
    /// Borrows the header at `l3`; `None` if the frame is too short for it.
    #[must_use]
    #[inline]
    pub fn at(frame: &'a [u8], l3: usize) -> Option<Self> {
        array_at(frame, l3).map(Self)
    }

    /// IP version, 4 in a sound header.
    #[must_use]
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Header length with options, in bytes.
    #[must_use]
    pub const fn header_len(self) -> usize {
        (self.0[0] & 0xf) as usize * 4
    }

    /// Type of service: DSCP and ECN.
    #[must_use]
    pub const fn tos(self) -> u8 {
        self.0[1]
    }

    /// Length of the packet from this header on, in bytes.
    #[must_use]
    pub const fn total_len(self) -> u16 {
        be16(self.0, 2)
    }

    /// Identification.
    #[must_use]
    pub const fn id(self) -> u16 {
        be16(self.0, 4)
    }

    /// The word with the reserved bit, DF, MF and the fragment offset.
    #[must_use]
    pub const fn fragment_word(self) -> u16 {
        be16(self.0, 6)
    }

    /// Whether "don't fragment" is set.
    #[must_use]
    pub const fn is_df(self) -> bool {
        self.fragment_word() & DF != 0
    }

    /// Whether this is a piece of a larger packet.
    #[must_use]
    pub const fn is_fragment(self) -> bool {
        self.fragment_word() & (MF | OFFSET_MASK) != 0
    }

    /// Time to live.
    #[must_use]
    pub const fn ttl(self) -> u8 {
        self.0[8]
    }

    /// Number of the protocol behind the header.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        self.0[9]
    }

    /// Source address, then destination address.
    #[must_use]
    pub fn addresses(self) -> [u8; 8] {
        let a = self.0;
        [a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19]]
    }

    /// Whether the checksum over these 20 bytes is right. A header with options fails.
    #[must_use]
    #[inline]
    pub fn is_checksum_right(self) -> bool {
        words_sum(self.0).is_all_ones()
    }
}

/// Identification and checksum of a header, added as words: as long as nothing else changes, a
/// checksum that follows the identification leaves it the same.
///
/// Source: RFC 1624, which changes a checksum by the words that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSum(u32);

impl IdSum {
    /// That of a header with zeros in both.
    pub const ZERO: Self = Self(0);
}

impl Ipv4<'_> {
    /// If another header with a right checksum equals this one in all but identification and
    /// checksum, and their sums are equal, this one's checksum is right as well.
    #[must_use]
    #[inline(always)]
    pub fn id_sum(self) -> IdSum {
        // In either byte order, as all sums of words.
        let word = |at: usize| u32::from(u16::from_ne_bytes([self.0[at], self.0[at + 1]]));
        let sum = word(4) + word(10);
        IdSum((sum & 0xffff) + (sum >> 16))
    }
}

/// Sets total length and identification of the header at `l3` and recomputes its checksum over
/// the whole header, options included. A frame without a whole header there is left alone.
pub fn rewrite(frame: &mut [u8], l3: usize, total_len: u16, id: u16) {
    let Some(fixed) = array_at_mut::<HEADER_LEN>(frame, l3) else {
        return;
    };
    let [l0, l1] = total_len.to_be_bytes();
    let [i0, i1] = id.to_be_bytes();
    (fixed[2], fixed[3], fixed[4], fixed[5]) = (l0, l1, i0, i1);
    (fixed[10], fixed[11]) = (0, 0);
    let header_len = Ipv4(fixed).header_len();
    let Some(header) = frame.get_mut(l3..l3 + header_len) else {
        return;
    };
    let checksum = Sum::of(header).complement().to_be_bytes();
    if let Some(field) = array_at_mut(header, 10) {
        *field = checksum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example of RFC 1071 practice: a header whose checksum is known to be 0xb861.
    const KNOWN: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn fields_of_a_known_header() {
        let ip = Ipv4::at(&KNOWN, 0).unwrap();
        assert_eq!((ip.version(), ip.header_len()), (4, 20));
        assert_eq!((ip.tos(), ip.total_len(), ip.id()), (0, 0x73, 0));
        assert!(ip.is_df() && !ip.is_fragment());
        assert_eq!((ip.ttl(), ip.protocol()), (64, 17));
        assert_eq!(ip.addresses(), [192, 168, 0, 1, 192, 168, 0, 199]);
        assert!(ip.is_checksum_right());
    }

    #[test]
    fn f20_rewrite_recomputes_from_any_checksum_value() {
        for stale in [0, 0xb861_u16, 0xffff] {
            let mut header = KNOWN;
            header[10..12].copy_from_slice(&stale.to_be_bytes());
            rewrite(&mut header, 0, 0x73, 0);
            assert_eq!(header, KNOWN);
        }
    }

    #[test]
    fn rewrite_covers_options() {
        let mut header = [0_u8; 24];
        header[..20].copy_from_slice(&KNOWN);
        header[0] = 0x46;
        header[20..].copy_from_slice(&[0x94, 4, 0, 0]);
        rewrite(&mut header, 0, 400, 9);
        assert!(Sum::of(&header).is_all_ones());
    }

    #[test]
    fn f07_rewrite_of_a_cut_header_changes_nothing() {
        let mut header = KNOWN[..19].to_vec();
        rewrite(&mut header, 0, 1, 1);
        assert_eq!(header, KNOWN[..19]);
    }
}
