//! Frames in a stream of bytes: each behind its length, four bytes, big endian.
//!
//! There is nothing to find the next frame by when a length is wrong, so a wrong one is the end of
//! the stream.
//!
//! Source: QEMU `net/net.c`, `net_fill_rstate`; passt `tap.c`, `tap_passt_input`.

use crate::sys::GuestSlice;
use crate::wire::ethernet;

/// Bytes of a length.
pub(super) const PREFIX: usize = 4;

/// The shortest frame: a header and nothing behind it.
const FRAME_MIN: usize = ethernet::HEADER_LEN;

/// The longest: 65535 bytes behind the header. Source: `ETH_MAX_MTU`, `include/uapi/linux/if_ether.h`.
pub(super) const FRAME_MAX: usize = ethernet::HEADER_LEN + 65535;

/// Bytes that one read brings at most, and that wait to be written at most: a batch of frames of
/// an MTU of 1500, or a few long ones.
const BUFFER: usize = 256 << 10;

/// A length that no frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes was announced, expected {FRAME_MIN} to {FRAME_MAX}")]
pub(super) struct BadLength(pub(super) u32);

/// What was read and is still to be cut into frames.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// Room for the next read, never empty behind a [`next`](Self::next) that found no frame.
    pub(super) fn spare(&mut self) -> &mut [u8] {
        // At most a part of one frame is left.
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Takes note that `len` bytes of that room were filled.
    pub(super) fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// Takes the next frame, if all of it is there.
    ///
    /// # Errors
    /// What follows is no frame, and so is all that comes later.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, BadLength> {
        let waiting = self.bytes.get(self.start..self.end).unwrap_or_default();
        let Some(prefix) = waiting.first_chunk() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*prefix);
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        if !(FRAME_MIN..=FRAME_MAX).contains(&len) {
            return Err(BadLength(announced));
        }
        let frame = waiting.get(PREFIX..PREFIX + len);
        if frame.is_some() {
            self.start += PREFIX + len;
        }
        Ok(frame)
    }

    /// Whether the stream would end within a frame.
    pub(super) const fn is_within_frame(&self) -> bool {
        self.start < self.end
    }

    pub(super) fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }
}

/// Frames that wait to be written, the first one perhaps in part.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes: Box<[u8]>,
    /// Where the first frame begins that has not been written whole.
    frame: usize,
    /// How far was written.
    written: usize,
    end: usize,
    /// Bytes of frames that were written whole or given up, and that nobody has asked for.
    left: u32,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BUFFER].into_boxed_slice(),
            frame: 0,
            written: 0,
            end: 0,
            left: 0,
        }
    }

    /// Appends a frame of `head` and `rest`; `false` if there is no room for it.
    pub(super) fn push(&mut self, head: &[u8], rest: &[GuestSlice<'_>]) -> bool {
        let len = head.len() + rest.iter().map(|slice| slice.len()).sum::<usize>();
        if PREFIX + len > self.bytes.len() - self.end {
            self.bytes.copy_within(self.frame..self.end, 0);
            self.end -= self.frame;
            self.written -= self.frame;
            self.frame = 0;
        }
        let room = self.bytes.get_mut(self.end..self.end + PREFIX + len);
        let (Some(mut room), Ok(prefix)) = (room, u32::try_from(len)) else {
            return false;
        };
        for part in [&prefix.to_be_bytes()[..], head] {
            let (to, later) = room.split_at_mut(part.len());
            to.copy_from_slice(part);
            room = later;
        }
        for slice in rest {
            let (to, later) = room.split_at_mut(slice.len());
            slice.copy_to(to);
            room = later;
        }
        self.end += PREFIX + len;
        true
    }

    /// What is to be written next.
    pub(super) fn waiting(&self) -> &[u8] {
        self.bytes.get(self.written..self.end).unwrap_or_default()
    }

    /// Takes note that the first `len` bytes of it were written.
    pub(super) fn wrote(&mut self, len: usize) {
        self.written = (self.written + len).min(self.end);
        while let Some(end) = self.end_of(self.frame).filter(|end| *end <= self.written) {
            self.note_left(end - self.frame);
            self.frame = end;
        }
        if self.written == self.end {
            (self.frame, self.written, self.end) = (0, 0, 0);
        }
    }

    /// Forgets everything; returns how many frames have not been written whole.
    pub(super) fn clear(&mut self) -> u64 {
        let mut frames = 0;
        let mut at = self.frame;
        while let Some(end) = self.end_of(at) {
            self.note_left(end - at);
            frames += 1;
            at = end;
        }
        (self.frame, self.written, self.end) = (0, 0, 0);
        frames
    }

    /// Bytes of frames, without their lengths, that were written whole or given up since the last
    /// call.
    pub(super) fn take_left(&mut self) -> u32 {
        core::mem::take(&mut self.left)
    }

    /// Takes note that a frame with its length is no longer here.
    fn note_left(&mut self, len: usize) {
        let len = u32::try_from(len.saturating_sub(PREFIX)).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(len);
    }

    /// The end of the frame that begins at `at`; `None` behind the last one.
    fn end_of(&self, at: usize) -> Option<usize> {
        let prefix = self.bytes.get(at..self.end)?.first_chunk()?;
        Some(at + PREFIX + usize::try_from(u32::from_be_bytes(*prefix)).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_of(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
            bytes.extend(frame);
        }
        bytes
    }

    fn frames() -> Vec<Vec<u8>> {
        let lens = [FRAME_MIN, 15, 60, 61, 1514, 9014, FRAME_MAX, 14, 1513];
        let fill = |(nth, &len): (usize, &usize)| vec![u8::try_from(nth).unwrap(); len];
        lens.iter().enumerate().map(fill).collect()
    }

    #[test]
    fn f59_frames_are_the_same_however_the_stream_is_cut() {
        let stream = stream_of(&frames());
        for piece in [1, 3, 4, 5, 1460, 65536, BUFFER] {
            let mut incoming = Incoming::new();
            let mut got = Vec::new();
            for bytes in stream.chunks(piece) {
                incoming.spare()[..bytes.len()].copy_from_slice(bytes);
                incoming.filled(bytes.len());
                while let Some(frame) = incoming.next().unwrap() {
                    got.push(frame.to_vec());
                }
            }
            assert_eq!(got, frames(), "in pieces of {piece}");
            assert!(!incoming.is_within_frame());
        }
    }

    #[test]
    fn f59_a_length_that_no_frame_has_is_an_error_before_its_frame_is_there() {
        for len in [0, 1, 13, 65550, 1 << 31, u32::MAX] {
            let mut incoming = Incoming::new();
            let good = stream_of(&[vec![1; 60]]);
            incoming.spare()[..64].copy_from_slice(&good);
            incoming.spare()[64..68].copy_from_slice(&len.to_be_bytes());
            incoming.filled(68);
            assert!(matches!(incoming.next(), Ok(Some(frame)) if frame == [1; 60]));
            assert_eq!(incoming.next(), Err(BadLength(len)));
        }
    }

    #[test]
    fn there_is_room_behind_every_part_of_a_frame() {
        let mut incoming = Incoming::new();
        let stream = stream_of(&[vec![1; FRAME_MAX]]);
        incoming.spare()[..stream.len() - 1].copy_from_slice(&stream[1..]);
        incoming.clear();
        incoming.spare()[..4].copy_from_slice(&stream[..4]);
        incoming.filled(stream.len() - 1);
        assert_eq!(incoming.next(), Ok(None));
        assert!(incoming.spare().len() >= FRAME_MAX);
    }

    #[test]
    fn f59_frames_leave_the_same_however_the_writes_are_cut() {
        for piece in [1, 3, 4, 5, 1460, 65536, BUFFER] {
            let mut outgoing = Outgoing::new();
            let mut got = Vec::new();
            let mut write = |outgoing: &mut Outgoing| {
                let len = outgoing.waiting().len().min(piece);
                got.extend_from_slice(&outgoing.waiting()[..len]);
                outgoing.wrote(len);
            };
            for frame in frames() {
                while !outgoing.push(&frame, &[]) {
                    write(&mut outgoing);
                }
                write(&mut outgoing);
            }
            while !outgoing.waiting().is_empty() {
                write(&mut outgoing);
            }
            assert_eq!(got, stream_of(&frames()), "in pieces of {piece}");
        }
    }

    #[test]
    fn frames_of_many_parts_are_one() {
        let mut outgoing = Outgoing::new();
        let (mut a, mut b) = ([2; 3], [3; 2]);
        let rest = [GuestSlice::from(&mut a[..]), GuestSlice::from(&mut b[..])];
        assert!(outgoing.push(&[1; 14], &rest));
        let expected = [&[0, 0, 0, 19][..], &[1; 14], &[2; 3], &[3; 2]].concat();
        assert_eq!(outgoing.waiting(), expected);
    }

    #[test]
    fn a_full_buffer_takes_nothing_and_loses_nothing() {
        let mut outgoing = Outgoing::new();
        let frame = vec![7; FRAME_MAX];
        let mut taken = 0;
        while outgoing.push(&frame, &[]) {
            taken += 1;
        }
        assert_eq!(taken, (BUFFER / (PREFIX + FRAME_MAX)) as u64);
        // The first one has left but for a byte.
        outgoing.wrote(PREFIX + FRAME_MAX - 1);
        assert!(!outgoing.push(&frame, &[]));
        outgoing.wrote(1);
        assert!(outgoing.push(&frame, &[]));
        assert_eq!(outgoing.clear(), taken);
        assert!(outgoing.waiting().is_empty());
    }

    #[test]
    fn a_frame_written_in_part_is_lost_with_the_rest() {
        let mut outgoing = Outgoing::new();
        for _ in 0..3 {
            assert!(outgoing.push(&[0; 60], &[]));
        }
        outgoing.wrote(64 + 5);
        assert_eq!(outgoing.clear(), 2);
        assert_eq!(outgoing.clear(), 0);
    }
}
