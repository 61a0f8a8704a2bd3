//! A descriptor on which every message is a virtio-net header and one frame: tap or test socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{BUF_LEN, FramePool, RecvEnd, RecvError, RxFrame, SendError, TxFrame, UplinkStats};
use crate::sys::{PARTS_MAX, write_parts};
use crate::wire::vnet_hdr::VNET_HDR_LEN;
use crate::wire::{RxMeta, VnetHdr};

/// Where the header starts in a pool buffer:
/// ```text
/// 0      6                 18                   32
/// | free | virtio-net (12) | Ethernet (14)      | IP header, on a 16-byte boundary
/// ```
const HDR_AT: usize = 6;
const FRAME_AT: usize = HDR_AT + VNET_HDR_LEN;

/// Length of an Ethernet header, below which nothing is a frame.
const ETH_HDR_LEN: usize = 14;

/// Most bytes of a message that is put together before it is written. The kernel takes one piece
/// so much faster than several that a sixth of the whole cost is saved, the copy included; with
/// the length the gain shrinks, and a copy of 64 KiB is a loss. `docs/results/tap-io.md` has the
/// figures.
const GATHERED_MAX: usize = 4096;

/// A non-blocking descriptor with framing by message.
#[derive(Debug)]
pub(super) struct VnetFd {
    fd: OwnedFd,
    /// Where frames are put together. Untouched memory costs nothing.
    scratch: Box<[u8]>,
    stats: UplinkStats,
}

impl VnetFd {
    /// Takes over a descriptor that is already non-blocking.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            scratch: vec![0; BUF_LEN].into_boxed_slice(),
            stats: UplinkStats::default(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Goes on with another descriptor.
    pub(super) fn replace(&mut self, fd: OwnedFd) {
        self.fd = fd;
    }

    pub(super) const fn stats(&self) -> UplinkStats {
        self.stats
    }

    pub(super) fn recv_batch(
        &mut self,
        pool: &FramePool,
        budget: usize,
        out: &mut Vec<RxFrame>,
    ) -> Result<RecvEnd, RecvError> {
        for _ in 0..budget {
            let Some(mut frame) = pool.take() else {
                return Ok(RecvEnd::PoolEmpty);
            };
            let room = frame.spare_mut().get_mut(HDR_AT..).unwrap_or_default();
            let room_len = room.len();
            let len = match rustix::io::read(&self.fd, room) {
                Ok(0) => return Err(RecvError::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(RecvEnd::Empty),
                Err(errno) => {
                    self.stats.rx_errors += 1;
                    return Err(recv_error(errno));
                }
            };
            // A message that fills the buffer to its last byte may have been longer: the kernel
            // cuts without saying so. No whole frame is that long.
            if len < VNET_HDR_LEN + ETH_HDR_LEN || len >= room_len {
                self.stats.rx_truncated += 1;
                continue;
            }
            let Some(hdr) = frame
                .spare_mut()
                .get(HDR_AT..)
                .and_then(<[u8]>::first_chunk)
            else {
                continue;
            };
            let vnet = VnetHdr::decode(hdr);
            frame.set_range(FRAME_AT, HDR_AT + len);
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

    /// Throws away and counts up to `limit` frames that wait.
    pub(super) fn discard(&mut self, limit: usize) {
        for _ in 0..limit {
            match rustix::io::read(&self.fd, &mut self.scratch[..]) {
                Ok(len) if len > 0 => self.stats.rx_discarded += 1,
                _ => return,
            }
        }
    }

    pub(super) fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), SendError> {
        let hdr = frame.vnet.encode();
        write_frame(self.fd.as_fd(), &mut self.scratch, &hdr, frame).map_err(send_error)
    }
}

/// Writes a frame behind its header as one message; `scratch` is for frames that are short or in
/// many pieces.
pub(super) fn write_frame(
    fd: BorrowedFd<'_>,
    scratch: &mut [u8],
    hdr: &[u8],
    frame: &TxFrame<'_>,
) -> io::Result<()> {
    let own = [hdr, frame.head];
    let rest: usize = frame.rest.iter().map(|slice| slice.len()).sum();
    let len = hdr.len() + frame.head.len() + rest;
    let written = if len <= GATHERED_MAX || own.len() + frame.rest.len() > PARTS_MAX {
        rustix::io::write(fd, gather(scratch, &own, frame)?)?
    } else {
        write_parts(fd, &own, frame.rest)?
    };
    if written != len {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// Copies a frame into `scratch`, header first.
fn gather<'a>(scratch: &'a mut [u8], own: &[&[u8]], frame: &TxFrame<'_>) -> io::Result<&'a [u8]> {
    let too_long = || io::Error::from(Errno::MSGSIZE);
    let mut end = 0;
    for part in own {
        let to = scratch.get_mut(end..end + part.len());
        to.ok_or_else(too_long)?.copy_from_slice(part);
        end += part.len();
    }
    for slice in frame.rest {
        let to = scratch.get_mut(end..end + slice.len());
        slice.copy_to(to.ok_or_else(too_long)?);
        end += slice.len();
    }
    scratch.get(..end).ok_or_else(too_long)
}

/// Source: `drivers/net/tun.c`, `tun_chr_read_iter`: `EBADFD` once the device is deleted.
fn recv_error(errno: Errno) -> RecvError {
    match errno {
        Errno::IO | Errno::NETDOWN => RecvError::Down,
        errno if is_gone(errno) => RecvError::Gone(errno.into()),
        errno => RecvError::Failed(errno.into()),
    }
}

/// Source: `drivers/net/tun.c`, `tun_get_user`: `EIO` while the interface is down, `EAGAIN` and
/// `ENOBUFS` when the send buffer or memory is used up, `EINVAL` for a header it does not like.
fn send_error(err: io::Error) -> SendError {
    match Errno::from_io_error(&err) {
        Some(Errno::AGAIN) => SendError::Full,
        Some(Errno::NOBUFS | Errno::NOMEM) => SendError::NoMemory,
        Some(Errno::IO | Errno::NETDOWN) => SendError::Down,
        Some(errno) if is_gone(errno) => SendError::Gone(err),
        _ => SendError::Refused(err),
    }
}

fn is_gone(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::BADFD | Errno::BADF | Errno::NODEV | Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f39_shortage_of_buffers_keeps_the_frame() {
        assert!(matches!(send_error(Errno::AGAIN.into()), SendError::Full));
        for errno in [Errno::NOBUFS, Errno::NOMEM] {
            assert!(matches!(send_error(errno.into()), SendError::NoMemory));
        }
    }

    #[test]
    fn f40_only_a_lost_device_ends_the_queue() {
        assert!(matches!(send_error(Errno::IO.into()), SendError::Down));
        for errno in [Errno::INVAL, Errno::MSGSIZE, Errno::FAULT, Errno::PERM] {
            assert!(matches!(send_error(errno.into()), SendError::Refused(_)));
        }
        assert!(matches!(
            send_error(Errno::BADFD.into()),
            SendError::Gone(_)
        ));
        assert!(matches!(recv_error(Errno::IO), RecvError::Down));
        assert!(matches!(recv_error(Errno::NOMEM), RecvError::Failed(_)));
        assert!(matches!(recv_error(Errno::BADFD), RecvError::Gone(_)));
    }
}
