//! Which frames form a bulk (rule TX-1).

use super::config::TxConfig;

/// What kept a bulk from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkEnd {
    /// It has `tx_bulk_packets` frames.
    Packets,
    /// All the room is taken.
    Bytes,
    /// Its last frame is a super-frame.
    Gso,
    /// The turn has had `tx_quota` frames.
    Quota,
}

/// A bulk in the making. The first frame is taken in any case; whether another one is taken depends
/// on those taken before it, never on its own length.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Bytes that are left; the last frame may make them negative.
    room: i64,
    /// Frames that may still be taken, of the bulk and of the turn.
    packets: u32,
    quota: u32,
    /// Nothing may follow a super-frame.
    ends_at_gso: bool,
    is_after_gso: bool,
    is_empty: bool,
}

impl Bulk {
    /// Begins a bulk for which `available` bytes are free (rules DQL-2, DQL-6), in a turn that may
    /// take `quota` frames more.
    #[must_use]
    pub fn new(config: &TxConfig, available: i64, quota: u32) -> Self {
        Self {
            room: available,
            packets: config.tx_bulk_packets,
            quota,
            ends_at_gso: !config.tx_bulk_gso,
            is_after_gso: false,
            is_empty: true,
        }
    }

    /// Adds a frame of `len` bytes without its virtio-net header, a super-frame with all of its
    /// payload.
    pub fn add(&mut self, len: usize, is_gso: bool) {
        self.is_empty = false;
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        self.room = self.room.saturating_sub(len);
        self.packets = self.packets.saturating_sub(1);
        self.quota = self.quota.saturating_sub(1);
        self.is_after_gso = is_gso;
    }

    /// Why no other frame may be added; `None` as long as one may.
    #[must_use]
    pub fn end(&self) -> Option<BulkEnd> {
        if self.is_empty {
            None
        } else if self.packets == 0 {
            Some(BulkEnd::Packets)
        } else if self.room <= 0 {
            Some(BulkEnd::Bytes)
        } else if self.ends_at_gso && self.is_after_gso {
            Some(BulkEnd::Gso)
        } else if self.quota == 0 {
            Some(BulkEnd::Quota)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full frame, and the super-frame of the rules.
    const FULL: (usize, bool) = (1514, false);
    const GSO: (usize, bool) = (65226, true);

    /// Frames that a bulk takes of those that wait, and why it ends.
    fn bulk(
        config: &TxConfig,
        available: i64,
        quota: u32,
        frames: &[(usize, bool)],
    ) -> (usize, Option<BulkEnd>) {
        let mut bulk = Bulk::new(config, available, quota);
        let mut taken = 0;
        for &(len, is_gso) in frames {
            if bulk.end().is_some() {
                break;
            }
            bulk.add(len, is_gso);
            taken += 1;
        }
        (taken, bulk.end())
    }

    #[test]
    fn tx_1_bulks_are_those_of_the_rules() {
        let config = TxConfig::default();
        for (available, frames, expected) in [
            (10_000, &[FULL; 10][..], (7, Some(BulkEnd::Packets))),
            (5000, &[FULL; 10], (4, Some(BulkEnd::Bytes))),
            (1514, &[FULL; 10], (1, Some(BulkEnd::Bytes))),
            (0, &[(60, false); 3], (1, Some(BulkEnd::Bytes))),
            (100_000, &[GSO, FULL], (1, Some(BulkEnd::Gso))),
            (100_000, &[FULL, GSO, FULL], (2, Some(BulkEnd::Gso))),
            (100_000, &[(60, false); 20], (7, Some(BulkEnd::Packets))),
        ] {
            let found = bulk(&config, available, 64, frames);
            assert_eq!(found, expected, "{available} bytes, {frames:?}");
        }
    }

    #[test]
    fn tx_1_the_head_goes_whatever_there_is() {
        let config = TxConfig::default();
        for available in [i64::MIN, -1, 0, 1] {
            assert_eq!(bulk(&config, available, 64, &[GSO, FULL]).0, 1);
        }
        assert_eq!(bulk(&config, 10_000, 0, &[FULL, FULL]).0, 1);
    }

    #[test]
    fn tx_1_super_frames_may_be_followed_where_that_is_wanted() {
        let config = TxConfig {
            tx_bulk_gso: true,
            ..TxConfig::default()
        };
        assert_eq!(bulk(&config, 100_000, 64, &[GSO, FULL, FULL]), (3, None));
        assert_eq!(
            bulk(&config, 100_000, 64, &[GSO, FULL, GSO, FULL]),
            (3, Some(BulkEnd::Bytes))
        );
    }

    #[test]
    fn tx_1_a_bulk_has_as_many_frames_as_is_said() {
        for packets in [1, 2, 8, 64] {
            let config = TxConfig {
                tx_bulk_packets: packets,
                ..TxConfig::default()
            };
            let (taken, _) = bulk(&config, 1_000_000, 256, &[FULL; 100]);
            assert_eq!(taken, packets as usize);
        }
    }

    #[test]
    fn tx_3_the_quota_ends_a_bulk() {
        let config = TxConfig::default();
        let found = bulk(&config, 100_000, 3, &[FULL; 10]);
        assert_eq!(found, (3, Some(BulkEnd::Quota)));
    }
}
