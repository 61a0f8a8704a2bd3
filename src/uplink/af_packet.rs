//! An existing interface as uplink: a physical port, a veth, a VXLAN device, without a bridge.
//!
//! Frames come out of a ring that the kernel fills (`queue`), and go to the guest from where they
//! lie. The host's own stack keeps its share of the interface: it sees what the guest sees, and
//! what it sends is not received here. Several queues are a group over which the kernel spreads
//! frames by flow.
//!
//! The ring is `TPACKET_V2`, one slot for each frame. `TPACKET_V3` packs frames into blocks and
//! wakes for a block; but it shows a block when it is full or after a timer of a millisecond at
//! best, which is what an answer to a lone request would wait for, and one held frame would keep a
//! whole block. Bare readers on a veth, bursts of 16 and 64 frames: 1.01 and 0.79 us of CPU for a
//! KB with V2, 0.25 and 0.23 with V3, nearly all of it the price of waking for 2 frames or for 35,
//! which the poll model pays less often; a frame every 300 us was 7 us old with V2, 709 with V3.
//!
//! Short frames from the guest leave together at the end of a drain (`batch`). A mapped ring
//! for them measured the same and would need their order kept beside that of the long ones.
//! Interface addresses, up/down state and offloads are the operator's business.

mod batch;
mod error;
mod filter;
mod interface;
mod options;
mod port;
mod queue;
mod slot;

use std::sync::Arc;

pub use error::AfPacketError;
pub(super) use filter::parse_mac;
pub use filter::{MACS_MAX, Mac};
pub use interface::AfPacketConfig;
pub use options::AfPacketOptions;
pub(super) use port::memberships;
pub use queue::AfPacketQueue;

use self::interface::Interface;
use super::{Offloads, Uplink, UplinkCaps, UplinkQueue};

/// An interface and those of its queues that nobody took yet.
#[derive(Debug)]
pub struct AfPacket {
    interface: Arc<Interface>,
    queues: Vec<AfPacketQueue>,
    caps: UplinkCaps,
}

impl AfPacket {
    /// Attaches to the interface `name` with one queue for each of `pairs` queue pairs.
    ///
    /// # Errors
    /// See [`AfPacketError`].
    pub fn open(name: &str, pairs: usize, config: AfPacketConfig) -> Result<Self, AfPacketError> {
        let interface = Arc::new(Interface::new(name, pairs, config)?);
        let open = |number| AfPacketQueue::open(&interface, number > 0);
        let queues: Vec<_> = (0..pairs).map(open).collect::<Result<_, _>>()?;
        Ok(Self {
            caps: UplinkCaps {
                queues: queues.len(),
                tx: Offloads {
                    csum: true,
                    tso4: true,
                    tso6: true,
                    ecn: true,
                    // Kernels before 6.2 refuse such frames, and do not say so beforehand.
                    uso: false,
                },
                batches: true,
            },
            interface,
            queues,
        })
    }
}

impl Uplink for AfPacket {
    fn name(&self) -> String {
        format!("interface {}", self.interface.name())
    }

    fn caps(&self) -> UplinkCaps {
        self.caps
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}
