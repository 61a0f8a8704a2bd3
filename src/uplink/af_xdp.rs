//! An existing interface as uplink, past the host's network stack: frames are taken where the
//! driver has them, by XDP.
//!
//! A program of a few instructions (`program`) has the frames of each receive queue of the
//! interface go to the socket of that queue (`queue`), whose memory is where our frames lie. The
//! program is there as long as we are: it goes with its descriptor, however the process ends. The
//! host's own stack sees nothing that goes to the guest.
//!
//! The sockets are used by their system calls (`sys`). A crate for them would give out plain
//! buffers to be put back by hand, where a frame here goes back when it is dropped; the larger ones
//! bring libbpf, and with it a C compiler, for a program of six instructions.
//!
//! XDP does not say of a frame whether its checksum is right, or finished at all, that its tag was
//! taken out, or that it was merged. So checksums are verified by the engine, those that were left
//! unfinished are told by what they are (`unfinished`), frames that the host has merged are not
//! taken (`interface`), and the operator is told to switch off what cannot be seen. Frames to the
//! host come here cut and finished.

mod error;
mod interface;
mod options;
mod outgoing;
mod port;
mod program;
mod queue;
mod redirect;
mod unfinished;
mod watch;

use std::sync::Arc;

pub use error::AfXdpError;
pub use interface::{AfXdpConfig, Mode};
pub use options::AfXdpOptions;
pub use queue::AfXdpQueue;

use self::interface::Interface;
use super::{Offloads, Uplink, UplinkCaps, UplinkQueue};

/// An interface and those of its queues that nobody took yet.
#[derive(Debug)]
pub struct AfXdp {
    interface: Arc<Interface>,
    queues: Vec<AfXdpQueue>,
}

impl AfXdp {
    /// Attaches to the interface `name` with one queue for each of `pairs` queue pairs, which must
    /// be all that it receives by.
    ///
    /// # Errors
    /// See [`AfXdpError`].
    pub fn open(name: &str, pairs: usize, config: AfXdpConfig) -> Result<Self, AfXdpError> {
        let interface = Arc::new(Interface::new(name, pairs, config)?);
        let pairs = u32::try_from(pairs).unwrap_or(u32::MAX);
        let open = |number| AfXdpQueue::open(&interface, number);
        let queues = (0..pairs).map(open).collect::<Result<_, _>>()?;
        Ok(Self { interface, queues })
    }

    /// The queues that nobody took yet.
    pub fn queues_mut(&mut self) -> &mut [AfXdpQueue] {
        &mut self.queues
    }
}

impl Uplink for AfXdp {
    fn name(&self) -> String {
        format!("interface {} by XDP", self.interface.name())
    }

    fn caps(&self) -> UplinkCaps {
        UplinkCaps {
            queues: self.queues.len(),
            tx: Offloads::default(),
            batches: true,
        }
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}
