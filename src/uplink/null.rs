//! An uplink without a host: takes every frame and never has one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clap::Args;
use rustix::event::{EventfdFlags, eventfd};

use super::kinds::{Kind, Misuse, OpenError, Probe};
use super::{
    FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink, UplinkCaps,
    UplinkQueue, UplinkStats,
};
use crate::values::switch;

/// The options of an uplink without a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct NullOptions {
    /// Use no host device: frames from the guest go nowhere, and it gets none.
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_value = "off", default_missing_value = "on",
        group = "uplink", help_heading = "Host side")]
    pub null: bool,
}

impl Kind for NullOptions {
    fn name(&self) -> &'static str {
        "null"
    }

    fn words(&self) -> &'static [&'static str] {
        &["null"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        Ok(self.null)
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        Ok(Box::new(Null::new(pairs)?))
    }

    fn probe(&self) -> Probe {
        Ok("takes every frame and has none".to_owned())
    }
}

/// A device whose frames go nowhere.
#[derive(Debug)]
pub struct Null {
    queues: Vec<NullQueue>,
    caps: UplinkCaps,
}

/// A queue that is always writable and never readable.
#[derive(Debug)]
pub struct NullQueue {
    /// An event descriptor nobody writes: it has exactly that readiness.
    fd: OwnedFd,
}

impl Null {
    /// Makes a device of `queues` queues that takes every offload.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(queues: usize) -> io::Result<Self> {
        let queues: Vec<_> = (0..queues)
            .map(|_| NullQueue::new())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            caps: UplinkCaps {
                queues: queues.len(),
                tx: Offloads {
                    csum: true,
                    tso4: true,
                    tso6: true,
                    ecn: true,
                    uso: true,
                },
                batches: false,
            },
            queues,
        })
    }
}

impl NullQueue {
    /// Makes one queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd })
    }
}

impl Uplink for Null {
    fn name(&self) -> String {
        "null".to_owned()
    }

    fn caps(&self) -> UplinkCaps {
        self.caps
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}

impl UplinkQueue for NullQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn recv_batch(
        &mut self,
        _pool: &FramePool,
        _budget: usize,
        _out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        Ok(RecvEnd::Empty)
    }

    fn send(&mut self, _frame: &TxFrame<'_>) -> Result<(), SendError> {
        Ok(())
    }

    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        UplinkStats::default()
    }
}
