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
        // Folding keeps the value modulo 0xffff, and only a sum of nothing but zeros folds to
        // zero. A division by a constant is a multiplication, which is shorter than folding.
        self.words != 0 && self.words.is_multiple_of(0xffff)
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
    let l3 = usize::from(layout.l3());
    let addresses = match layout.network() {
        Network::Ipv4 => array_at::<8>(frame, l3 + 12).map(words_sum),
        Network::Ipv6 => array_at::<32>(frame, l3 + 8).map(words_sum),
    };
    let [h0, h1, l0, l1] = l4_len.to_be_bytes();
    addresses
        .unwrap_or_default()
        .plus_word(u16::from_be_bytes([h0, h1]))
        .plus_word(u16::from_be_bytes([l0, l1]))
        .plus_word(u16::from(layout.transport().protocol()))
}

/// Whether the transport checksum of a whole frame is right.
#[must_use]
#[inline]
pub fn is_transport_right(frame: &[u8], layout: &Layout) -> bool {
    let Some(transport) = frame.get(usize::from(layout.l4())..) else {
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

#[cfg(test)]
mod tests {
    use etherparse::checksum::Sum16BitWords;
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Transport;
    use crate::wire::layout;
    use crate::wire::sample::{Sample, plain_sum};

    proptest! {
        #[test]
        fn f22_any_split_at_any_alignment_gives_the_plain_sum(
            data in proptest::collection::vec(any::<u8>(), 0..4096),
            skip in 0_usize..33,
            mut cuts in proptest::collection::vec(0_usize..4096, 0..8),
        ) {
            let data = data.get(skip..).unwrap_or_default();
            cuts.push(0);
            cuts.push(data.len());
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(data.len()));
            cuts.sort_unstable();
            let sum = cuts
                .windows(2)
                .fold(Sum::ZERO, |sum, cut| sum.plus(&data[cut[0]..cut[1]]));
            prop_assert_eq!(sum.fold(), plain_sum(data));
            // The other implementation stores the complement in the machine's order.
            let other = Sum16BitWords::new().add_slice(data).ones_complement();
            prop_assert_eq!(sum.complement(), u16::from_be(other));
        }

        #[test]
        fn f22_words_taken_out_again_leave_the_sum(
            data in proptest::collection::vec(1_u8..=255, 64),
            word in any::<u16>(),
        ) {
            let sum = Sum::of(&data);
            prop_assert_eq!(sum.plus_word(word).minus_word(word).fold(), sum.fold());
        }
    }

    #[test]
    fn f22_the_largest_sum_does_not_overflow() {
        let ones = vec![0xff; 1 << 20];
        assert_eq!(Sum::of(&ones).plus(&ones).fold(), 0xffff);
    }

    #[test]
    fn f17_pseudo_header_sums_agree_with_another_implementation() {
        for network in [layout::Network::Ipv4, layout::Network::Ipv6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                for len in [1, 2, 99, 1448, 65000] {
                    let sample = Sample::new(network, transport).payload_len(len);
                    let layout = layout::parse(&sample.bytes()).unwrap();
                    assert!(is_transport_right(&sample.bytes(), &layout), "{sample:?}");
                    let (partial, vnet) = sample.partial();
                    let l4_len = partial.len() - usize::from(layout.l4());
                    let field = usize::from(vnet.csum_start + vnet.csum_offset);
                    assert_eq!(
                        pseudo_header(&partial, &layout, u32::try_from(l4_len).unwrap()).fold(),
                        u16::from_be_bytes([partial[field], partial[field + 1]]),
                    );
                }
            }
        }
    }

    #[test]
    fn f01_every_flipped_bit_is_found() {
        let frame = Sample::tcp6().payload_len(33).bytes();
        let layout = layout::parse(&frame).unwrap();
        for bit in usize::from(layout.l4()) * 8..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_transport_right(&damaged, &layout), "bit {bit}");
        }
    }

    #[test]
    fn f18_completing_a_partial_checksum_gives_the_full_one() {
        for transport in [Transport::Tcp, Transport::Udp] {
            let sample = Sample::new(layout::Network::Ipv4, transport).payload_len(77);
            let (mut frame, vnet) = sample.partial();
            complete(&mut frame, vnet.csum_start, vnet.csum_offset).unwrap();
            assert_eq!(frame, sample.bytes());
        }
    }

    #[test]
    fn zero_is_stored_as_all_ones_for_udp_only() {
        assert_eq!(stored_form(0, 6), 0xffff);
        assert_eq!(stored_form(0, 16), 0);
        assert_eq!(stored_form(1, 6), 1);
    }

    #[test]
    fn f18_a_checksum_outside_the_frame_changes_nothing() {
        let mut frame = [7; 20];
        for (start, offset) in [(21, 0), (20, 0), (0, 19), (u16::MAX, u16::MAX)] {
            assert_eq!(complete(&mut frame, start, offset), Err(OutOfFrame));
        }
        assert_eq!(frame, [7; 20]);
    }
}
