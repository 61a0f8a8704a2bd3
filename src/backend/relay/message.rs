//! One message of the protocol as bytes: header, request and payload. No sockets here.
//!
//! Source: vhost-user protocol, "Message specification". All numbers are in host byte order.

use std::fmt;

use vhost::vhost_user::message::FrontendReq;

use super::fault::Fault;

/// Bytes in front of the payload.
pub(super) const HEADER_LEN: usize = 12;

/// Largest payload that is read; the largest legal one is a memory table of 32 regions, 1032
/// bytes, or a configuration space. Source: the limit of the `vhost` crate.
pub(super) const PAYLOAD_MAX: usize = 4096;

/// Set in the first eight bytes of a kick, call or error message that carries no descriptor.
/// Source: vhost-user protocol, "A u64 integer" of `VHOST_USER_SET_VRING_KICK`.
pub(super) const NO_DESCRIPTOR: u64 = 1 << 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 0x3;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;

/// The fixed part of a message as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the request.
    pub(super) request: u32,
    /// Version and flags.
    pub(super) flags: u32,
    /// Bytes of payload that follow.
    pub(super) size: u32,
}

impl Header {
    /// Reads the three words.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            request: word(0),
            flags: word(4),
            size: word(8),
        }
    }

    /// The three words as they go over the socket.
    pub(super) fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.request.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }

    /// What the front-end asks for, and whether it waits for an acknowledgement.
    ///
    /// # Errors
    /// A fault for an unknown request, another version, a flag that a request cannot have, or a
    /// payload larger than [`PAYLOAD_MAX`].
    pub(super) fn as_request(self) -> Result<(FrontendReq, bool), Fault> {
        if self.flags & VERSION_MASK != VERSION {
            return Err(Fault::Version(self.flags & VERSION_MASK));
        }
        if self.flags & !(VERSION_MASK | NEED_REPLY) != 0 {
            return Err(Fault::Flags(self.flags));
        }
        let request =
            FrontendReq::try_from(self.request).map_err(|_| Fault::UnknownRequest(self.request))?;
        if self.size as usize > PAYLOAD_MAX {
            return Err(Fault::Size {
                request,
                size: self.size as usize,
            });
        }
        Ok((request, self.flags & NEED_REPLY != 0))
    }
}

/// A request of the front-end. Its descriptors travel beside it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// What is asked for.
    pub(super) request: FrontendReq,
    /// Whether the front-end waits for an acknowledgement.
    pub(super) need_reply: bool,
    /// The bytes behind the header.
    pub(super) payload: Vec<u8>,
}

impl Message {
    /// A message whose payload is one 64-bit number.
    pub(super) fn with_u64(request: FrontendReq, value: u64) -> Self {
        Self {
            request,
            need_reply: false,
            payload: value.to_ne_bytes().to_vec(),
        }
    }

    /// A message whose payload is the index of a ring and a number.
    pub(super) fn with_ring_state(request: FrontendReq, index: u32, num: u32) -> Self {
        let payload = [index.to_ne_bytes(), num.to_ne_bytes()].concat();
        Self {
            request,
            need_reply: false,
            payload,
        }
    }

    /// The 32-bit number at a place of the payload, 0 beyond its end.
    pub(super) fn u32_at(&self, at: usize) -> u32 {
        let bytes = self
            .payload
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    }

    /// The 64-bit number at a place of the payload, 0 beyond its end.
    pub(super) fn u64_at(&self, at: usize) -> u64 {
        let bytes = self
            .payload
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    }

    /// Header and payload as they go to the daemon.
    pub(super) fn encode(&self) -> Vec<u8> {
        let flags = if self.need_reply {
            VERSION | NEED_REPLY
        } else {
            VERSION
        };
        encode(self.request, flags, &self.payload)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.request)?;
        match self.payload.len() {
            0 => {}
            8 => write!(f, " {:#x}", self.u64_at(0))?,
            len => write!(f, " ({len} bytes)")?,
        }
        if self.need_reply {
            write!(f, ", reply wanted")
        } else {
            Ok(())
        }
    }
}

/// Header and payload of a reply as they go to the front-end.
pub(super) fn encode_reply(request: FrontendReq, payload: &[u8]) -> Vec<u8> {
    encode(request, VERSION | REPLY, payload)
}

fn encode(request: FrontendReq, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("payloads are at most PAYLOAD_MAX long");
    let mut bytes = Header {
        request: request.into(),
        flags,
        size,
    }
    .encode()
    .to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request: u32, flags: u32, size: u32) -> Header {
        Header {
            request,
            flags,
            size,
        }
    }

    #[test]
    fn header_survives_encoding() {
        let header = header(18, 9, 8);
        assert_eq!(Header::decode(&header.encode()), header);
    }

    #[test]
    fn request_needs_version_known_number_and_no_foreign_flag() {
        assert_eq!(
            header(18, 0x9, 8).as_request(),
            Ok((FrontendReq::SET_VRING_ENABLE, true))
        );
        assert_eq!(
            header(1, 0x1, 0).as_request(),
            Ok((FrontendReq::GET_FEATURES, false))
        );
        for version in [0, 2, 3] {
            assert_eq!(
                header(1, version, 0).as_request(),
                Err(Fault::Version(version))
            );
        }
        assert_eq!(header(1, 0x5, 0).as_request(), Err(Fault::Flags(0x5)));
        assert_eq!(header(1, 0x11, 0).as_request(), Err(Fault::Flags(0x11)));
        assert_eq!(
            header(0, 0x1, 0).as_request(),
            Err(Fault::UnknownRequest(0))
        );
        assert_eq!(
            header(45, 0x1, 0).as_request(),
            Err(Fault::UnknownRequest(45))
        );
        assert!(matches!(
            header(5, 0x1, 4097).as_request(),
            Err(Fault::Size { .. })
        ));
    }

    #[test]
    fn numbers_beyond_the_payload_are_zero() {
        let message = Message::with_u64(FrontendReq::SET_FEATURES, u64::MAX);
        assert_eq!(message.u64_at(0), u64::MAX);
        assert_eq!(message.u64_at(1), 0);
        assert_eq!(message.u32_at(6), 0);
    }
}
