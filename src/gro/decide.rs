//! What becomes of a frame: it joins, waits or passes, and what it must not overtake is completed.

use super::config::HashMode;
use super::flow::{AddressPair, FlowKey};
use super::hold::First;
use super::join::{self, Join, Joining};
use super::packet::HeldPacket;
use super::stats::{Bail, FlushReason};
use super::store::PacketId;
use super::table::Home;
use super::{FrameBytes, GroEngine, GroResult, fast, tcp, udp};
use crate::time::Instant;
use crate::wire::layout::{Known, Unfit};
use crate::wire::tcp::Tcp;
use crate::wire::udp::Udp;
use crate::wire::vnet_hdr::{F_DATA_VALID, F_NEEDS_CSUM, GSO_NONE};
use crate::wire::{Layout, Network, RxMeta, Transport, VnetHdr, checksum, ipv6};

/// What the packet that is held of a frame's flow says to it.
enum Meeting {
    /// It joins.
    Join(Join),
    /// It has to go on alone; the packet was completed.
    Pass,
    /// It may start anew; the packet was completed.
    Start,
}

impl<B: FrameBytes> GroEngine<B> {
    /// The short way: the packet that a frame is the next segment of, if it is the one that the
    /// last frame, or one like it, belonged to.
    #[inline(always)]
    pub(super) fn guess(&mut self, frame: &[u8], meta: &RxMeta) -> Option<&mut HeldPacket<B>> {
        let head = frame.first_chunk()?;
        let last = self.hints.last();
        let id = match self.store.get(last) {
            Some(held) if fast::is_likely(held, head) => last,
            _ => self.hints.of(head),
        };
        let held = self.store.get_mut(id)?;
        if !fast::is_next(held, head, frame.len(), meta.merge_mark) {
            return None;
        }
        let VnetHdr {
            flags, gso_type, ..
        } = meta.vnet;
        let is_vouched_for = [flags, gso_type] == [F_DATA_VALID, GSO_NONE];
        if is_vouched_for || may_join(frame, meta, held.layout) {
            self.hints.set_last(id);
            return Some(held);
        }
        None
    }

    /// A sound TCP or UDP frame: joins, waits or passes.
    #[inline(always)]
    pub(super) fn receive_candidate(
        &mut self,
        now: Instant,
        buf: B,
        meta: &RxMeta,
        layout: Layout,
    ) -> GroResult {
        let frame = buf.as_ref();
        let mut home = None;
        if self.has_held() {
            let Some(key) = FlowKey::read(frame, layout) else {
                // The buffer shows other bytes than the parser saw.
                return self.pass(buf, &meta.vnet);
            };
            let its_home = self.home(&key, meta);
            if let Some(id) = self.table.find(&self.store, its_home, &key) {
                match self.meet(frame, meta, layout, id) {
                    Meeting::Join(join) => return self.append(id, buf, &join),
                    Meeting::Pass => return self.pass(buf, &meta.vnet),
                    Meeting::Start => {}
                }
            }
            home = Some(its_home);
        }
        let Some(next_seq) = self.start(frame, layout, meta) else {
            return self.pass(buf, &meta.vnet);
        };
        if home.is_none()
            && let Some(key) = FlowKey::read(frame, layout)
        {
            home = Some(self.home(&key, meta));
        }
        match home {
            Some(home) => {
                let first = First {
                    layout,
                    home,
                    next_seq,
                };
                self.hold(now, buf, meta, &first)
            }
            None => self.pass(buf, &meta.vnet),
        }
    }

    /// A candidate whose flow is held.
    #[inline(never)]
    fn meet(&mut self, frame: &[u8], meta: &RxMeta, layout: Layout, id: PacketId) -> Meeting {
        let Some(held) = self.store.get(id) else {
            return Meeting::Pass;
        };
        let joining = Joining {
            frame,
            layout,
            merge_mark: meta.merge_mark,
        };
        let decision = join::check(held, &joining, &self.config);
        let reason = match self.check_eligible(frame, layout) {
            Err(reason) => reason,
            Ok(()) => match decision {
                Err(conflict) => {
                    self.complete_packet(id, FlushReason::Conflict(conflict));
                    return Meeting::Start;
                }
                Ok(join) if is_checksum_right(frame, layout, &meta.vnet) => {
                    return Meeting::Join(join);
                }
                Ok(_) => Bail::Checksum,
            },
        };
        self.stats.count_bail(reason);
        self.complete_packet(id, FlushReason::Order);
        Meeting::Pass
    }

    /// Whether a candidate whose flow holds nothing starts a packet: the sequence number behind
    /// it.
    #[inline(always)]
    fn start(&mut self, frame: &[u8], layout: Layout, meta: &RxMeta) -> Option<u32> {
        if let Err(reason) = self.check_eligible(frame, layout) {
            self.stats.count_bail(reason);
            return None;
        }
        let next_seq = match layout.transport() {
            Transport::Tcp => {
                let tcp = Tcp::at(frame, usize::from(layout.l4()))?;
                tcp::may_be_held(tcp, layout.payload_len()).then_some(())?;
                tcp.seq().wrapping_add(layout.payload_len())
            }
            Transport::Udp => 0,
        };
        if !is_checksum_right(frame, layout, &meta.vnet) {
            self.stats.count_bail(Bail::Checksum);
            return None;
        }
        Some(next_seq)
    }

    /// Gates that need more than the layout: features, UDP switch, ports and checksum field.
    #[inline(always)]
    pub(super) fn check_eligible(&self, frame: &[u8], layout: Layout) -> Result<(), Bail> {
        if !self.kinds.contains(layout.network(), layout.transport()) {
            return Err(Bail::NotNegotiated);
        }
        match layout.transport() {
            Transport::Tcp => Ok(()),
            Transport::Udp => {
                let udp = Udp::at(frame, usize::from(layout.l4())).ok_or(Bail::UdpNoChecksum)?;
                udp::check_eligible(udp, &self.config.udp_exclude_ports)
            }
        }
    }

    /// A frame that cannot take part: what is held of its flow, as far as known, goes first
    /// (ORD-2).
    #[inline(never)]
    pub(super) fn make_way(&mut self, frame: &[u8], meta: &RxMeta, unfit: Unfit) {
        self.stats.count_bail(Bail::Malformed(unfit.reason));
        if unfit.known == Known::Nothing {
            self.stats.bypassed += 1;
        }
        if self.has_held() {
            self.complete_known(frame, meta, unfit.known);
        }
    }

    /// Completes everything held that a frame must not overtake.
    pub(super) fn complete_known(&mut self, frame: &[u8], meta: &RxMeta, known: Known) {
        match known {
            Known::Nothing => {}
            Known::Addresses { network, l3 } => {
                let Some(pair) = AddressPair::read(frame, network, l3) else {
                    return;
                };
                while let Some(slot) = self.table.find_between(&self.store, &pair) {
                    self.complete(slot, FlushReason::Order);
                }
            }
            Known::Flow(layout) => {
                let Some(key) = FlowKey::read(frame, layout) else {
                    return;
                };
                if let Some(id) = self.table.find(&self.store, self.home(&key, meta), &key) {
                    self.complete_packet(id, FlushReason::Order);
                }
            }
        }
    }

    /// ENG-2.
    #[inline(always)]
    pub(super) fn home(&self, key: &FlowKey, meta: &RxMeta) -> Home {
        let hash = key.hash();
        let bucket = match self.config.hash_mode {
            HashMode::Flow => hash,
            HashMode::Zero => 0,
            HashMode::Given => meta.merge_mark,
        };
        Home::new(bucket, hash)
    }
}

/// Whether a frame joins as far as its metadata is concerned: what the host had merged is not
/// merged further (IN-3).
#[inline(never)]
fn may_join(frame: &[u8], meta: &RxMeta, layout: Layout) -> bool {
    meta.vnet.gso_type == GSO_NONE && is_checksum_right(frame, layout, &meta.vnet)
}

/// IN-1, IN-2: whether the host vouches for the transport checksum, or it proves right.
#[inline(always)]
fn is_checksum_right(frame: &[u8], layout: Layout, host: &VnetHdr) -> bool {
    let is_vouched_for = if host.flags & F_NEEDS_CSUM != 0 {
        host.csum_start == layout.l4() && host.csum_offset == layout.transport().checksum_offset()
    } else if host.flags & F_DATA_VALID != 0 {
        true
    } else {
        return checksum::is_transport_right(frame, &layout);
    };
    is_vouched_for && !has_segments_left(frame, layout)
}

/// IP6-7: also where nobody looks at the checksum. A merged packet has a partial one over the
/// addresses of the fixed header.
#[inline(always)]
fn has_segments_left(frame: &[u8], layout: Layout) -> bool {
    let l3 = usize::from(layout.l3());
    let has_extensions =
        layout.network() == Network::Ipv6 && usize::from(layout.l4()) != l3 + ipv6::HEADER_LEN;
    has_extensions && ipv6::has_segments_left(frame, l3)
}
