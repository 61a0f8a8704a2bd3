//! Which regions of memory the daemon has, so that none is added or removed twice.
//!
//! Before version 8 QEMU sends `ADD_MEM_REG` and `REM_MEM_REG` once for each queue pair, and the
//! daemon would close the connection at the second one.

use std::collections::BTreeSet;

use super::fault::Fault;
use super::message::Message;
use super::shape::{REGION, TABLE_HEADER};

/// Guest address, size, user address and offset in the file.
type Region = [u64; 4];

/// Most regions at a time, which is what the daemon answers to `GET_MAX_MEM_SLOTS`. Each is a
/// mapping and a descriptor of the process.
pub(super) const REGIONS_MAX: usize = 509;

/// The regions that were passed on.
#[derive(Debug, Default)]
pub(super) struct Regions {
    present: BTreeSet<Region>,
}

impl Regions {
    /// Takes the one region of a message; false if it is there already.
    ///
    /// # Errors
    /// A fault when there are as many as there may be.
    pub(super) fn add(&mut self, message: &Message) -> Result<bool, Fault> {
        let region = region_at(message, TABLE_HEADER);
        if self.present.len() >= REGIONS_MAX && !self.present.contains(&region) {
            return Err(Fault::TooManyRegions { max: REGIONS_MAX });
        }
        Ok(self.present.insert(region))
    }

    /// Takes away the one region of a message, false if there is none. The place in the file does
    /// not count: only the addresses and the size say which region is meant.
    pub(super) fn remove(&mut self, message: &Message) -> bool {
        let meant = region_at(message, TABLE_HEADER);
        let before = self.present.len();
        self.present.retain(|region| region[..3] != meant[..3]);
        self.present.len() < before
    }

    /// Takes the regions of a whole table in place of all former ones.
    pub(super) fn replace(&mut self, message: &Message) {
        let count = message.u32_at(0) as usize;
        self.present = (0..count)
            .map(|index| region_at(message, TABLE_HEADER + index * REGION))
            .collect();
    }
}

fn region_at(message: &Message, at: usize) -> Region {
    [at, at + 8, at + 16, at + 24].map(|field| message.u64_at(field))
}

#[cfg(test)]
mod tests {
    use vhost::vhost_user::message::FrontendReq;

    use super::*;

    fn message(request: FrontendReq, words: &[u64]) -> Message {
        let payload = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Message {
            request,
            need_reply: false,
            payload,
        }
    }

    #[test]
    fn region_is_added_and_removed_once() {
        let mut regions = Regions::default();
        let add = message(FrontendReq::ADD_MEM_REG, &[0, 1, 2, 3, 4]);
        let other = message(FrontendReq::ADD_MEM_REG, &[0, 9, 2, 3, 4]);
        let remove = message(FrontendReq::REM_MEM_REG, &[0, 1, 2, 3, 0]);
        assert_eq!(regions.add(&add), Ok(true));
        assert_eq!(regions.add(&add), Ok(false));
        assert_eq!(regions.add(&other), Ok(true));
        assert!(regions.remove(&remove));
        assert!(!regions.remove(&remove));
        assert_eq!(regions.add(&add), Ok(true));
    }

    #[test]
    fn table_counts_in_place_of_what_was_there() {
        let mut regions = Regions::default();
        let add = message(FrontendReq::ADD_MEM_REG, &[0, 1, 2, 3, 4]);
        regions.add(&add).unwrap();
        let table = message(FrontendReq::SET_MEM_TABLE, &[2, 5, 6, 7, 8, 9, 10, 11, 12]);
        regions.replace(&table);
        assert_eq!(regions.add(&add), Ok(true));
        let listed = message(FrontendReq::ADD_MEM_REG, &[0, 9, 10, 11, 12]);
        assert_eq!(regions.add(&listed), Ok(false));
    }

    #[test]
    fn no_more_regions_than_were_announced() {
        let mut regions = Regions::default();
        let add = |index| message(FrontendReq::ADD_MEM_REG, &[0, index, 2, 3, 4]);
        for index in 0..509 {
            assert_eq!(regions.add(&add(index)), Ok(true));
        }
        let full = Err(Fault::TooManyRegions { max: 509 });
        assert_eq!(regions.add(&add(509)), full);
        assert_eq!(regions.add(&add(508)), Ok(false), "it is one of them");
        assert!(regions.remove(&add(7)));
        assert_eq!(regions.add(&add(509)), Ok(true));
    }
}
