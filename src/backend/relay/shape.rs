//! Whether a request has the size, the descriptors and the range of values that it must have.
//!
//! The daemon's own checks come later and close the connection as well; here they are complete
//! (an index is looked at before it is cut to 16 bits, sums of a memory region cannot wrap) and
//! tell the log what was wrong.

use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES};

use super::fault::Fault;
use super::message::{Message, NO_DESCRIPTOR};

const RING_ADDRESSES: usize = 40;
/// Bytes of one region: guest address, size, user address, offset in the file.
pub(super) const REGION: usize = 32;
/// Bytes in front of the first region, or the only one.
pub(super) const TABLE_HEADER: usize = 8;
const ONE_REGION: usize = TABLE_HEADER + REGION;
const CONFIG_HEADER: usize = 12;

/// Checks a message against its definition and says how many of its descriptors are to be used;
/// the others are to be closed.
///
/// # Errors
/// The fault found first. Requests of features that this daemon never offers are faults, too.
pub(super) fn check(message: &Message, descriptors: usize, rings: u32) -> Result<usize, Fault> {
    use FrontendReq as Req;

    match message.request {
        Req::GET_FEATURES
        | Req::SET_OWNER
        | Req::RESET_OWNER
        | Req::GET_PROTOCOL_FEATURES
        | Req::GET_QUEUE_NUM
        | Req::GET_MAX_MEM_SLOTS
        | Req::RESET_DEVICE
        | Req::GET_STATUS => size_is(message, 0)?,
        Req::SET_FEATURES
        | Req::SET_PROTOCOL_FEATURES
        | Req::SEND_RARP
        | Req::NET_SET_MTU
        | Req::SET_STATUS => size_is(message, 8)?,
        Req::SET_VRING_NUM | Req::GET_VRING_BASE => ring_state(message, rings)?,
        Req::SET_VRING_BASE => {
            ring_state(message, rings)?;
            at_most(message, message.u32_at(4), u16::MAX.into())?;
        }
        Req::SET_VRING_ENABLE => {
            ring_state(message, rings)?;
            at_most(message, message.u32_at(4), 1)?;
        }
        Req::SET_VRING_ADDR => {
            size_is(message, RING_ADDRESSES)?;
            ring(message, message.u32_at(0).into(), rings)?;
        }
        Req::SET_VRING_KICK | Req::SET_VRING_CALL | Req::SET_VRING_ERR => {
            return ring_event(message, descriptors, rings);
        }
        Req::SET_MEM_TABLE => return memory_table(message, descriptors),
        Req::ADD_MEM_REG => {
            size_is(message, ONE_REGION)?;
            region(message, TABLE_HEADER)?;
            return exactly(message, descriptors, 1);
        }
        Req::REM_MEM_REG => {
            size_is(message, ONE_REGION)?;
            region(message, TABLE_HEADER)?;
            // Source: vhost-user protocol, VHOST_USER_REM_MEM_REG: a descriptor should not come
            // along; one that does is closed unused.
            return exactly(message, descriptors.saturating_sub(1), 0);
        }
        Req::GET_CONFIG | Req::SET_CONFIG => {
            let told = message.u32_at(4) as usize;
            size_is(message, CONFIG_HEADER.saturating_add(told))?;
        }
        request => return Err(Fault::NotNegotiated(request)),
    }
    exactly(message, descriptors, 0)
}

fn ring_event(message: &Message, descriptors: usize, rings: u32) -> Result<usize, Fault> {
    size_is(message, 8)?;
    let value = message.u64_at(0);
    ring(message, value & !NO_DESCRIPTOR, rings)?;
    if value & NO_DESCRIPTOR != 0 {
        // One that comes although the flag denies it is closed.
        return exactly(message, descriptors.saturating_sub(1), 0);
    }
    exactly(message, descriptors, 1)
}

fn memory_table(message: &Message, descriptors: usize) -> Result<usize, Fault> {
    let count = message.u32_at(0) as usize;
    if count == 0 || count > MAX_ATTACHED_FD_ENTRIES {
        return Err(Fault::Value {
            request: message.request,
            value: count as u64,
        });
    }
    size_is(message, TABLE_HEADER + count * REGION)?;
    for index in 0..count {
        region(message, TABLE_HEADER + index * REGION)?;
    }
    exactly(message, descriptors, count)
}

/// A region is not empty, and none of its three ranges wraps.
fn region(message: &Message, at: usize) -> Result<(), Fault> {
    let size = message.u64_at(at + 8);
    let starts = [at, at + 16, at + 24].map(|field| message.u64_at(field));
    if size != 0 && starts.iter().all(|start| start.checked_add(size).is_some()) {
        return Ok(());
    }
    Err(Fault::Value {
        request: message.request,
        value: size,
    })
}

fn ring_state(message: &Message, rings: u32) -> Result<(), Fault> {
    size_is(message, 8)?;
    ring(message, message.u32_at(0).into(), rings)
}

fn ring(message: &Message, index: u64, rings: u32) -> Result<(), Fault> {
    if index < u64::from(rings) {
        return Ok(());
    }
    Err(Fault::NoSuchRing {
        request: message.request,
        index,
        rings,
    })
}

fn at_most(message: &Message, value: u32, limit: u32) -> Result<(), Fault> {
    if value <= limit {
        return Ok(());
    }
    Err(Fault::Value {
        request: message.request,
        value: value.into(),
    })
}

fn size_is(message: &Message, expected: usize) -> Result<(), Fault> {
    let size = message.payload.len();
    if size == expected {
        return Ok(());
    }
    Err(Fault::Size {
        request: message.request,
        size,
    })
}

fn exactly(message: &Message, count: usize, expected: usize) -> Result<usize, Fault> {
    if count == expected {
        return Ok(expected);
    }
    Err(Fault::Descriptors {
        request: message.request,
        count,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RINGS: u32 = 4;

    /// Every request of the protocol with the payload that makes it legal, and its descriptors.
    fn legal() -> Vec<(Message, usize)> {
        use FrontendReq as Req;

        let plain = |request, payload: Vec<u8>| Message {
            request,
            need_reply: false,
            payload,
        };
        let region = |lead: Vec<u64>| {
            let words = [lead, vec![0x1000, 0x2000, 0x3000, 0]].concat();
            words
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect::<Vec<_>>()
        };
        let mut config = [0, 4, 0].map(u32::to_ne_bytes).concat();
        config.extend_from_slice(&[0; 4]);
        let mut address = vec![0; 40];
        address[0] = 3;
        vec![
            (plain(Req::GET_FEATURES, vec![]), 0),
            (Message::with_u64(Req::SET_FEATURES, 1), 0),
            (plain(Req::SET_OWNER, vec![]), 0),
            (plain(Req::RESET_OWNER, vec![]), 0),
            (plain(Req::SET_MEM_TABLE, region(vec![1])), 1),
            (Message::with_ring_state(Req::SET_VRING_NUM, 3, 256), 0),
            (plain(Req::SET_VRING_ADDR, address), 0),
            (Message::with_ring_state(Req::SET_VRING_BASE, 3, 65535), 0),
            (Message::with_ring_state(Req::GET_VRING_BASE, 3, 0), 0),
            (Message::with_u64(Req::SET_VRING_KICK, 3), 1),
            (Message::with_u64(Req::SET_VRING_CALL, 3), 1),
            (Message::with_u64(Req::SET_VRING_ERR, 3), 1),
            (plain(Req::GET_PROTOCOL_FEATURES, vec![]), 0),
            (Message::with_u64(Req::SET_PROTOCOL_FEATURES, 1), 0),
            (plain(Req::GET_QUEUE_NUM, vec![]), 0),
            (Message::with_ring_state(Req::SET_VRING_ENABLE, 3, 1), 0),
            (Message::with_u64(Req::SEND_RARP, 1), 0),
            (Message::with_u64(Req::NET_SET_MTU, 1500), 0),
            (plain(Req::GET_CONFIG, config.clone()), 0),
            (plain(Req::SET_CONFIG, config), 0),
            (plain(Req::RESET_DEVICE, vec![]), 0),
            (plain(Req::GET_MAX_MEM_SLOTS, vec![]), 0),
            (plain(Req::ADD_MEM_REG, region(vec![0])), 1),
            (plain(Req::REM_MEM_REG, region(vec![0])), 0),
            (Message::with_u64(Req::SET_STATUS, 1), 0),
            (plain(Req::GET_STATUS, vec![]), 0),
        ]
    }

    #[test]
    fn legal_messages_pass_with_their_descriptors_only() {
        for (message, descriptors) in legal() {
            assert_eq!(
                check(&message, descriptors, RINGS),
                Ok(descriptors),
                "{message:?}"
            );
            let tolerated = match message.request {
                FrontendReq::REM_MEM_REG => 1,
                _ => descriptors,
            };
            for count in (0..10).filter(|count| ![descriptors, tolerated].contains(count)) {
                let fault = check(&message, count, RINGS);
                assert!(
                    matches!(fault, Err(Fault::Descriptors { .. })),
                    "{message:?} {count}"
                );
            }
        }
    }

    #[test]
    fn payloads_of_any_other_length_are_faults() {
        for (message, descriptors) in legal() {
            for len in (0..64).filter(|len| *len != message.payload.len()) {
                let mut odd = message.clone();
                odd.payload.resize(len, 0);
                assert!(
                    check(&odd, descriptors, RINGS).is_err(),
                    "{message:?} of {len} bytes"
                );
            }
        }
    }

    #[test]
    fn ring_indices_are_checked_before_they_are_narrowed() {
        for index in [4, 5, 254, 255, 65535, 65536, 65539, u32::MAX] {
            for request in [
                FrontendReq::SET_VRING_NUM,
                FrontendReq::SET_VRING_BASE,
                FrontendReq::GET_VRING_BASE,
                FrontendReq::SET_VRING_ENABLE,
            ] {
                let message = Message::with_ring_state(request, index, 1);
                let fault = check(&message, 0, RINGS);
                assert!(
                    matches!(fault, Err(Fault::NoSuchRing { .. })),
                    "{message:?}"
                );
            }
            let mut payload = vec![0; 40];
            payload[..4].copy_from_slice(&index.to_ne_bytes());
            let message = Message {
                request: FrontendReq::SET_VRING_ADDR,
                need_reply: false,
                payload,
            };
            assert!(matches!(
                check(&message, 0, RINGS),
                Err(Fault::NoSuchRing { .. })
            ));
        }
        for value in [4, 0xff, 0x200, 0x203, 0x1_0000, 1 << 32, u64::MAX] {
            for request in [
                FrontendReq::SET_VRING_KICK,
                FrontendReq::SET_VRING_CALL,
                FrontendReq::SET_VRING_ERR,
            ] {
                let fault = check(&Message::with_u64(request, value), 1, RINGS);
                assert!(
                    matches!(fault, Err(Fault::NoSuchRing { .. })),
                    "{request:?} {value:#x}"
                );
            }
        }
    }

    #[test]
    fn event_without_descriptor_passes_and_a_stray_one_is_not_used() {
        let message = Message::with_u64(FrontendReq::SET_VRING_CALL, 2 | NO_DESCRIPTOR);
        assert_eq!(check(&message, 0, RINGS), Ok(0));
        assert_eq!(check(&message, 1, RINGS), Ok(0));
        assert!(check(&message, 2, RINGS).is_err());
    }

    #[test]
    fn regions_that_are_empty_or_wrap_are_faults() {
        let (good, _) = legal()
            .into_iter()
            .find(|(message, _)| message.request == FrontendReq::ADD_MEM_REG)
            .unwrap();
        for (field, value) in [(16, 0), (8, u64::MAX), (24, u64::MAX), (32, u64::MAX)] {
            let mut bad = good.clone();
            bad.payload[field..field + 8].copy_from_slice(&u64::to_ne_bytes(value));
            assert!(
                matches!(check(&bad, 1, RINGS), Err(Fault::Value { .. })),
                "{field}"
            );
        }
    }

    #[test]
    fn requests_of_features_never_offered_are_faults() {
        for number in [
            6, 7, 21, 22, 23, 26, 27, 28, 29, 30, 31, 32, 33, 35, 41, 42, 43, 44,
        ] {
            let request = FrontendReq::try_from(number).unwrap();
            let message = Message {
                request,
                need_reply: false,
                payload: vec![],
            };
            assert_eq!(
                check(&message, 0, RINGS),
                Err(Fault::NotNegotiated(request))
            );
        }
    }
}
