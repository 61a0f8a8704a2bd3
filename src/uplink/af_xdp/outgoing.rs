//! A frame on its way into a chunk: its checksum, and how long it may be.

use crate::uplink::TxFrame;
use crate::wire::checksum;
use crate::wire::vnet_hdr::{F_NEEDS_CSUM, VnetHdr};

/// Bytes of an Ethernet header, below which nothing is a frame.
pub(super) const ETH_HDR_LEN: usize = 14;
pub(super) const TAG_LEN: usize = 4;

/// Writes a frame into its chunk, which is as long, and finishes its checksum.
pub(super) fn write(chunk: &mut [u8], frame: &TxFrame<'_>) {
    let (head, mut to) = chunk.split_at_mut(frame.head.len());
    head.copy_from_slice(frame.head);
    for slice in frame.rest {
        let (here, behind) = to.split_at_mut(slice.len());
        slice.copy_to(here);
        to = behind;
    }
    if frame.vnet.flags & F_NEEDS_CSUM != 0 {
        let VnetHdr {
            csum_start,
            csum_offset,
            ..
        } = frame.vnet;
        // Beyond the frame it was refused before it came here.
        let _ = checksum::complete(chunk, csum_start, csum_offset);
    }
}

/// Tags of a frame, two at most.
pub(super) fn tags(head: &[u8]) -> usize {
    let is_tag = |at: usize| matches!(head.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8]));
    [12, 16].into_iter().take_while(|&at| is_tag(at)).count()
}
