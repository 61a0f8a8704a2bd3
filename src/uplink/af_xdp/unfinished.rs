//! Checksums that the sender of a frame left to its card.
//!
//! A sender on this host leaves checksums to a device that never computes them, as the frame never
//! is on a wire; the mark that says so is not seen by XDP. But the field tells: it holds the sum
//! over the pseudo-header, which a finished one holds once in 65536 frames. For such a frame the
//! guest is told what the mark would have said. A finished one that looks the same is no worse off:
//! finishing it gives what it has.
//!
//! A frame that a wire has damaged so that it looks the same would pass. So this is for interfaces
//! without a wire, unless the operator says otherwise.
//!
//! Source: `include/linux/skbuff.h`, `CHECKSUM_PARTIAL`.

use crate::wire::layout::{self, Layout};
use crate::wire::vnet_hdr::F_NEEDS_CSUM;
use crate::wire::{VnetHdr, checksum};

/// Whether they are taken for what they are, and how many there were.
#[derive(Debug)]
pub(super) struct Unfinished {
    is_accepted: bool,
    count: u64,
    was_said: bool,
}

impl Unfinished {
    pub(super) const fn new(is_accepted: bool) -> Self {
        Self {
            is_accepted,
            count: 0,
            was_said: false,
        }
    }

    pub(super) const fn set_accepted(&mut self, is_accepted: bool) {
        self.is_accepted = is_accepted;
    }

    /// What is to be said of a frame, of which XDP says nothing.
    #[inline]
    pub(super) fn judge(&mut self, frame: &[u8]) -> VnetHdr {
        match mark(frame) {
            Some((vnet, _)) if self.is_accepted => {
                self.count += 1;
                vnet
            }
            Some((_, layout)) if !checksum::is_transport_right(frame, &layout) => {
                self.count += 1;
                VnetHdr::default()
            }
            _ => VnetHdr::default(),
        }
    }

    /// Frames with an unfinished checksum.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Once, if there are any and they are not taken for what they are.
    #[inline]
    pub(super) fn is_to_be_said(&mut self) -> bool {
        let is_new = self.count > 0 && !self.is_accepted && !self.was_said;
        self.was_said |= is_new;
        is_new
    }
}

/// What the mark of the frame said, if its checksum looks unfinished.
#[inline]
pub(super) fn mark(frame: &[u8]) -> Option<(VnetHdr, Layout)> {
    let layout = layout::parse(frame).ok()?;
    let csum_start = layout.l4();
    let csum_offset = layout.transport().checksum_offset();
    let at = usize::from(csum_start) + usize::from(csum_offset);
    let field: &[u8; 2] = frame.get(at..)?.first_chunk()?;
    let len = u32::try_from(frame.len()).ok()? - u32::from(csum_start);
    let partial = checksum::pseudo_header(frame, &layout, len).fold();
    let vnet = VnetHdr {
        flags: F_NEEDS_CSUM,
        hdr_len: layout.payload(),
        csum_start,
        csum_offset,
        ..VnetHdr::default()
    };
    (u16::from_be_bytes(*field) == partial).then_some((vnet, layout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::Sample;
    use crate::wire::{Network, Transport};

    #[test]
    fn f43_an_unfinished_checksum_is_told_from_a_finished_one() {
        for network in [Network::Ipv4, Network::Ipv6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                for len in [1, 2, 99, 1448] {
                    let mut sample = Sample::new(network, transport).payload_len(len);
                    sample.tags = vec![(0x8100, 7)];
                    let finished = sample.bytes();
                    assert!(mark(&finished).is_none(), "{sample:?}");
                    let (mut frame, expected) = sample.partial();
                    let (vnet, _) = mark(&frame).expect("it is unfinished");
                    assert_eq!(vnet.flags, F_NEEDS_CSUM);
                    assert_eq!(vnet.csum_start, expected.csum_start);
                    assert_eq!(vnet.csum_offset, expected.csum_offset);
                    checksum::complete(&mut frame, vnet.csum_start, vnet.csum_offset).unwrap();
                    assert_eq!(frame, finished, "{sample:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_tcp_and_no_udp_has_no_mark() {
        assert!(mark(&[0; 60]).is_none());
        assert!(mark(&[]).is_none());
    }
}
