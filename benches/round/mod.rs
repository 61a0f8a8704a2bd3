//! One round: a batch of frames goes into the engine, what it delivers is taken out, and the
//! buffers go back to their pool, as in polls of the daemon. Shared by `gro_engine` and `peers`.

mod buffer;
mod traffic;

use std::hint::black_box;

use vhost_user_gro::gro::{FlushReason, GroConfig, GroEngine, GroTypes};
use vhost_user_gro::time::Instant;
use vhost_user_gro::wire::vnet_hdr::F_DATA_VALID;
use vhost_user_gro::wire::{RxMeta, VnetHdr};

pub(crate) use buffer::{Buffer, Source};
pub(crate) use traffic::{TRAFFIC, Traffic};

const ALL: GroTypes = GroTypes {
    csum: true,
    tcp4: true,
    tcp6: true,
    ecn: true,
    udp4: true,
    udp6: true,
};

/// Who looks at the transport checksum, and whether there is merging at all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// The host has: frames come with `DATA_VALID`.
    Vouched,
    /// The engine has to.
    Verified,
    /// As vouched, but merging is switched off.
    MergeOff,
}

/// The engine under measurement.
pub(crate) struct Round {
    engine: GroEngine<Buffer>,
    meta: RxMeta,
}

impl Round {
    pub(crate) fn new(setting: Setting) -> Self {
        let mut engine = GroEngine::new(GroConfig {
            enabled: setting != Setting::MergeOff,
            ..GroConfig::default()
        });
        engine.set_types(ALL);
        let flags = match setting {
            Setting::Verified => 0,
            Setting::Vouched | Setting::MergeOff => F_DATA_VALID,
        };
        let vnet = VnetHdr {
            flags,
            ..VnetHdr::default()
        };
        Self {
            engine,
            meta: RxMeta {
                vnet,
                ..RxMeta::default()
            },
        }
    }

    /// What is measured: all `frames` in, all packets out. Returns how many those were.
    pub(crate) fn run(&mut self, frames: &mut Vec<Buffer>) -> usize {
        let mut packets = 0;
        for frame in frames.drain(..) {
            self.engine.receive(Instant::ZERO, frame, &self.meta);
            if self.engine.should_hand_over() {
                packets += self.deliver();
            }
        }
        self.engine.flush_all(FlushReason::PollEnd);
        packets + self.deliver()
    }

    fn deliver(&mut self) -> usize {
        let mut packets = 0;
        while black_box(self.engine.front()).is_some() {
            self.engine.release_front();
            packets += 1;
        }
        self.engine.handed_over();
        packets
    }
}
