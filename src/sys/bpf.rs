//! The few calls of bpf(2) that lead an interface's frames to XDP sockets.
//!
//! What is made here lives as long as its descriptor: nothing is pinned, and a program is attached
//! by a link, which the kernel takes off when the descriptor is closed, however the process ends.
//!
//! Source: bpf(2); `include/uapi/linux/bpf.h`, `union bpf_attr`.
#![allow(unsafe_code, reason = "bpf takes a union through an untyped pointer")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;

/// `BPF_MAP_TYPE_XSKMAP`, sockets by queue.
const MAP_TYPE_XSKMAP: u32 = 17;
/// `BPF_PROG_TYPE_XDP`.
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_XDP`, the place of a link.
const ATTACH_XDP: u32 = 37;

/// One instruction of a program. Source: `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What to do.
    pub code: u8,
    registers: u8,
    /// Where to go on, or where the operand lies.
    pub offset: i16,
    /// The constant operand.
    pub constant: i32,
}

impl Instruction {
    /// Puts together an instruction on the registers `to` and `from`.
    #[must_use]
    pub const fn new(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> Self {
        // Two bit fields, of which the compiler of the kernel puts the first one lowest.
        let registers = if cfg!(target_endian = "big") {
            to << 4 | from & 15
        } else {
            from << 4 | to & 15
        };
        Self {
            code,
            registers,
            offset,
            constant,
        }
    }
}

/// Which of an interface's two places for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpPlace {
    /// In its driver, before the kernel makes a packet of the frame.
    Driver,
    /// In the kernel's stack, whatever the driver can.
    Stack,
}

impl XdpPlace {
    /// Source: `XDP_FLAGS_DRV_MODE`, `XDP_FLAGS_SKB_MODE`.
    const fn flags(self) -> u32 {
        match self {
            Self::Stack => 1 << 1,
            Self::Driver => 1 << 2,
        }
    }
}

/// Makes a map from the numbers of queues, `0..queues`, to XDP sockets.
///
/// # Errors
/// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EINVAL` where the kernel has no XDP sockets.
pub fn xsk_map(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    }
    let attributes = Attributes {
        map_type: MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: queues,
        map_flags: 0,
    };
    descriptor(bpf(MAP_CREATE, &attributes)?)
}

/// Has frames of queue `queue` go to `socket`, until that is closed.
///
/// # Errors
/// `E2BIG` for a queue that the map does not have.
pub fn xsk_map_set(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map_fd: u32,
        // The union is aligned to 8, and so are its addresses.
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let socket = number_of(socket);
    let attributes = Attributes {
        map_fd: number_of(map),
        padding: 0,
        key: (&raw const queue).addr() as u64,
        value: (&raw const socket).addr() as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// Loads an XDP program.
///
/// # Errors
/// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EINVAL` or `EACCES` for a program that the
/// kernel does not accept.
pub fn load_xdp(program: &[Instruction]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    let license = c"Apache-2.0";
    let attributes = Attributes {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        insns: program.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"vhost_user_gro\0\0",
        prog_ifindex: 0,
        expected_attach_type: ATTACH_XDP,
    };
    descriptor(bpf(PROG_LOAD, &attributes)?)
}

/// Attaches a program to the interface `index` for as long as the link is open.
///
/// # Errors
/// `EBUSY` or `EEXIST` if the interface has a program, `EPERM` without `CAP_NET_ADMIN`, `ENODEV`
/// without such an interface; the driver's error where it cannot at that place.
pub fn link_xdp(program: BorrowedFd<'_>, index: u32, place: XdpPlace) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    let attributes = Attributes {
        prog_fd: number_of(program),
        target_ifindex: index,
        attach_type: ATTACH_XDP,
        flags: place.flags(),
    };
    descriptor(bpf(LINK_CREATE, &attributes)?)
}

fn number_of(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn descriptor(fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the kernel just gave this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One call. `T` is the part of the union for the command.
fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_int> {
    let len = c_uint::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes, which `attributes` has. The commands above read what
    // its addresses point to, which outlives the call, and write nothing.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, len) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    c_int::try_from(rc).map_err(|_| io::ErrorKind::InvalidData.into())
}
