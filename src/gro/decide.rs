//! What becomes of a frame. Nothing is moved here: frames are looked at, and what must not be
//! overtaken is completed.

use super::config::HashMode;
use super::flow::{AddressPair, FlowKey};
use super::join::{self, Join, Joining};
use super::stats::{Bail, Conflict, FlushReason};
use super::table::{Home, Slot};
use super::{FrameBytes, GroEngine, fast, tcp, udp};
use crate::wire::layout::{self, Known, Unfit};
use crate::wire::tcp::Tcp;
use crate::wire::udp::Udp;
use crate::wire::vnet_hdr::{F_DATA_VALID, F_NEEDS_CSUM};
use crate::wire::{Layout, RxMeta, Transport, VnetHdr, checksum};

/// What becomes of a frame.
pub(super) enum Verdict {
    Join(Slot, Join),
    Hold(First),
    Pass,
}

/// What the first frame of a packet starts it with.
pub(super) struct First {
    pub(super) layout: Layout,
    /// TCP sequence number behind its payload.
    pub(super) next_seq: u32,
}

impl<B: FrameBytes> GroEngine<B> {
    /// Frames of one flow come in bursts, so the packet of the last one is tried first.
    #[inline(always)]
    pub(super) fn guess(&self, frame: &[u8], meta: &RxMeta) -> Option<Join> {
        let held = self.table.get(self.recent)?;
        if !fast::is_likely(held, frame) {
            return None;
        }
        let next = fast::next(held, frame, self.merge_mark(meta))?;
        is_checksum_right(frame, &next.layout, &meta.vnet).then_some(next.join)
    }

    /// Says what becomes of a frame, and completes what must not be overtaken by it.
    #[inline(never)]
    pub(super) fn decide(&mut self, frame: &[u8], meta: &RxMeta) -> Verdict {
        match layout::parse(frame) {
            Ok(layout) => self.decide_candidate(frame, meta, layout),
            Err(unfit) => self.decide_unfit(frame, meta, unfit),
        }
    }

    /// A sound TCP or UDP frame: joins, waits or passes.
    #[inline(always)]
    fn decide_candidate(&mut self, frame: &[u8], meta: &RxMeta, layout: Layout) -> Verdict {
        let joining = self.joining(frame, layout, meta);
        let Some(key) = FlowKey::read(frame, &layout) else {
            // The buffer shows other bytes than the parser saw.
            return Verdict::Pass;
        };
        let home = self.home(&key, meta);
        let Some((slot, held)) = self.table.find(home, &key) else {
            return self.decide_first(&joining, meta);
        };
        if let Some(next) = fast::next(held, frame, joining.merge_mark)
            && is_checksum_right(frame, &layout, &meta.vnet)
        {
            return Verdict::Join(slot, next.join);
        }
        let decision = join::check(held, &joining, &self.config);
        self.settle(&joining, meta, slot, decision)
    }

    fn joining<'a>(&self, frame: &'a [u8], layout: Layout, meta: &RxMeta) -> Joining<'a> {
        Joining {
            frame,
            layout,
            merge_mark: self.merge_mark(meta),
        }
    }

    /// Carries out what the merge rules said for a frame whose flow is held in a slot.
    fn settle(
        &mut self,
        new: &Joining<'_>,
        meta: &RxMeta,
        slot: Slot,
        decision: Result<Join, Conflict>,
    ) -> Verdict {
        if let Err(reason) = self.check_eligible(new.frame, &new.layout) {
            return self.bail(reason, Some(slot));
        }
        match decision {
            Ok(join) if is_checksum_right(new.frame, &new.layout, &meta.vnet) => {
                Verdict::Join(slot, join)
            }
            Ok(_) => self.bail(Bail::Checksum, Some(slot)),
            Err(conflict) => {
                self.complete(slot, FlushReason::Conflict(conflict));
                self.decide_first(new, meta)
            }
        }
    }

    /// A candidate whose flow holds nothing: starts a packet, or passes.
    #[inline]
    fn decide_first(&mut self, new: &Joining<'_>, meta: &RxMeta) -> Verdict {
        let Joining { frame, layout, .. } = *new;
        if let Err(reason) = self.check_eligible(frame, &layout) {
            return self.bail(reason, None);
        }
        let next_seq = match layout.transport {
            Transport::Tcp => match Tcp::at(frame, usize::from(layout.l4)) {
                Some(tcp) if tcp::may_be_held(tcp, layout.payload_len) => {
                    tcp.seq().wrapping_add(layout.payload_len)
                }
                _ => return Verdict::Pass,
            },
            Transport::Udp => 0,
        };
        if !is_checksum_right(frame, &layout, &meta.vnet) {
            return self.bail(Bail::Checksum, None);
        }
        Verdict::Hold(First { layout, next_seq })
    }

    /// Gates that need more than the layout: features, UDP switch, ports and checksum field.
    #[inline]
    pub(super) fn check_eligible(&self, frame: &[u8], layout: &Layout) -> Result<(), Bail> {
        if !self.kinds.contains(layout.network, layout.transport) {
            return Err(Bail::NotNegotiated);
        }
        match layout.transport {
            Transport::Tcp => Ok(()),
            Transport::Udp => {
                let udp = Udp::at(frame, usize::from(layout.l4)).ok_or(Bail::UdpNoChecksum)?;
                udp::check_eligible(udp, &self.config.udp_exclude_ports)
            }
        }
    }

    /// A frame that cannot take part: what is held of its flow, as far as known, goes first
    /// (ORD-2).
    fn decide_unfit(&mut self, frame: &[u8], meta: &RxMeta, unfit: Unfit) -> Verdict {
        self.stats.count_bail(Bail::Malformed(unfit.reason));
        if unfit.known == Known::Nothing {
            self.stats.bypassed += 1;
        }
        self.complete_known(frame, meta, unfit.known);
        Verdict::Pass
    }

    /// A candidate that is turned away; `found` is what is held of its flow.
    #[cold]
    fn bail(&mut self, reason: Bail, found: Option<Slot>) -> Verdict {
        self.stats.count_bail(reason);
        if let Some(slot) = found {
            self.complete(slot, FlushReason::Order);
        }
        Verdict::Pass
    }

    /// Completes everything held that a frame must not overtake.
    pub(super) fn complete_known(&mut self, frame: &[u8], meta: &RxMeta, known: Known) {
        match known {
            Known::Nothing => {}
            Known::Addresses { network, l3 } => {
                let Some(pair) = AddressPair::read(frame, network, l3) else {
                    return;
                };
                while let Some(slot) = self.table.find_between(&pair) {
                    self.complete(slot, FlushReason::Order);
                }
            }
            Known::Flow(layout) => {
                let Some(key) = FlowKey::read(frame, &layout) else {
                    return;
                };
                if let Some((slot, _)) = self.table.find(self.home(&key, meta), &key) {
                    self.complete(slot, FlushReason::Order);
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

    /// The mark as a merge condition (META-1).
    #[inline]
    pub(super) const fn merge_mark(&self, meta: &RxMeta) -> u64 {
        match self.config.hash_mode {
            HashMode::Given => 0,
            HashMode::Flow | HashMode::Zero => meta.merge_mark,
        }
    }
}

/// IN-1, IN-2: whether the host vouches for the transport checksum, or it proves right.
#[inline(always)]
fn is_checksum_right(frame: &[u8], layout: &Layout, host: &VnetHdr) -> bool {
    if host.flags & (F_NEEDS_CSUM | F_DATA_VALID) == F_DATA_VALID {
        return true;
    }
    if host.flags & F_NEEDS_CSUM != 0 {
        return host.csum_start == layout.l4
            && host.csum_offset == layout.transport.checksum_offset();
    }
    checksum::is_transport_right(frame, layout)
}
