//! The receive list into the ring, packet by packet, cut apart where the guest cannot take one
//! whole (rule FILL-4).

use super::stats::ReceiveStats;
use crate::device::{Fill, QueueFault, RxQueue};
use crate::gro::{GroEngine, GroPacket};
use crate::gso::Segments;
use crate::uplink::{BUF_LEN, Frame};
use crate::wire::VnetHdr;

/// How far the packet at the head of the list has got, and where its segments are written.
pub(super) struct Delivery {
    /// Segments of that packet that the guest has already.
    done: u32,
    scratch: Box<[u8]>,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            done: 0,
            scratch: vec![0; BUF_LEN].into_boxed_slice(),
        }
    }
}

impl Delivery {
    /// Forgets a packet that was delivered in part.
    pub(super) fn reset(&mut self) {
        self.done = 0;
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
    ) -> Result<bool, QueueFault> {
        while let Some(packet) = engine.front() {
            let filled = if self.done > 0 || packet.needs_segmentation() {
                Fill::TooBig
            } else {
                queue.fill(packet)?
            };
            let delivered = match filled {
                Fill::Filled { .. } => true,
                Fill::NoBuffers => false,
                Fill::TooBig => self.segments(queue, packet, stats)?,
            };
            if !delivered {
                return Ok(false);
            }
            self.done = 0;
            if let Some(packet) = engine.pop() {
                engine.recycle(packet);
            }
        }
        Ok(true)
    }

    /// Writes the segments of a packet that have not been written yet; says whether all are.
    fn segments(
        &mut self,
        queue: &mut RxQueue,
        packet: &GroPacket<Frame>,
        stats: &mut ReceiveStats,
    ) -> Result<bool, QueueFault> {
        let Ok(segments) = Segments::new(packet.slices(), &packet.vnet) else {
            // Not a packet that can be cut: a plain frame above what the guest's buffers hold.
            stats.dropped_too_big += 1;
            return Ok(true);
        };
        if self.done == 0 {
            stats.resegmented += 1;
        }
        for index in self.done..segments.count() {
            let Ok(len) = segments.write(packet.slices(), index, &mut self.scratch) else {
                stats.dropped_too_big += 1;
                continue;
            };
            let bytes = self.scratch.get(..len).unwrap_or_default();
            match queue.fill_from(VnetHdr::default(), len, [bytes])? {
                Fill::Filled { .. } => {}
                Fill::NoBuffers => {
                    self.done = index;
                    return Ok(false);
                }
                Fill::TooBig => stats.dropped_too_big += 1,
            }
        }
        Ok(true)
    }
}
