//! The program that has frames of each queue go to the socket of that queue.
//!
//! ```text
//! return bpf_redirect_map(sockets, context->rx_queue_index, XDP_PASS)
//! ```
//! If the guest's addresses are known, frames to others are left to the host before that. The
//! program is so short that it is written as instructions; a compiler for it and a loader of object
//! files would be more to trust than what they save.
//!
//! Source: `Documentation/bpf/standardization/instruction-set.rst`; `struct xdp_md`.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::bpf::Instruction;
use crate::uplink::af_packet::Mac;

const LOAD_CONSTANT_64: u8 = 0x18;
/// Instead of a constant, the map of that descriptor.
const PSEUDO_MAP: u8 = 1;
const LOAD_WORD: u8 = 0x61;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const JUMP_IF_ABOVE: u8 = 0x2d;
/// These two compare 32 bits with a constant.
const JUMP_IF_EQUAL: u8 = 0x16;
const JUMP_IF_OTHER: u8 = 0x56;

/// Frames that are not redirected are the host's. Source: `XDP_PASS`.
const PASS: i32 = 2;
/// Source: `BPF_FUNC_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// Offsets in the context.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const ETH_HDR_LEN: i32 = 14;

/// Writes the program for a map of sockets; all frames go to them if no address is given.
pub(super) fn redirecting(sockets: BorrowedFd<'_>, macs: &[Mac]) -> Vec<Instruction> {
    let redirect = [
        op(LOAD_WORD, 2, 1, RX_QUEUE_INDEX, 0),
        op(LOAD_CONSTANT_64, 1, PSEUDO_MAP, 0, sockets.as_raw_fd()),
        op(0, 0, 0, 0, 0),
        op(SET, 3, 0, 0, PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
    ];
    let mut program = if macs.is_empty() {
        Vec::new()
    } else {
        for_addresses(macs)
    };
    program.extend(redirect);
    program
}

/// Goes on behind its end for frames to a group or to one of `macs`, ends the program for others.
fn for_addresses(macs: &[Mac]) -> Vec<Instruction> {
    let pass = [op(SET, 0, 0, 0, PASS), op(EXIT, 0, 0, 0, 0)];
    let mut program = vec![
        op(LOAD_WORD, 2, 1, DATA, 0),
        op(LOAD_WORD, 3, 1, DATA_END, 0),
        op(MOVE, 4, 2, 0, 0),
        op(ADD, 4, 0, 0, ETH_HDR_LEN),
        op(JUMP_IF_ABOVE, 4, 3, 0, 0),
        op(LOAD_BYTE, 5, 2, 0, 0),
        op(AND, 5, 0, 0, 1),
        op(JUMP_IF_OTHER, 5, 0, 0, 0),
        op(LOAD_WORD, 4, 2, 0, 0),
        op(LOAD_HALF, 5, 2, 4, 0),
    ];
    for mac in macs {
        let [a, b, c, d, e, f] = *mac;
        let start = i32::from_ne_bytes([a, b, c, d]);
        let end = i32::from(u16::from_ne_bytes([e, f]));
        program.extend([
            op(JUMP_IF_OTHER, 4, 0, 1, start),
            op(JUMP_IF_EQUAL, 5, 0, 0, end),
        ]);
    }
    let to_pass = program.len();
    program.extend(pass);
    let behind = program.len();
    // Jumps so far whose goal was not known yet. Distances are from the next instruction.
    for (at, step) in program.iter_mut().enumerate().take(to_pass) {
        let goal = match step.code {
            JUMP_IF_ABOVE => to_pass,
            JUMP_IF_OTHER | JUMP_IF_EQUAL if step.offset == 0 => behind,
            _ => continue,
        };
        step.offset = i16::try_from(goal - at - 1).unwrap_or_default();
    }
    program
}

const fn op(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> Instruction {
    Instruction::new(code, to, from, offset, constant)
}
