//! The filter of a guest whose addresses are known: frames to them, and to groups.
//!
//! An interface gets frames that are for the host itself, and for everybody if somebody made it
//! promiscuous; the kernel drops those before they take a slot.
//!
//! Source: `Documentation/networking/filter.rst`, the classic filter.

use libc::sock_filter;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Most addresses of one guest. The kernel takes 4096 instructions.
pub const MACS_MAX: usize = 64;

const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_IF_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Passes nothing.
pub(super) fn nothing() -> Vec<sock_filter> {
    vec![step(RETURN, 0)]
}

/// Passes every frame.
pub(super) fn everything() -> Vec<sock_filter> {
    vec![step(RETURN, u32::MAX)]
}

/// Passes frames to a group or to one of `macs`.
pub(super) fn for_addresses(macs: &[Mac]) -> Vec<sock_filter> {
    let pass = step(RETURN, u32::MAX);
    let mut program = vec![step(LOAD_BYTE, 0), jump(JUMP_IF_SET, 1, 1), pass];
    for mac in macs {
        let [a, b, c, d, e, f] = *mac;
        program.extend([
            step(LOAD_WORD, 0),
            jump(JUMP_IF_EQUAL, u32::from_be_bytes([a, b, c, d]), 3),
            step(LOAD_HALF, 4),
            jump(JUMP_IF_EQUAL, u32::from_be_bytes([0, 0, e, f]), 1),
            pass,
        ]);
    }
    program.push(step(RETURN, 0));
    program
}

fn step(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0)
}

/// Goes on with the next instruction, or leaves out as many as `otherwise`.
fn jump(code: u32, k: u32, otherwise: u8) -> sock_filter {
    sock_filter {
        // Instructions have two bytes; the constants are wider.
        code: u16::try_from(code).unwrap_or_default(),
        jt: 0,
        jf: otherwise,
        k,
    }
}

/// Reads an address as `52:54:00:12:34:56`.
///
/// # Errors
/// Says what was expected.
pub(in crate::uplink) fn parse_mac(text: &str) -> Result<Mac, String> {
    let expected = || "expected an address of a single device such as 52:54:00:12:34:56".to_owned();
    let mut mac = [0; 6];
    let mut digits = text.split(':');
    for byte in &mut mac {
        let is_pair = |pair: &&str| pair.len() == 2 && pair.bytes().all(|c| c.is_ascii_hexdigit());
        let pair = digits.next().filter(is_pair);
        let value = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        *byte = value.ok_or_else(expected)?;
    }
    if digits.next().is_some() || mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(expected());
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_their_usual_form_only() {
        assert_eq!(
            parse_mac("52:54:00:aB:34:56"),
            Ok([0x52, 0x54, 0, 0xab, 0x34, 0x56])
        );
        for wrong in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "52:54:00:12:34:5",
            "52-54-00-12-34-56",
            "+2:54:00:12:34:56",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
        ] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_program_for_the_most_addresses_is_one_the_kernel_takes() {
        let program = for_addresses(&[[2, 0, 0, 0, 0, 1]; MACS_MAX]);
        assert_eq!(program.len(), 4 + 5 * MACS_MAX);
    }
}
