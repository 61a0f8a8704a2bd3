//! The receive list into the ring, packet by packet, cut apart where the guest cannot take one
//! whole (rule FILL-4).

use super::stats::ReceiveStats;
use super::trace::Tracer;
use crate::device::{Fill, QueueFault, RxQueue};
use crate::gro::{GroEngine, GroPacket};
use crate::gso::Segments;
use crate::time::Instant;
use crate::uplink::{BUF_LEN, Frame};
use crate::wire::VnetHdr;

/// Who sees what the guest gets, and what time it is.
pub(super) type View<'a> = Option<(Instant, &'a Tracer)>;

/// How far the packet at the head of the list has got, and where its segments are written.
pub(super) struct Delivery {
    /// Segments of that packet that the guest has already.
    done: u32,
    /// Packets of this many bytes and more do not wait for buffers: the guest let one of them
    /// wait in vain.
    cut_from: usize,
    scratch: Box<[u8]>,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            done: 0,
            cut_from: usize::MAX,
            scratch: vec![0; BUF_LEN].into_boxed_slice(),
        }
    }
}

impl Delivery {
    /// Forgets what was learned of a ring that ends.
    pub(super) fn reset(&mut self) {
        self.done = 0;
        self.cut_from = usize::MAX;
    }

    /// Segments of the packet at the head that the guest has not got. They are given up.
    pub(super) fn give_up(&mut self, packet: &GroPacket<Frame>) -> u32 {
        packet
            .segs()
            .saturating_sub(core::mem::take(&mut self.done))
    }

    /// Whether the packet at the head waits for more buffers than a segment of it would need.
    pub(super) fn waits_whole(&self, packet: &GroPacket<Frame>) -> bool {
        self.done == 0 && packet.segs() > 1 && !packet.needs_segmentation()
    }

    /// Takes note that the packet at the head has waited long enough: a guest that does not fill
    /// its ring may never have the buffers for it.
    pub(super) fn stop_waiting(&mut self, packet: &GroPacket<Frame>) {
        self.cut_from = self.cut_from.min(packet.frame_len());
    }

    /// Writes the whole list, or as much as the guest has buffers for; says whether it was all.
    ///
    /// # Errors
    /// The ring is broken; the packet at hand stays in the list.
    pub(super) fn run(
        &mut self,
        queue: &mut RxQueue,
        engine: &mut GroEngine<Frame>,
        stats: &mut ReceiveStats,
        view: View<'_>,
    ) -> Result<bool, QueueFault> {
        while let Some(packet) = engine.front() {
            let filled = if self.done > 0 || packet.needs_segmentation() {
                Fill::TooBig
            } else {
                queue.fill(packet)?
            };
            let delivered = match filled {
                Fill::Filled { .. } => {
                    stats.frames += u64::from(packet.segs());
                    if let Some((now, tracer)) = view {
                        tracer.received(now, &packet.vnet, packet.segs(), packet.slices());
                    }
                    if packet.frame_len() >= self.cut_from {
                        self.cut_from = usize::MAX;
                    }
                    true
                }
                Fill::NoBuffers if self.is_cut(packet) => {
                    self.segments(queue, packet, stats, view)?
                }
                Fill::NoBuffers => false,
                Fill::TooBig => self.segments(queue, packet, stats, view)?,
            };
            if !delivered {
                return Ok(false);
            }
            self.done = 0;
            engine.release_front();
        }
        Ok(true)
    }

    /// Whether a packet that lacks buffers is cut at once.
    fn is_cut(&self, packet: &GroPacket<Frame>) -> bool {
        packet.segs() > 1 && packet.frame_len() >= self.cut_from
    }

    /// Writes the segments of a packet that have not been written yet; says whether all are.
    fn segments(
        &mut self,
        queue: &mut RxQueue,
        packet: &GroPacket<Frame>,
        stats: &mut ReceiveStats,
        view: View<'_>,
    ) -> Result<bool, QueueFault> {
        let Ok(segments) = Segments::new(packet.slices(), &packet.vnet) else {
            // Not a packet that can be cut: a plain frame above what the guest's buffers hold.
            stats.dropped_too_big += u64::from(packet.segs());
            return Ok(true);
        };
        for index in self.done..segments.count() {
            let Ok(len) = segments.write(packet.slices(), index, &mut self.scratch) else {
                stats.dropped_too_big += 1;
                self.done += 1;
                continue;
            };
            let bytes = self.scratch.get(..len).unwrap_or_default();
            match queue.fill_from(VnetHdr::default(), len, [bytes])? {
                Fill::Filled { .. } => {
                    stats.frames += 1;
                    if let Some((now, tracer)) = view {
                        tracer.received(now, &VnetHdr::PLAIN, 1, std::iter::once(bytes));
                    }
                }
                Fill::NoBuffers => return Ok(false),
                Fill::TooBig => stats.dropped_too_big += 1,
            }
            if index == 0 {
                stats.resegmented += 1;
            }
            self.done += 1;
        }
        Ok(true)
    }
}
