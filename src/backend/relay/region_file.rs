//! Whether the files of memory regions are as long as the regions.
//!
//! Mapping beyond the end of a file succeeds, and the first access there kills the process.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use vhost::vhost_user::message::FrontendReq;

use super::fault::Fault;
use super::message::Message;
use super::shape::{REGION, TABLE_HEADER};

/// Checks the descriptors of a message with regions; other messages have none to check. The
/// message's shape and the number of its descriptors are right already.
///
/// # Errors
/// A fault when a region ends behind its file. Devices have no length and are trusted.
pub(super) fn check(message: &Message, descriptors: &[OwnedFd]) -> Result<(), Fault> {
    if !matches!(
        message.request,
        FrontendReq::SET_MEM_TABLE | FrontendReq::ADD_MEM_REG
    ) {
        return Ok(());
    }
    for (index, file) in descriptors.iter().enumerate() {
        let at = TABLE_HEADER + index * REGION;
        let end = message
            .u64_at(at + 24)
            .saturating_add(message.u64_at(at + 8));
        let is_long_enough = fstat(file).is_ok_and(|stat| {
            let is_device = FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile;
            is_device || u64::try_from(stat.st_size).is_ok_and(|size| end <= size)
        });
        if !is_long_enough {
            return Err(Fault::ShortFile {
                request: message.request,
                end,
            });
        }
    }
    Ok(())
}
