//! What a front-end can do wrong. Each ends the connection, nothing else.

use vhost::vhost_user::message::FrontendReq;

/// A message that the protocol does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::backend) enum Fault {
    /// The number of the request is not in the protocol.
    #[error("request number {0} is unknown")]
    UnknownRequest(u32),
    /// The request exists, but belongs to a feature that was not negotiated.
    #[error("{0:?} belongs to a feature that was not negotiated")]
    NotNegotiated(FrontendReq),
    /// Another version than 1.
    #[error("protocol version {0} instead of 1")]
    Version(u32),
    /// A reserved flag, or the flag that only replies have.
    #[error("header flags {0:#x} are not those of a request")]
    Flags(u32),
    /// The payload is not as long as this request's is.
    #[error("{request:?} with a payload of {size} bytes")]
    Size {
        /// What was asked for.
        request: FrontendReq,
        /// Length of the payload.
        size: usize,
    },
    /// More or fewer descriptors than this request has.
    #[error("{request:?} with {count} descriptors instead of {expected}")]
    Descriptors {
        /// What was asked for.
        request: FrontendReq,
        /// How many came.
        count: usize,
        /// How many belong to it.
        expected: usize,
    },
    /// A ring that does not exist.
    #[error("{request:?} for ring {index}, there are {rings}")]
    NoSuchRing {
        /// What was asked for.
        request: FrontendReq,
        /// The index as it came.
        index: u64,
        /// Number of rings.
        rings: u32,
    },
    /// A number in the payload that makes no sense.
    #[error("{request:?} with value {value:#x}")]
    Value {
        /// What was asked for.
        request: FrontendReq,
        /// The first such number.
        value: u64,
    },
    /// A region of memory that its file does not hold.
    #[error("{request:?} with a file that is shorter than {end} bytes")]
    ShortFile {
        /// What was asked for.
        request: FrontendReq,
        /// Where the region ends in the file, in bytes.
        end: u64,
    },
    /// One region of memory more than there may be.
    #[error("ADD_MEM_REG beyond {max} regions")]
    TooManyRegions {
        /// How many there may be.
        max: usize,
    },
}
