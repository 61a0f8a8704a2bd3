//! Descriptors and buffers of coming entries, asked for while earlier ones are served.
//!
//! The guest wrote them on another processor, so the first touch of each waits for that processor's
//! cache. Nothing that is read here is used for anything but a hint: when an entry's turn comes, all
//! of it is read again and checked.

use super::chain::WRITE;
use crate::sys::{GuestMap, Purpose, RingArea};

/// Entries whose descriptor is asked for before their turn: four lines of descriptors in a row.
const DESCRIPTORS: u16 = 16;
/// Entries whose buffer is asked for before their turn. Their descriptors are there by then.
const BUFFERS: u16 = 8;
/// Bytes asked for of each buffer: virtio-net header and a small frame, or the headers of a large
/// one, whose rest the processor foresees itself.
const BYTES: usize = 128;

/// How far ahead was asked.
#[derive(Debug)]
pub(super) struct LookAhead {
    descriptors: u16,
    buffers: u16,
}

impl LookAhead {
    /// Nothing before the entry at `position` is ever asked for.
    pub(super) const fn new(position: u16) -> Self {
        Self {
            descriptors: position,
            buffers: position,
        }
    }

    /// Asks for what has come near now that the entry at `next` is next, of those before `end`.
    pub(super) fn go_on(&mut self, area: &RingArea, map: &GuestMap, next: u16, end: u16) {
        each(&mut self.descriptors, next, end, DESCRIPTORS, |position| {
            area.prefetch_descriptor(area.avail_head(position));
        });
        each(&mut self.buffers, next, end, BUFFERS, |position| {
            if let Some(buffer) = area.descriptor(area.avail_head(position)) {
                let purpose = if buffer.flags & WRITE == 0 {
                    Purpose::Read
                } else {
                    Purpose::Write
                };
                map.prefetch(buffer.addr, BYTES.min(buffer.len as usize), purpose);
            }
        });
    }
}

/// Moves `cursor` up to `distance` entries ahead of `next`, not beyond `end`, and calls `ask` for
/// each entry that it passes.
fn each(cursor: &mut u16, next: u16, end: u16, distance: u16, mut ask: impl FnMut(u16)) {
    let target = end.wrapping_sub(next).min(distance);
    // Entries that were given back were asked for before.
    let mut ahead = cursor.wrapping_sub(next);
    let was_left_behind = ahead > u16::MAX / 2;
    if was_left_behind {
        ahead = 0;
    }
    while ahead < target {
        ask(next.wrapping_add(ahead));
        ahead += 1;
    }
    *cursor = next.wrapping_add(ahead);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_asked_for_once_and_none_that_is_not_there() {
        let mut cursor = 65530;
        let mut asked = Vec::new();
        for (next, end, expected) in [
            (65530_u16, 65530, &[][..]),
            (65530, 65532, &[65530, 65531]),
            (65531, 3, &[65532, 65533, 65534]),
            (65532, 3, &[65535]),
            (65533, 3, &[0]),
            // One was given back.
            (65532, 3, &[]),
            (65533, 3, &[]),
            (65534, 3, &[1]),
            (65535, 3, &[2]),
            (0, 3, &[]),
            (3, 3, &[]),
            // Some were taken without being asked for.
            (9, 20, &[9, 10, 11, 12]),
        ] {
            asked.clear();
            each(&mut cursor, next, end, 4, |position| asked.push(position));
            assert_eq!(asked, expected, "{next}..{end}");
        }
    }
}
