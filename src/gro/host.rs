//! Frames that the host had merged before they came here (rule IN-3).

use super::stats::DropReason;
use super::{FrameBytes, GroEngine, GroResult};
use crate::time::Instant;
use crate::wire::checksum::{self, Sum};
use crate::wire::layout::{self, Known};
use crate::wire::vnet_hdr::{F_DATA_VALID, F_NEEDS_CSUM, GSO_ECN, GSO_NONE};
use crate::wire::{GsoLayout, Layout, Network, RxMeta, Transport, VnetHdr, array_at_mut, ipv6};

/// Most datagrams of one packet that any Linux guest takes (section 7.4).
const MAX_HOST_DATAGRAMS: u32 = 128;

impl<B: FrameBytes> GroEngine<B> {
    /// A frame that the host had merged: never merged further, but it keeps its place (IN-3).
    #[inline(never)]
    pub(super) fn receive_gso(&mut self, now: Instant, mut buf: B, mut meta: RxMeta) -> GroResult {
        let frame = buf.as_mut();
        let parsed = layout::parse(frame);
        if let Ok(layout) = parsed {
            make_checksum_partial(frame, &layout, &mut meta.vnet);
        }
        let Ok(gso) = GsoLayout::parse(frame, frame.len(), &meta.vnet) else {
            return self.refuse(DropReason::GsoHeader);
        };
        if gso.segs < 2 {
            // Guests take it for a plain frame as well (section 7.4).
            meta.vnet.gso_type = GSO_NONE;
            return self.receive_plain(now, buf, &meta);
        }
        self.stats.host_gso += 1;
        let known = match parsed {
            Ok(layout) => Known::Flow(layout),
            Err(unfit) => unfit.known,
        };
        if self.has_held() {
            self.complete_known(buf.as_ref(), &meta, known);
        }
        let needs_segmentation = !self.accepts_host_gso(&meta.vnet, &gso);
        let (id, held) = self.store.take();
        held.packet.start(buf, host_gso_header(&meta.vnet, &gso));
        held.packet.segs = gso.segs;
        held.packet.needs_segmentation = needs_segmentation;
        self.stats.normal += 1;
        self.list(id, gso.segs);
        GroResult::Normal
    }

    /// Whether the guest takes a packet that the host merged.
    fn accepts_host_gso(&self, vnet: &VnetHdr, gso: &GsoLayout) -> bool {
        let layout = &gso.layout;
        let is_ecn = vnet.gso_type & GSO_ECN != 0;
        let is_long_udp = layout.transport() == Transport::Udp && gso.segs > MAX_HOST_DATAGRAMS;
        self.types.accepts(layout.network(), layout.transport())
            && (!is_ecn || self.types.ecn)
            && !is_long_udp
    }
}

/// A host that merged a packet may vouch for its checksum instead of leaving it partial; the guest
/// needs the partial form with every segmentation type (OUT-2).
fn make_checksum_partial(frame: &mut [u8], layout: &Layout, vnet: &mut VnetHdr) {
    if vnet.flags & (F_NEEDS_CSUM | F_DATA_VALID) != F_DATA_VALID {
        return;
    }
    let l4 = usize::from(layout.l4());
    let Ok(l4_len) = u32::try_from(frame.len() - l4) else {
        return;
    };
    let l3 = usize::from(layout.l3());
    let partial = if layout.network() == Network::Ipv6 && ipv6::has_segments_left(frame, l3) {
        // The sum covers an address that only the routing header knows; with a right checksum it
        // is what the rest lacks.
        Sum::of(frame.get(l4..).unwrap_or_default()).complement()
    } else {
        checksum::pseudo_header(frame, layout, l4_len).fold()
    };
    let field = l4 + usize::from(layout.transport().checksum_offset());
    if let Some(field) = array_at_mut::<2>(frame, field) {
        *field = partial.to_be_bytes();
        vnet.flags = F_NEEDS_CSUM;
        vnet.csum_start = layout.l4();
        vnet.csum_offset = layout.transport().checksum_offset();
    }
}

/// The host's header with the header length made exact (OUT-3) and unknown flags taken out.
fn host_gso_header(vnet: &VnetHdr, gso: &GsoLayout) -> VnetHdr {
    VnetHdr {
        flags: F_NEEDS_CSUM,
        hdr_len: gso.layout.payload(),
        num_buffers: 0,
        ..*vnet
    }
}
