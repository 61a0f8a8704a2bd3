//! The engine as a whole, sorted as the faults it guards against: which frames merge, in what
//! order they leave, and what a merged packet says about itself.

mod account;
mod header;
mod merge;
mod order;

use core::ops::ControlFlow;
use core::time::Duration;

use super::{FlushReason, GroConfig, GroEngine, GroPacket, GroResult, GroTypes};
use crate::gso;
use crate::time::Instant;
use crate::wire::sample::Sample;
use crate::wire::{RxMeta, VnetHdr};

/// A guest that takes everything.
const ALL: GroTypes = GroTypes {
    csum: true,
    tcp4: true,
    tcp6: true,
    ecn: true,
    udp4: true,
    udp6: true,
};

/// A packet as the guest would see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delivered {
    vnet: VnetHdr,
    bytes: Vec<u8>,
    segs: u32,
    needs_segmentation: bool,
}

impl Delivered {
    fn of(packet: &GroPacket<Vec<u8>>) -> Self {
        let bytes: Vec<u8> = packet.slices().flatten().copied().collect();
        assert_eq!(bytes.len(), packet.frame_len());
        Self {
            vnet: packet.vnet,
            bytes,
            segs: packet.segs(),
            needs_segmentation: packet.needs_segmentation(),
        }
    }

    /// The frames that it stands for.
    fn cut(&self) -> Vec<Vec<u8>> {
        if !self.vnet.is_gso() {
            return vec![self.bytes.clone()];
        }
        let mut frames = Vec::new();
        let mut scratch = vec![0; 1 << 17];
        let slices = std::iter::once(self.bytes.as_slice());
        gso::segment(slices, &self.vnet, &mut scratch, |frame| {
            frames.push(frame.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        frames
    }
}

/// An engine with a clock of its own, and everything it delivered so far.
struct Rig {
    engine: GroEngine<Vec<u8>>,
    now: Instant,
    delivered: Vec<Delivered>,
}

impl Rig {
    fn new(config: GroConfig, types: GroTypes) -> Self {
        let mut engine = GroEngine::new(config);
        engine.set_types(types);
        Self {
            engine,
            now: Instant::ZERO,
            delivered: Vec::new(),
        }
    }

    fn all() -> Self {
        Self::new(GroConfig::default(), ALL)
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn send(&mut self, sample: &Sample) -> GroResult {
        self.send_as(sample.bytes(), VnetHdr::default())
    }

    fn send_as(&mut self, frame: Vec<u8>, vnet: VnetHdr) -> GroResult {
        let meta = RxMeta {
            vnet,
            ..RxMeta::default()
        };
        self.engine.receive(self.now, frame, &meta)
    }

    /// Takes what is in the receive list.
    fn drain(&mut self) -> Vec<Delivered> {
        let mut taken = Vec::new();
        while let Some(packet) = self.engine.front() {
            taken.push(Delivered::of(packet));
            self.engine.release_front();
        }
        self.engine.handed_over();
        self.delivered.extend(taken.clone());
        taken
    }

    /// Flushes and returns everything delivered since the start.
    fn finish(mut self) -> Vec<Delivered> {
        self.engine.flush_all(FlushReason::PollEnd);
        self.drain();
        assert!(!self.engine.has_held());
        self.delivered
    }
}

/// Segments per packet that these frames become, after checking that cutting the packets gives
/// back the frames, in order.
fn merged(frames: &[Sample]) -> Vec<u32> {
    let frames: Vec<_> = frames.iter().map(Sample::bytes).collect();
    merged_bytes(&frames)
}

fn merged_bytes(frames: &[Vec<u8>]) -> Vec<u32> {
    let mut rig = Rig::all();
    for frame in frames {
        rig.send_as(frame.clone(), VnetHdr::default());
    }
    let delivered = rig.finish();
    let cut: Vec<_> = delivered.iter().flat_map(Delivered::cut).collect();
    assert_eq!(cut, frames, "cut apart again");
    delivered.iter().map(|packet| packet.segs).collect()
}
