//! Writes through `io_uring`: what is collected of a bulk goes in one submission.
//!
//! The tap is a registered descriptor. A short frame is copied whole into registered memory; of a
//! long one the head is copied, and the kernel takes the rest from guest memory.
#![allow(
    unsafe_code,
    reason = "requests hold addresses; whoever makes them keeps the memory until they are done"
)]

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use io_uring::types::Fixed;
use io_uring::{Builder, IoUring, opcode, squeue};
use vhost_user_gro::sys::GuestSlice;
use vhost_user_gro::uplink::{TxFrame, UplinkQueue};
use vhost_user_gro::wire::vnet_hdr::VNET_HDR_LEN;

use crate::Send;

/// The tap among the registered descriptors.
pub(crate) const TAP: Fixed = Fixed(0);
/// A tap has no position.
pub(crate) const NO_OFFSET: u64 = u64::MAX;
/// Most requests of one submission.
const SLOTS: usize = 64;
/// Bytes of memory for one request.
const SLOT_LEN: usize = 2048;
/// Most pieces of a frame.
const PARTS: usize = 8;
/// Milliseconds after which the kernel's thread goes to sleep.
const POLLER_IDLE: u32 = 1000;
/// Source: `IORING_ENTER_GETEVENTS`, `linux/io_uring.h`.
const GETEVENTS: u32 = 1;

/// A ring with one tap.
pub(crate) struct TapRing {
    pub(crate) ring: IoUring,
    /// Its descriptor is the ring's, too; the device goes with it.
    _tap: Box<dyn UplinkQueue>,
}

impl TapRing {
    pub(crate) fn new(builder: &Builder, tap: Box<dyn UplinkQueue>) -> io::Result<Self> {
        // A polling thread takes requests a little after they were handed over.
        let ring = builder.build(2 * small(SLOTS))?;
        ring.submitter().register_files(&[tap.fd().as_raw_fd()])?;
        Ok(Self { ring, _tap: tap })
    }

    /// # Safety
    /// The memory of the request lives until it is done.
    pub(crate) unsafe fn push(&mut self, request: &squeue::Entry) {
        let mut queue = self.ring.submission();
        // SAFETY: as the caller promises.
        unsafe { queue.push(request) }.expect("there are places for the longest bulk");
    }

    /// Hands over what was pushed, lets the kernel finish what it can and waits for `want`
    /// requests to be done.
    pub(crate) fn enter(&mut self, want: usize) -> io::Result<()> {
        let submitted = small(self.ring.submission().len());
        let submitter = self.ring.submitter();
        // SAFETY: nothing is passed that would have to live.
        unsafe { submitter.enter::<libc::sigset_t>(submitted, small(want), GETEVENTS, None) }?;
        Ok(())
    }
}

/// What suits one thread that submits and asks for its results.
pub(crate) fn one_thread() -> Builder {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    builder
}

pub(crate) fn small(number: usize) -> u32 {
    u32::try_from(number).expect("it is a small number")
}

/// A writer; with the number of a CPU, a thread of the kernel there takes the requests.
pub(crate) struct RingSender {
    tap: TapRing,
    has_poller: bool,
    slots: Box<[[u8; SLOT_LEN]]>,
    parts: Box<[[libc::iovec; PARTS]]>,
}

impl RingSender {
    pub(crate) fn new(tap: Box<dyn UplinkQueue>, poller: Option<u32>) -> io::Result<Self> {
        let builder = match poller {
            Some(cpu) => {
                let mut builder = IoUring::builder();
                builder.setup_sqpoll(POLLER_IDLE).setup_sqpoll_cpu(cpu);
                builder
            }
            None => one_thread(),
        };
        let tap = TapRing::new(&builder, tap)?;
        let mut slots = vec![[0; SLOT_LEN]; SLOTS].into_boxed_slice();
        let all = part(slots.as_flattened_mut());
        // SAFETY: the ring is dropped before the slots.
        unsafe { tap.ring.submitter().register_buffers(&[all]) }?;
        let none = libc::iovec {
            iov_base: null_mut(),
            iov_len: 0,
        };
        Ok(Self {
            tap,
            has_poller: poller.is_some(),
            slots,
            parts: vec![[none; PARTS]; SLOTS].into_boxed_slice(),
        })
    }

    fn request(&mut self, index: usize, frame: &TxFrame<'_>) -> squeue::Entry {
        let slot = &mut self.slots[index];
        slot[..VNET_HDR_LEN].copy_from_slice(&frame.vnet.encode());
        let mut end = VNET_HDR_LEN + frame.head.len();
        slot[VNET_HDR_LEN..end].copy_from_slice(frame.head);
        let rest: usize = frame.rest.iter().map(GuestSlice::len).sum();
        if end + rest > SLOT_LEN {
            let parts = &mut self.parts[index];
            parts[0] = part(&mut slot[..end]);
            for (part, slice) in parts[1..].iter_mut().zip(frame.rest) {
                part.iov_base = slice.ptr_guard().as_ptr().cast_mut().cast();
                part.iov_len = slice.len();
            }
            let count = small(1 + frame.rest.len());
            let request = opcode::Writev::new(TAP, parts.as_ptr(), count);
            return request.offset(NO_OFFSET).build();
        }
        for slice in frame.rest {
            slice.copy_to(&mut slot[end..end + slice.len()]);
            end += slice.len();
        }
        let request = opcode::WriteFixed::new(TAP, slot.as_ptr(), small(end), 0);
        request.offset(NO_OFFSET).build()
    }
}

impl Send for RingSender {
    fn send_bulk(&mut self, frame: &TxFrame<'_>, count: usize) -> io::Result<()> {
        for index in 0..count {
            let request = self.request(index, frame);
            // SAFETY: slots and parts live as long as the ring; the frame is borrowed until all
            // requests are done, which is waited for below.
            unsafe { self.tap.push(&request) };
        }
        if self.has_poller {
            self.tap.ring.submit()?;
        } else {
            self.tap.enter(count)?;
        }
        let mut left = count;
        while left > 0 {
            for done in self.tap.ring.completion() {
                assert!(done.result() > 0, "the tap refuses: {}", done.result());
                left -= 1;
            }
        }
        Ok(())
    }
}

fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}
