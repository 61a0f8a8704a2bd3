//! The Internet checksum (RFC 1071): sums over pieces, folding, the pseudo-header.
//!
//! One's complement addition does not care about byte order, so sums are kept over words as the
//! machine reads them and turned into network meaning once, in [`Sum::fold`].

use super::layout::{Layout, Network};
use super::{array_at, array_at_mut};

/// Bytes summed per round of the main loop: eight lanes of four bytes, which the compiler turns
/// into vector additions.
const BLOCK: usize = 32;
const LANES: usize = BLOCK / 4;

/// A running one's complement sum over bytes given in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Unfolded. Each addition is below 2^48 for any frame, so it cannot overflow in practice;
    /// wrapping would only spoil the result.
    words: u64,
    /// Whether an odd number of bytes went in so far, so that the next byte is a low one.
    odd: bool,
}

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self {
        words: 0,
        odd: false,
    };

    /// The sum over one piece.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self::ZERO.plus(bytes)
    }

    /// Adds a further piece, of any length.
    #[must_use]
    #[inline]
    pub fn plus(self, bytes: &[u8]) -> Self {
        let piece = sum_native(bytes);
        // A piece that starts at an odd place has its bytes in the other half of each word.
        let piece = if self.odd {
            u64::from(fold_native(piece).swap_bytes())
        } else {
            piece
        };
        Self {
            words: self.words.wrapping_add(piece),
            odd: self.odd != (bytes.len() % 2 == 1),
        }
    }

    /// Adds a 16-bit value. Only for sums over an even number of bytes.
    #[must_use]
    #[inline]
    pub const fn plus_word(self, value: u16) -> Self {
        Self {
            words: self.words.wrapping_add(value.to_be() as u64),
            odd: self.odd,
        }
    }

    /// Takes a 16-bit value out of the sum again (RFC 1624).
    #[must_use]
    #[inline]
    pub const fn minus_word(self, value: u16) -> Self {
        self.plus_word(!value)
    }

    /// The folded sum, not complemented: what a partial checksum holds.
    #[must_use]
    #[inline]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold_native(self.words))
    }

    /// The checksum to be stored: the folded sum complemented.
    #[must_use]
    #[inline]
    pub const fn complement(self) -> u16 {
        !self.fold()
    }

    /// Whether the sum over data with its checksum in it says that the data is undamaged.
    #[must_use]
    #[inline]
    pub const fn is_all_ones(self) -> bool {
        fold_native(self.words) == 0xffff
    }
}

/// Sums a header whose length is known at compile time and a multiple of four.
#[must_use]
#[inline]
pub(super) fn words_sum<const N: usize>(header: &[u8; N]) -> Sum {
    const { assert!(N.is_multiple_of(4)) };
    let (words, _) = header.as_chunks::<4>();
    Sum {
        words: words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum(),
        odd: false,
    }
}

/// Sums 32-bit words as the machine reads them; a short tail counts as padded with zeros.
#[inline]
fn sum_native(bytes: &[u8]) -> u64 {
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    let mut lanes = [0_u64; LANES];
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
        }
    }
    let mut sum = lanes
        .iter()
        .fold(0_u64, |sum, lane| sum.wrapping_add(*lane));
    let (words, tail) = tail.as_chunks::<4>();
    for word in words {
        sum = sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(tail) {
        *to = *from;
    }
    sum.wrapping_add(u64::from(u32::from_ne_bytes(last)))
}

/// Adds the carries back in until 16 bits are left.
#[inline]
const fn fold_native(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "two rounds of end-around carry leave 16 bits"
    )]
    {
        sum as u16
    }
}

/// The sum over the pseudo-header: addresses, protocol and the length of the transport part.
///
/// For IPv6 the destination is that of the fixed header (rule IP6-7). A frame that does not hold
/// the addresses sums to nothing.
///
/// # Units
/// `l4_len` is in bytes. Source: RFC 9293 section 3.1, RFC 8200 section 8.1.
#[must_use]
#[inline]
pub fn pseudo_header(frame: &[u8], layout: &Layout, l4_len: u32) -> Sum {
    let l3 = usize::from(layout.l3);
    let addresses = match layout.network {
        Network::Ipv4 => array_at::<8>(frame, l3 + 12).map(words_sum),
        Network::Ipv6 => array_at::<32>(frame, l3 + 8).map(words_sum),
    };
    let [h0, h1, l0, l1] = l4_len.to_be_bytes();
    addresses
        .unwrap_or_default()
        .plus_word(u16::from_be_bytes([h0, h1]))
        .plus_word(u16::from_be_bytes([l0, l1]))
        .plus_word(u16::from(layout.transport.protocol()))
}

/// Whether the transport checksum of a whole frame is right.
#[must_use]
#[inline]
pub fn is_transport_right(frame: &[u8], layout: &Layout) -> bool {
    let Some(transport) = frame.get(usize::from(layout.l4)..) else {
        return false;
    };
    let Ok(len) = u32::try_from(transport.len()) else {
        return false;
    };
    pseudo_header(frame, layout, len)
        .plus(transport)
        .is_all_ones()
}

/// A partial checksum whose place lies outside the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfFrame;

impl core::fmt::Display for OutOfFrame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the checksum lies outside the frame")
    }
}

impl core::error::Error for OutOfFrame {}

/// Finishes a partial checksum in place: sums from `csum_start` to the end, the pseudo-header
/// sum in the field included, and stores the complement (rule TX-8).
///
/// # Errors
/// The field lies outside the frame; nothing is changed then.
pub fn complete(frame: &mut [u8], csum_start: u16, csum_offset: u16) -> Result<(), OutOfFrame> {
    let covered = frame.get_mut(usize::from(csum_start)..).ok_or(OutOfFrame)?;
    let sum = Sum::of(covered);
    let field = array_at_mut::<2>(covered, usize::from(csum_offset)).ok_or(OutOfFrame)?;
    *field = stored_form(sum.complement(), csum_offset).to_be_bytes();
    Ok(())
}

/// The form in which a finished checksum is stored: for UDP zero would mean "none", so it becomes
/// 0xffff (RFC 768).
#[must_use]
pub const fn stored_form(checksum: u16, csum_offset: u16) -> u16 {
    if checksum == 0 && csum_offset == super::udp::CHECKSUM_OFFSET {
        0xffff
    } else {
        checksum
    }
}
