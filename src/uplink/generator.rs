//! An uplink that has frames without end, for rates: TCP segments of a few flows, in turn.
//!
//! The frames are right in every respect, checksums included, and nobody vouches for them. They
//! are addressed to nobody, so a guest drops them as soon as it has seen the address.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clap::Args;
use rustix::event::{EventfdFlags, eventfd};

use super::kinds::{Kind, Misuse, OpenError, Probe};
use super::{
    FramePool, Offloads, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink, UplinkCaps,
    UplinkQueue, UplinkStats,
};
use crate::values::number;
use crate::wire::checksum::Sum;
use crate::wire::{RxMeta, ipv4, tcp};

/// Where a frame starts in a pool buffer: its IP header is then on a 16-byte boundary.
const FRAME_AT: usize = 18;

const L3: usize = 14;
const L4: usize = L3 + 20;
/// With timestamps, as Linux sends them.
const HEADERS: usize = L4 + 32;
/// Payload of a frame of an MTU of 1500.
const PAYLOAD: u16 = 1448;

const ACK: u8 = 0x10;
const TCP: u8 = 6;
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// Source: RFC 5737, addresses for documentation.
const ADDRESSES: [u8; 8] = [192, 0, 2, 1, 198, 51, 100, 2];
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

/// The options of a generator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct GeneratorOptions {
    /// Have frames without end, of this many flows.
    #[arg(long, value_name = "FLOWS", allow_negative_numbers = true,
        value_parser = number(1..=1024u16, "flows"), group = "uplink", hide = true)]
    pub generator: Option<u16>,

    /// Bytes of payload in each of them [default: 1448].
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true,
        value_parser = number(1..=9000u16, "bytes"), hide = true)]
    pub generator_payload_bytes: Option<u16>,
}

impl Kind for GeneratorOptions {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn words(&self) -> &'static [&'static str] {
        &["generator"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        if self.generator.is_none() && self.generator_payload_bytes.is_some() {
            return Err(Misuse {
                option: "generator_payload_bytes",
                expected: "generator beside it",
            });
        }
        Ok(self.generator.is_some())
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        let flows = self.generator.unwrap_or(1);
        let payload = self.generator_payload_bytes.unwrap_or(PAYLOAD);
        Ok(Box::new(Generator::new(pairs, flows, payload)?))
    }

    fn probe(&self) -> Probe {
        Ok("has frames without end; for rates".to_owned())
    }
}

/// A device whose queues are never empty.
#[derive(Debug)]
pub struct Generator {
    queues: Vec<GeneratorQueue>,
}

/// One queue with flows of its own.
#[derive(Debug)]
pub struct GeneratorQueue {
    /// Readable and writable all the time.
    fd: OwnedFd,
    /// The frame at hand; only what differs is written.
    frame: Vec<u8>,
    /// Of the TCP part without its sequence number and source port.
    sum: Sum,
    payload: u16,
    /// Of all flows, which advance together.
    seq: u32,
    id: u16,
    flow: u16,
    flows: u16,
}

impl Generator {
    /// Makes a device of `queues` queues, each with `flows` flows of segments of `payload` bytes.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(queues: usize, flows: u16, payload: u16) -> io::Result<Self> {
        let queues = (0..queues)
            .map(|_| GeneratorQueue::new(flows, payload))
            .collect::<Result<_, _>>()?;
        Ok(Self { queues })
    }
}

impl GeneratorQueue {
    /// Makes one queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(flows: u16, payload: u16) -> io::Result<Self> {
        let mut frame = MACS.to_vec();
        // Version and header length; lengths, identification and checksum follow with each frame.
        frame.extend([0x08, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        frame.extend(ADDRESSES);
        // From no port yet to port 8000; acknowledgement 1, header of 32 bytes, full window.
        frame.extend([
            0, 0, 0x1f, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 0x80, ACK, 255, 255, 0, 0, 0, 0,
        ]);
        frame.extend(TIMESTAMPS);
        frame.resize(HEADERS + usize::from(payload), 0x5a);
        // Words can be added to sums of whole words only, so the last byte gets its zero.
        let mut words = frame.get(L4..).unwrap_or_default().to_vec();
        words.resize(words.len().next_multiple_of(2), 0);
        let sum = Sum::of(&words)
            .plus(&ADDRESSES)
            .plus_word(u16::from(TCP))
            .plus_word(32 + payload);
        Ok(Self {
            fd: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            frame,
            sum,
            payload,
            seq: 1,
            id: 0,
            flow: 0,
            flows: flows.max(1),
        })
    }

    /// Writes the next frame into the one at hand.
    fn advance(&mut self) {
        if self.flow == self.flows {
            self.flow = 0;
            self.seq = self.seq.wrapping_add(u32::from(self.payload));
            self.id = self.id.wrapping_add(1);
        }
        let port = 1024 + self.flow;
        let [a, b, c, d] = self.seq.to_be_bytes();
        let checksum = self
            .sum
            .plus_word(port)
            .plus_word(u16::from_be_bytes([a, b]))
            .plus_word(u16::from_be_bytes([c, d]))
            .complement();
        if let Some(to) = self.frame.get_mut(L4..L4 + 2) {
            to.copy_from_slice(&port.to_be_bytes());
        }
        tcp::set_seq(&mut self.frame, L4, self.seq);
        tcp::rewrite(&mut self.frame, L4, ACK, checksum);
        ipv4::rewrite(&mut self.frame, L3, 52 + self.payload, self.id);
        self.flow += 1;
    }
}

impl Uplink for Generator {
    fn name(&self) -> String {
        "generator".to_owned()
    }

    fn caps(&self) -> UplinkCaps {
        UplinkCaps {
            queues: self.queues.len(),
            ..UplinkCaps::default()
        }
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}

impl UplinkQueue for GeneratorQueue {
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
            self.advance();
            let end = FRAME_AT + self.frame.len();
            if let Some(room) = frame.spare_mut().get_mut(FRAME_AT..end) {
                room.copy_from_slice(&self.frame);
            }
            frame.set_range(FRAME_AT, end);
            out.push(RxFrame {
                frame,
                meta: RxMeta::default(),
            });
        }
        Ok(RecvEnd::Budget)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{checksum, layout};

    #[test]
    fn frames_are_right_and_each_flow_is_in_order() {
        for payload in [1, 1447, PAYLOAD, 9000] {
            let mut queue = GeneratorQueue::new(3, payload).unwrap();
            let pool = FramePool::new(16);
            let mut out = Vec::new();
            queue.seq = u32::MAX - 1;
            assert_eq!(
                queue.recv_batch(&pool, 9, &mut out).unwrap(),
                RecvEnd::Budget
            );
            for (nth, received) in out.iter().enumerate() {
                let frame = received.frame.as_ref();
                assert_eq!(frame.len(), HEADERS + usize::from(payload));
                let layout = layout::parse(frame).unwrap();
                assert!(
                    checksum::is_transport_right(frame, &layout),
                    "{payload} {nth}"
                );
                assert!(ipv4::Ipv4::at(frame, L3).unwrap().is_checksum_right());
                let round = u32::try_from(nth / 3).unwrap();
                let seq = (u32::MAX - 1).wrapping_add(round * u32::from(payload));
                assert_eq!(tcp::Tcp::at(frame, L4).unwrap().seq(), seq);
                let port = 1024 + u16::try_from(nth % 3).unwrap();
                assert_eq!(frame[L4..L4 + 2], port.to_be_bytes());
            }
        }
    }
}
