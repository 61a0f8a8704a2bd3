//! The MTU that was negotiated, as a limit on frames towards the guest (rule FEAT-7).

use crate::device::Features;
use crate::wire::{GsoLayout, VnetHdr, layout};

/// Length of an Ethernet header without tags.
const ETHERNET: usize = 14;
/// Length of a VLAN tag.
const TAG: usize = 4;
/// Most tags that a frame may carry beyond the MTU.
const TAGS_MAX: usize = 2;

/// How long frames may be. The default does not limit them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MtuLimit(Option<u16>);

impl MtuLimit {
    /// The limit for a guest that acked `features` and was offered `mtu`.
    pub(super) fn new(mtu: Option<u16>, features: Features) -> Self {
        Self(mtu.filter(|_| features.contains(Features::MTU)))
    }

    /// Whether a frame is longer than the guest allows. What the host merged is measured by its
    /// longest segment, because that is what the guest gets when it cannot take the whole.
    #[inline]
    pub(super) fn is_exceeded_by(self, frame: &[u8], vnet: &VnetHdr) -> bool {
        let Some(mtu) = self.0.map(usize::from) else {
            return false;
        };
        // Most frames are below it with no tag at all.
        frame.len() > ETHERNET + mtu && longest_part(frame, vnet) > link_len(frame) + mtu
    }
}

fn longest_part(frame: &[u8], vnet: &VnetHdr) -> usize {
    if !vnet.is_gso() {
        return frame.len();
    }
    if let Ok(gso) = GsoLayout::parse(frame, frame.len(), vnet) {
        return gso.segment_len();
    }
    // A host that vouches for the checksum, or a header that the engine will refuse.
    let headers = layout::parse(frame).map_or(0, |layout| usize::from(layout.payload()));
    frame.len().min(headers + usize::from(vnet.gso_size))
}

/// Length of the Ethernet header with its tags.
fn link_len(frame: &[u8]) -> usize {
    const TPID: usize = 12;
    let is_tag = |at: usize| matches!(frame.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8]));
    let tags = (0..TAGS_MAX).take_while(|nth| is_tag(TPID + TAG * nth));
    ETHERNET + TAG * tags.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_TCPV4};

    const PLAIN: VnetHdr = VnetHdr {
        flags: 0,
        gso_type: 0,
        hdr_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
        num_buffers: 0,
    };

    fn limit(mtu: u16) -> MtuLimit {
        MtuLimit::new(Some(mtu), Features::MTU)
    }

    /// A frame of `len` bytes with these tags.
    fn frame(tags: &[u16], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; 12];
        for tpid in tags {
            bytes.extend(tpid.to_be_bytes());
            bytes.extend([0, 1]);
        }
        bytes.extend([0x08, 0x00]);
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn f66_every_tag_adds_four_bytes_and_two_at_most() {
        for mtu in [1280, 1500, 9000] {
            let longest = usize::from(mtu) + 14;
            for (tags, allowed) in [
                (&[][..], longest),
                (&[0x8100], longest + 4),
                (&[0x88a8], longest + 4),
                (&[0x88a8, 0x8100], longest + 8),
                (&[0x88a8, 0x8100, 0x8100], longest + 8),
                // No tag, whatever follows.
                (&[0x9100], longest),
            ] {
                let is_exceeded = |len: usize| limit(mtu).is_exceeded_by(&frame(tags, len), &PLAIN);
                assert!(!is_exceeded(allowed), "{mtu} {tags:x?}");
                assert!(is_exceeded(allowed + 1), "{mtu} {tags:x?}");
            }
        }
    }

    #[test]
    fn f66_no_limit_without_the_feature_or_an_mtu() {
        let long = frame(&[], 9014);
        for none in [
            MtuLimit::new(Some(1500), Features::default()),
            MtuLimit::new(None, Features::MTU),
            MtuLimit::default(),
        ] {
            assert!(!none.is_exceeded_by(&long, &PLAIN));
        }
    }

    #[test]
    fn f66_a_packet_of_the_host_is_measured_by_its_segments() {
        let mut packet = frame(&[], 14 + 20 + 20 + 4000);
        packet[14] = 0x45;
        packet[23] = 6;
        packet[46] = 0x50;
        let merged = |gso_size| VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            gso_size,
            csum_start: 34,
            csum_offset: 16,
            ..PLAIN
        };
        let is_exceeded = |gso_size| limit(1500).is_exceeded_by(&packet, &merged(gso_size));
        assert!(!is_exceeded(1448));
        assert!(!is_exceeded(1460));
        assert!(is_exceeded(1461));
        assert!(is_exceeded(9000), "one segment is a plain frame");
    }

    #[test]
    fn a_frame_of_any_length_can_be_measured() {
        for len in 0..40 {
            let bytes = vec![0x81; len];
            assert_eq!(limit(1).is_exceeded_by(&bytes, &PLAIN), len > 15);
        }
    }
}
