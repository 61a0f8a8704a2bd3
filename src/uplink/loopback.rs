//! An uplink that gives every frame back, for tests and rates.
//!
//! The two addresses of a frame to one receiver are exchanged, so that the guest takes it for an
//! answer. Offloads come back with the frame, as from a host that has them all.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clap::Args;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::kinds::{Kind, Misuse, OpenError, Probe};
use super::{
    BUF_LEN, FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink,
    UplinkCaps, UplinkQueue, UplinkStats,
};
use crate::values::switch;
use crate::wire::{RxMeta, VnetHdr};

/// Frames of one queue on their way back. What does not fit is refused.
const WAITING_MAX: usize = 256;

/// Where a frame starts in a pool buffer: its IP header is then on a 16-byte boundary.
const FRAME_AT: usize = 18;

/// The options of a loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct LoopbackOptions {
    /// Give every frame back to the guest.
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_value = "off", default_missing_value = "on",
        group = "uplink", hide = true)]
    pub loopback: bool,
}

impl Kind for LoopbackOptions {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn words(&self) -> &'static [&'static str] {
        &["loopback"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        Ok(self.loopback)
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        Ok(Box::new(Loopback::new(pairs)?))
    }

    fn probe(&self) -> Probe {
        Ok("gives every frame back; for tests".to_owned())
    }
}

/// A device whose queues give back what they take.
#[derive(Debug)]
pub struct Loopback {
    queues: Vec<LoopbackQueue>,
    caps: UplinkCaps,
}

/// One queue, which is full of nothing but its own frames.
#[derive(Debug)]
pub struct LoopbackQueue {
    /// Signalled while frames wait.
    fd: OwnedFd,
    waiting: VecDeque<(VnetHdr, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Loopback {
    /// Makes a device of `queues` queues.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(queues: usize) -> io::Result<Self> {
        let queues: Vec<_> = (0..queues)
            .map(|_| LoopbackQueue::new())
            .collect::<Result<_, _>>()?;
        let tx = Offloads {
            csum: true,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        };
        let caps = UplinkCaps {
            queues: queues.len(),
            tx,
            batches: false,
        };
        Ok(Self { queues, caps })
    }
}

impl LoopbackQueue {
    /// Makes one queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            waiting: VecDeque::with_capacity(WAITING_MAX),
            // Memory that no frame ever touched costs address space only.
            spare: (0..WAITING_MAX)
                .map(|_| Vec::with_capacity(BUF_LEN))
                .collect(),
        })
    }
}

impl Uplink for Loopback {
    fn name(&self) -> String {
        "loopback".to_owned()
    }

    fn caps(&self) -> UplinkCaps {
        self.caps
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}

impl UplinkQueue for LoopbackQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        for _ in 0..budget {
            let Some(mut frame) = pool.take() else {
                return Ok(RecvEnd::PoolEmpty);
            };
            let Some((vnet, bytes)) = self.waiting.pop_front() else {
                // Quiet until the next frame.
                let _ = rustix::io::read(&self.fd, &mut [0; 8]);
                return Ok(RecvEnd::Empty);
            };
            let end = FRAME_AT + bytes.len();
            if let Some(room) = frame.spare_mut().get_mut(FRAME_AT..end) {
                room.copy_from_slice(&bytes);
            }
            frame.set_range(FRAME_AT, end);
            self.spare.push(bytes);
            out.push(RxFrame {
                frame,
                meta: RxMeta {
                    vnet,
                    merge_mark: 0,
                },
            });
        }
        Ok(RecvEnd::Budget)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        let rest: usize = frame.rest.iter().map(|slice| slice.len()).sum();
        if frame.head.len() + rest > BUF_LEN - FRAME_AT {
            return Err(SendError::Refused(Errno::MSGSIZE.into()));
        }
        let Some(mut bytes) = self.spare.pop() else {
            return Err(SendError::Refused(Errno::NOBUFS.into()));
        };
        bytes.clear();
        bytes.extend_from_slice(frame.head);
        for slice in frame.rest {
            let start = bytes.len();
            bytes.resize(start + slice.len(), 0);
            slice.copy_to(bytes.get_mut(start..).unwrap_or_default());
        }
        turn_round(&mut bytes);
        if self.waiting.is_empty() {
            // The counter is never near its limit.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
        self.waiting.push_back((frame.vnet, bytes));
        Ok(())
    }

    fn set_offloads(&mut self, _offloads: Offloads) -> io::Result<()> {
        Ok(())
    }

    fn stats(&self) -> UplinkStats {
        UplinkStats::default()
    }
}

/// Exchanges source and destination, unless the destination is a group.
fn turn_round(frame: &mut [u8]) {
    let Some((destination, rest)) = frame.split_first_chunk_mut::<6>() else {
        return;
    };
    if let Some(source) = rest.first_chunk_mut::<6>()
        && destination[0] & 1 == 0
    {
        core::mem::swap(destination, source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(queue: &mut LoopbackQueue, head: &[u8]) -> Result<(), SendError> {
        let vnet = VnetHdr {
            flags: 1,
            ..VnetHdr::PLAIN
        };
        queue.send(&TxFrame {
            vnet,
            head,
            rest: &[],
        })
    }

    #[test]
    fn frames_come_back_in_order_with_their_header_and_addresses_exchanged() {
        let mut queue = LoopbackQueue::new().unwrap();
        let pool = FramePool::new(8);
        let mut out = Vec::new();
        send(&mut queue, b"\x02dest.\x02src..type1").unwrap();
        send(&mut queue, b"\x03group\x02src..type2").unwrap();
        let end = queue.recv_batch(&pool, 8, &mut out).unwrap();
        assert_eq!(end, RecvEnd::Empty);
        assert_eq!(out[0].frame.as_ref(), b"\x02src..\x02dest.type1");
        assert_eq!(out[1].frame.as_ref(), b"\x03group\x02src..type2");
        assert!(out.iter().all(|received| received.meta.vnet.flags == 1));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut queue = LoopbackQueue::new().unwrap();
        for _ in 0..WAITING_MAX {
            send(&mut queue, &[0; 60]).unwrap();
        }
        assert!(matches!(
            send(&mut queue, &[0; 60]),
            Err(SendError::Refused(_))
        ));
    }
}
