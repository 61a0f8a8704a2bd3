//! A wire with a fault in it: frames go from one tap to another and are changed, lost, doubled or
//! brought out of order on their way.
//!
//! Behind it everything is in one VLAN: a tag is put on frames towards the guest and taken off
//! those that come back; other frames do not pass.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::uplink::tap::{Persistence, Tap};
use vhost_user_gro::uplink::{FramePool, RxFrame, TxFrame, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

/// The tag: VLAN 5, priority 0.
const TAG: [u8; 4] = [0x81, 0x00, 0x00, 0x05];
const ADDRESSES: usize = 12;
/// How long a frame may be kept back for the next one to overtake it.
const PATIENCE: Duration = Duration::from_millis(2);
/// Of so many frames one is marked, lost, overtaken or doubled.
const MARKED: u64 = 50;
const LOST: u64 = 300;
const OVERTAKEN: u64 = 300;
const DOUBLED: u64 = 500;

/// What a mangler did so far, and whether it may lose frames.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) is_lossy: AtomicBool,
    pub(crate) marked: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) overtaken: AtomicU64,
    pub(crate) doubled: AtomicU64,
    /// Frames that the next tap did not take.
    pub(crate) refused: AtomicU64,
}

/// The two ends of the wire.
pub(crate) struct Mangler {
    guest: Box<dyn UplinkQueue>,
    far: Box<dyn UplinkQueue>,
    kept_back: Option<Vec<u8>>,
    random: u64,
}

impl Mangler {
    pub(crate) fn new(guest: &str, far: &str) -> Result<Self> {
        let open = |name| -> Result<Box<dyn UplinkQueue>> {
            let mut tap = Tap::open(name, 1, Persistence::Unchanged)?;
            let queue = tap.take_queues().into_iter().next();
            queue.ok_or_else(|| anyhow!("{name} has no queue"))
        };
        Ok(Mangler {
            guest: open(guest)?,
            far: open(far)?,
            kept_back: None,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// Passes frames on until `stop`.
    pub(crate) fn run(mut self, faults: &Faults, stop: &AtomicBool) -> Result<()> {
        let pool = FramePool::new(64);
        while !stop.load(Relaxed) {
            self.wait()?;
            for frame in receive(self.far.as_mut(), &pool)? {
                self.towards_guest(frame.frame.as_ref(), faults);
            }
            for frame in receive(self.guest.as_mut(), &pool)? {
                if let Some(frame) = without_tag(frame.frame.as_ref()) {
                    send(self.far.as_mut(), &frame, faults);
                }
            }
        }
        Ok(())
    }

    /// Until a frame comes; one that was kept back too long goes on alone.
    fn wait(&mut self) -> Result<()> {
        let (guest, far) = (self.guest.fd(), self.far.fd());
        let mut ends =
            [&guest, &far].map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN));
        let patience = match self.kept_back {
            Some(_) => PATIENCE,
            None => Duration::from_millis(50),
        };
        let ready = poll(&mut ends, Some(&Timespec::try_from(patience)?))?;
        if ready == 0
            && let Some(frame) = self.kept_back.take()
        {
            send(self.guest.as_mut(), &frame, &Faults::default());
        }
        Ok(())
    }

    fn towards_guest(&mut self, frame: &[u8], faults: &Faults) {
        let mut frame = frame.to_vec();
        if self.one_in(MARKED) && mark_congestion(&mut frame) {
            faults.marked.fetch_add(1, Relaxed);
        }
        frame.splice(ADDRESSES..ADDRESSES, TAG);
        if !faults.is_lossy.load(Relaxed) {
            send(self.guest.as_mut(), &frame, faults);
        } else if self.one_in(LOST) {
            faults.lost.fetch_add(1, Relaxed);
            return;
        } else if self.kept_back.is_none() && self.one_in(OVERTAKEN) {
            faults.overtaken.fetch_add(1, Relaxed);
            self.kept_back = Some(frame);
            return;
        } else {
            send(self.guest.as_mut(), &frame, faults);
            if self.one_in(DOUBLED) {
                faults.doubled.fetch_add(1, Relaxed);
                send(self.guest.as_mut(), &frame, faults);
            }
        }
        if let Some(frame) = self.kept_back.take() {
            send(self.guest.as_mut(), &frame, faults);
        }
    }

    /// xorshift64 by Marsaglia.
    fn one_in(&mut self, count: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(count)
    }
}

fn receive(queue: &mut dyn UplinkQueue, pool: &FramePool) -> Result<Vec<RxFrame>> {
    let mut frames = Vec::new();
    queue.recv_batch(pool, 32, &mut frames)?;
    Ok(frames)
}

fn send(queue: &mut dyn UplinkQueue, frame: &[u8], faults: &Faults) {
    let frame = TxFrame {
        vnet: VnetHdr::PLAIN,
        head: frame,
        rest: &[],
    };
    if queue.send(&frame).is_err() {
        faults.refused.fetch_add(1, Relaxed);
    }
}

fn without_tag(frame: &[u8]) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    let payload = rest.strip_prefix(&TAG)?;
    Some([addresses, payload].concat())
}

/// Sets CE in an IP packet of a sender that can tell what it means (ECT). Source: RFC 3168, 5.
fn mark_congestion(frame: &mut [u8]) -> bool {
    const ECT: [u8; 2] = [1, 2];
    match frame {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, ip @ ..] if ip.len() >= 20 => {
            if !ECT.contains(&(ip[1] & 3)) {
                return false;
            }
            let old = u32::from(u16::from_be_bytes([ip[0], ip[1]]));
            ip[1] |= 3;
            let new = u32::from(u16::from_be_bytes([ip[0], ip[1]]));
            // RFC 1624: HC' = ~(~HC + ~m + m').
            let checksum = u32::from(u16::from_be_bytes([ip[10], ip[11]]));
            let sum = (!checksum & 0xffff) + (!old & 0xffff) + new;
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            let [_, _, high, low] = (!sum).to_be_bytes();
            ip[10..12].copy_from_slice(&[high, low]);
            true
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, ip @ ..] if ip.len() >= 40 => {
            // The class is the second half of the first byte and the first half of the second.
            let is_ect = ECT.contains(&((ip[1] >> 4) & 3));
            if is_ect {
                ip[1] |= 0x30;
            }
            is_ect
        }
        _ => false,
    }
}
