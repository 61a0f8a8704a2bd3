//! Whether the files of memory regions are as long as the regions.
//!
//! Mapping beyond the end of a file succeeds, and the first access there kills the process. What is
//! long enough now can be cut later, unless the file is sealed against it.

use std::os::fd::OwnedFd;
use std::sync::Once;

use log::info;
use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat};
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
    if descriptors.iter().any(can_shrink) {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            info!("guest memory is not sealed: a front-end that cuts its file ends this process");
        });
    }
    Ok(())
}

/// Whether the front-end can take away what is mapped. QEMU seals what `memory-backend-memfd`
/// makes, and other kinds of files cannot be sealed.
///
/// Source: fcntl(2), `F_SEAL_SHRINK`.
fn can_shrink(file: &OwnedFd) -> bool {
    !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    #[test]
    fn only_a_sealed_file_cannot_shrink() {
        let open = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(can_shrink(&open));
        fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        assert!(!can_shrink(&open));
        let unsealable = tempfile::tempfile().unwrap();
        assert!(can_shrink(&unsealable.into()));
    }
}
