//! What the uplink cannot do for a frame from the guest is done here: the frame is cut into its
//! segments (rule TX-7) or its checksum is finished (rule TX-8).
//!
//! The headers of a segment come from our copy of the first bytes, which was checked. The payload is
//! copied from guest memory once, and what was copied is what is summed.

use super::stats::TransmitStats;
use crate::device::TxFrame;
use crate::gso::{self, GsoError, Segments};
use crate::uplink::{self, BUF_LEN, Offloads, SendError};
use crate::wire::VnetHdr;
use crate::wire::tcp::{CWR, Tcp};
use crate::wire::vnet_hdr::{F_NEEDS_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};

/// Segments that are made in one turn, before others get theirs: a guest may ask for 65000 of one
/// packet, and a turn has up to a quota of packets (rule TX-3). Packets of the usual segment sizes
/// come to less than 50 each.
const TURN_SEGMENTS: u32 = 1024;

/// What is left to do for a frame before the uplink can have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Nothing, it goes as it is.
    Nothing,
    /// Its checksum is to be finished.
    Checksum,
    /// It is to be cut, each segment with its checksums.
    Segments,
}

/// Why a frame was not sent.
#[derive(Debug)]
pub(super) enum FinishError {
    /// It is not what its header says, so it cannot be finished.
    Misfit,
    /// The rest of its segments has to wait for the next turn.
    TurnIsOver,
    /// The uplink's error.
    Send(SendError),
}

impl From<SendError> for FinishError {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}

/// Finishes one frame after the other.
#[derive(Debug)]
pub(super) struct Finisher {
    /// What the uplink takes over.
    host: Offloads,
    /// Segments of the frame at hand that the uplink has.
    segments_sent: u32,
    /// Segments that may still be made in this turn.
    turn_segments: u32,
    /// Where a frame or segment is built. Untouched memory costs nothing.
    scratch: Box<[u8]>,
}

impl Finisher {
    /// Makes one for an uplink that takes over what `host` says.
    pub(super) fn new(host: Offloads) -> Self {
        Self {
            host,
            segments_sent: 0,
            turn_segments: TURN_SEGMENTS,
            scratch: vec![0; BUF_LEN].into_boxed_slice(),
        }
    }

    /// A new turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.turn_segments = TURN_SEGMENTS;
    }

    /// Begins the next frame with its first segment, whatever became of this one.
    pub(super) fn forget_frame(&mut self) {
        self.segments_sent = 0;
    }

    /// Gives a frame to `put`, with its length, as the uplink can take it. One that has to be kept
    /// comes again, and goes on with the segment that was not taken; of one that was dropped the
    /// rest is dropped.
    ///
    /// # Errors
    /// See [`FinishError`].
    pub(super) fn send(
        &mut self,
        frame: &TxFrame<'_>,
        stats: &mut TransmitStats,
        mut put: impl FnMut(&uplink::TxFrame<'_>, usize) -> Result<(), SendError>,
    ) -> Result<(), FinishError> {
        let sent = match self.work(&frame.vnet, frame.head) {
            Work::Nothing => put(&as_it_is(frame), frame.frame_len()).map_err(FinishError::Send),
            Work::Checksum => {
                let whole = self.with_checksum(frame)?;
                put(&finished(whole), whole.len())?;
                stats.checksums_finished += 1;
                Ok(())
            }
            Work::Segments => {
                let sent = self.send_segments(frame, stats, put);
                stats.segmented += u64::from(sent.is_ok());
                sent
            }
        };
        let is_kept = matches!(
            sent,
            Err(FinishError::TurnIsOver | FinishError::Send(SendError::Full | SendError::NoMemory))
        );
        if !is_kept {
            self.forget_frame();
        }
        sent
    }

    /// Finds out what is to be done for a frame.
    fn work(&self, vnet: &VnetHdr, head: &[u8]) -> Work {
        if vnet.flags & F_NEEDS_CSUM == 0 {
            return Work::Nothing;
        }
        let is_by_host = match vnet.gso_type & !GSO_ECN {
            GSO_NONE if self.host.csum => return Work::Nothing,
            GSO_NONE => return Work::Checksum,
            GSO_TCPV4 => self.host.tso4 && self.takes_cwr(vnet, head),
            GSO_TCPV6 => self.host.tso6 && self.takes_cwr(vnet, head),
            GSO_UDP_L4 => self.host.uso,
            _ => false,
        };
        if self.host.csum && is_by_host {
            Work::Nothing
        } else {
            Work::Segments
        }
    }

    /// Whether the uplink knows what to do about CWR of a TCP frame: it has to be told by the type
    /// that this belongs to the first segment alone (rule TX-10).
    fn takes_cwr(&self, vnet: &VnetHdr, head: &[u8]) -> bool {
        if vnet.gso_type & GSO_ECN != 0 {
            return self.host.ecn;
        }
        let tcp = Tcp::at(head, usize::from(vnet.csum_start));
        tcp.is_none_or(|tcp| tcp.flags() & CWR == 0)
    }

    /// The whole frame with its checksum finished.
    fn with_checksum(&mut self, frame: &TxFrame<'_>) -> Result<&[u8], FinishError> {
        let whole = self.scratch.get_mut(..frame.frame_len());
        let whole = whole.ok_or(FinishError::Misfit)?;
        copy_from(frame, 0, whole);
        gso::complete_checksum(whole, &frame.vnet).map_err(|_| FinishError::Misfit)?;
        Ok(whole)
    }

    fn send_segments(
        &mut self,
        frame: &TxFrame<'_>,
        stats: &mut TransmitStats,
        mut put: impl FnMut(&uplink::TxFrame<'_>, usize) -> Result<(), SendError>,
    ) -> Result<(), FinishError> {
        let misfit = |_: GsoError| FinishError::Misfit;
        let segments = Segments::of(frame.head, frame.frame_len(), &frame.vnet).map_err(misfit)?;
        while self.segments_sent < segments.count() {
            if self.turn_segments == 0 {
                return Err(FinishError::TurnIsOver);
            }
            let copy = |offset, room: &mut [u8]| copy_from(frame, offset, room);
            let len = segments
                .write_with(frame.head, self.segments_sent, &mut self.scratch, copy)
                .map_err(misfit)?;
            let segment = self.scratch.get(..len).unwrap_or_default();
            put(&finished(segment), len)?;
            stats.segments += 1;
            self.segments_sent += 1;
            self.turn_segments -= 1;
        }
        Ok(())
    }
}

fn as_it_is<'a>(frame: &'a TxFrame<'_>) -> uplink::TxFrame<'a> {
    uplink::TxFrame {
        vnet: frame.vnet,
        head: frame.head,
        rest: frame.rest(),
    }
}

/// A frame that asks for nothing.
fn finished(bytes: &[u8]) -> uplink::TxFrame<'_> {
    uplink::TxFrame {
        vnet: VnetHdr::default(),
        head: bytes,
        rest: &[],
    }
}

/// Copies the bytes of a frame from `offset` on until `to` is full.
fn copy_from(frame: &TxFrame<'_>, offset: usize, to: &mut [u8]) {
    let mut skip = offset;
    let mut filled = 0;
    if let Some(head) = frame.head.get(skip..) {
        filled = head.len().min(to.len());
        to[..filled].copy_from_slice(&head[..filled]);
        skip = 0;
    } else {
        skip -= frame.head.len();
    }
    for slice in frame.rest() {
        let room = &mut to[filled..];
        if room.is_empty() {
            return;
        }
        let Some(left) = slice.len().checked_sub(skip) else {
            skip -= slice.len();
            continue;
        };
        let len = left.min(room.len());
        if let Ok(from) = slice.subslice(skip, len) {
            from.copy_to(&mut room[..len]);
        }
        filled += len;
        skip = 0;
    }
}
