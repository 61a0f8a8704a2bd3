//! A bounded ring of frames from one thread to one other, without locks.
//!
//! Frames are copied in and out. So a buffer never leaves its thread: what a worker holds are buffers
//! of its own pool, and nothing has to find its way back to whoever read the frame. The bytes stand
//! one behind the other in a ring of bytes, so a small frame takes little room; a second ring says
//! how long each is and what is known of it.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::sys::GuestSlice;
use crate::uplink::BUF_LEN;
use crate::wire::RxMeta;

/// Room in the ring of bytes for each frame that the other ring has room for. Full-size frames of
/// 1500 bytes never meet its end; of the largest frames it takes one for sixteen.
const BYTES_PER_FRAME: usize = 4096;

/// Longest frame, so that it fits a buffer of the pool behind [`super::port::FRAME_AT`].
pub(super) const FRAME_MAX: usize = BUF_LEN - 32;

/// What travels beside the bytes of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Label {
    /// Whatever is known of the frame. All of it arrives as it was (rule THR-5).
    pub(super) meta: RxMeta,
    /// For which run of the receiver it is meant.
    pub(super) epoch: u32,
}

/// What stands in the ring of frames.
#[derive(Clone, Copy, Debug)]
struct Entry {
    label: Label,
    len: usize,
}

/// Makes both ends of a ring for `frames` frames.
pub(super) fn lane(frames: usize) -> (LaneSender, LaneReceiver) {
    let (entries, taken_entries) = RingBuffer::new(frames);
    let room = (frames * BYTES_PER_FRAME).max(2 * FRAME_MAX);
    let (bytes, taken_bytes) = RingBuffer::new(room);
    let sender = LaneSender { entries, bytes };
    let receiver = LaneReceiver {
        entries: taken_entries,
        bytes: taken_bytes,
    };
    (sender, receiver)
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no room at the moment.
    Full,
    /// There never is.
    TooLong,
}

/// The end where frames are put in.
pub(super) struct LaneSender {
    entries: Producer<Entry>,
    bytes: Producer<u8>,
}

impl LaneSender {
    /// Puts in a frame that begins with `head` and goes on with `rest`, whole or not at all.
    pub(super) fn push(
        &mut self,
        label: Label,
        head: &[u8],
        rest: &[GuestSlice<'_>],
    ) -> Result<(), Refusal> {
        let len = head.len() + rest.iter().map(|slice| slice.len()).sum::<usize>();
        if len > FRAME_MAX {
            return Err(Refusal::TooLong);
        }
        if self.entries.is_full() || self.bytes.slots() < len {
            return Err(Refusal::Full);
        }
        // There is room, so none of the following fails.
        let _ = self.bytes.push_entire_slice(head);
        rest.iter().for_each(|slice| self.push_from_guest(slice));
        let _ = self.entries.push(Entry { label, len });
        Ok(())
    }

    fn push_from_guest(&mut self, slice: &GuestSlice<'_>) {
        let Ok(mut chunk) = self.bytes.write_chunk(slice.len()) else {
            return;
        };
        let (first, second) = chunk.as_mut_slices();
        slice.copy_to(first);
        if let Ok(behind) = slice.offset(first.len()) {
            behind.copy_to(second);
        }
        chunk.commit_all();
    }
}

/// The end where frames are taken out.
pub(super) struct LaneReceiver {
    entries: Consumer<Entry>,
    bytes: Consumer<u8>,
}

impl LaneReceiver {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Frames that wait.
    pub(super) fn len(&self) -> usize {
        self.entries.slots()
    }

    /// Gives up to `most` frames to `give`, until that says that it cannot take one, which stays.
    /// There is room for others when the last one is out. Returns how many were taken.
    pub(super) fn take(
        &mut self,
        most: usize,
        mut give: impl FnMut(Label, Bytes<'_>) -> bool,
    ) -> usize {
        let Ok(chunk) = self.entries.read_chunk(most.min(self.entries.slots())) else {
            return 0;
        };
        let (first, second) = chunk.as_slices();
        let mut taken = 0;
        for entry in first.iter().chain(second) {
            let bytes = Bytes {
                ring: &mut self.bytes,
                len: entry.len,
            };
            if !give(entry.label, bytes) {
                break;
            }
            taken += 1;
        }
        chunk.commit(taken);
        taken
    }

    /// Shows the next frame to `show`, in one piece, and takes it out if that says so.
    pub(super) fn show(
        &mut self,
        scratch: &mut [u8],
        show: impl FnOnce(Label, &[u8]) -> bool,
    ) -> bool {
        let Ok(&Entry { label, len }) = self.entries.peek() else {
            return false;
        };
        let Ok(chunk) = self.bytes.read_chunk(len) else {
            return false;
        };
        let is_done = match chunk.as_slices() {
            (whole, []) => show(label, whole),
            (first, second) => {
                scratch[..first.len()].copy_from_slice(first);
                scratch[first.len()..len].copy_from_slice(second);
                show(label, &scratch[..len])
            }
        };
        if is_done {
            chunk.commit_all();
            let _ = self.entries.pop();
        }
        is_done
    }
}

/// The bytes of a frame that is to be taken. They are in the ring before its entry is.
pub(super) struct Bytes<'a> {
    ring: &'a mut Consumer<u8>,
    len: usize,
}

impl Bytes<'_> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes them out to `buffer`, which has as many.
    pub(super) fn copy_to(self, buffer: &mut [u8]) {
        let copied = self.ring.pop_entire_slice(buffer);
        debug_assert!(copied.is_ok(), "a frame without its bytes");
    }

    /// Throws them away.
    pub(super) fn skip(self) {
        if let Ok(chunk) = self.ring.read_chunk(self.len) {
            chunk.commit_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(epoch: u32) -> Label {
        Label {
            epoch,
            ..Label::default()
        }
    }

    /// All that is in the ring: label and bytes.
    fn all(receiver: &mut LaneReceiver) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        receiver.take(usize::MAX, |label, bytes| {
            let mut buffer = vec![0; bytes.len()];
            bytes.copy_to(&mut buffer);
            found.push((label.epoch, buffer));
            true
        });
        found
    }

    #[test]
    fn frames_come_out_whole_and_in_order_wherever_the_ring_turns() {
        let (mut sender, mut receiver) = lane(4);
        let mut scratch = vec![0; FRAME_MAX];
        for round in 0..200_u8 {
            // Lengths that do not divide the ring.
            let len = 5000 + usize::from(round) * 37;
            let frame = |nth: u8| vec![round ^ nth; len];
            for nth in 0..3 {
                sender.push(label(nth.into()), &frame(nth), &[]).unwrap();
            }
            let is_shown = receiver.show(&mut scratch, |label, bytes| {
                assert_eq!((label.epoch, bytes), (0, &frame(0)[..]));
                true
            });
            assert!(is_shown);
            assert_eq!(all(&mut receiver), [(1, frame(1)), (2, frame(2))]);
            assert!(receiver.is_empty());
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_loses_nothing() {
        let (mut sender, mut receiver) = lane(3);
        for nth in 0..3 {
            assert_eq!(sender.push(label(nth), &[7; 60], &[]), Ok(()));
        }
        assert_eq!(sender.push(label(3), &[7; 60], &[]), Err(Refusal::Full));
        assert_eq!(receiver.len(), 3);
        assert_eq!(all(&mut receiver).len(), 3);
        // By its bytes as well.
        assert_eq!(sender.push(label(0), &[1; FRAME_MAX], &[]), Ok(()));
        assert_eq!(sender.push(label(1), &[2; FRAME_MAX], &[]), Ok(()));
        assert_eq!(sender.push(label(2), &[3], &[]), Err(Refusal::Full));
        assert_eq!(sender.push(label(2), &[], &[]), Ok(()));
        let lens: Vec<_> = all(&mut receiver).iter().map(|(_, it)| it.len()).collect();
        assert_eq!(lens, [FRAME_MAX, FRAME_MAX, 0]);
        let too_long = [0; FRAME_MAX + 1];
        assert_eq!(sender.push(label(0), &too_long, &[]), Err(Refusal::TooLong));
    }

    #[test]
    fn what_is_not_taken_stays() {
        let (mut sender, mut receiver) = lane(4);
        for nth in 0..4_u8 {
            sender.push(label(nth.into()), &[nth; 9], &[]).unwrap();
        }
        let mut seen = 0;
        let taken = receiver.take(4, |_, bytes| {
            seen += 1;
            if seen == 3 {
                return false;
            }
            bytes.skip();
            true
        });
        assert_eq!(taken, 2);
        let is_shown = receiver.show(&mut [], |_, _| false);
        assert!(!is_shown);
        assert_eq!(all(&mut receiver), [(2, vec![2; 9]), (3, vec![3; 9])]);
    }

    #[test]
    fn bytes_of_the_guest_follow_those_of_ours() {
        let (mut sender, mut receiver) = lane(8);
        let mut memory: Vec<u8> = (0..200).collect();
        // Often enough for the ring to turn within either part.
        for _ in 0..2000 {
            let slices = [GuestSlice::from(&mut memory[..])];
            let slices = [
                slices[0].subslice(3, 90).unwrap(),
                slices[0].offset(120).unwrap(),
            ];
            sender.push(label(1), &[9; 14], &slices).unwrap();
            let expected = [&[9; 14][..], &memory[3..93], &memory[120..]].concat();
            assert_eq!(all(&mut receiver), [(1, expected)]);
        }
    }
}
