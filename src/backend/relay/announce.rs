//! The frame that tells switches where a guest is after it has moved.

/// Length of a frame on the wire without its checksum, at the least.
const FRAME_MIN: usize = 60;

/// Makes a broadcast reverse-ARP request of the given address, padded to the smallest frame.
///
/// Source: RFC 903; vhost-user protocol, `VHOST_USER_SEND_RARP`.
pub(super) fn rarp_frame(mac: [u8; 6]) -> Vec<u8> {
    const ETHERTYPE: [u8; 2] = [0x80, 0x35];
    const ETHERNET_TO_IPV4: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
    const REQUEST_REVERSE: [u8; 2] = [0, 3];

    let mut frame = Vec::with_capacity(FRAME_MIN);
    frame.extend_from_slice(&[0xff; 6]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&ETHERTYPE);
    frame.extend_from_slice(&ETHERNET_TO_IPV4);
    frame.extend_from_slice(&REQUEST_REVERSE);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&mac);
    frame.resize(FRAME_MIN, 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_a_padded_broadcast_request_of_the_address() {
        let frame = rarp_frame([0x52, 0x54, 0, 1, 2, 3]);
        let expected =
            "ffffffffffff5254000102038035000108000604000352540001020300000000525400010203";
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(frame.len(), 60);
        assert_eq!(&hex[..expected.len()], expected);
        assert!(frame[38..].iter().all(|byte| *byte == 0));
    }
}
