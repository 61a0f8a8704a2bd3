//! Memory asked for ahead of its use, so that waiting for it overlaps with other work.
#![allow(unsafe_code, reason = "the instruction takes a raw address")]

#[cfg(target_arch = "x86_64")]
use core::arch::{
    asm,
    x86_64::{_MM_HINT_T0, _mm_prefetch},
};

/// What is going to be done with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is read.
    Read,
    /// It is written, so no other processor may keep it.
    Write,
}

/// Bytes that come together.
pub(super) const LINE: usize = 64;

/// Asks for the line around `at`. A hint: nothing is read that the program could see, and any
/// address will do, mapped or not.
#[inline]
pub(super) fn prefetch(at: *const u8, purpose: Purpose) {
    #[cfg(target_arch = "x86_64")]
    match purpose {
        // SAFETY: the instruction never faults and has no effect but on the cache.
        Purpose::Read => unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) },
        // The intrinsic asks for a shared line unless the build is for certain processors alone.
        // SAFETY: as above; the oldest processors ignore it.
        Purpose::Write => unsafe {
            asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
        },
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, purpose);
}
