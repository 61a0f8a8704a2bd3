//! Each way in which a tap cannot be had, said so that the operator knows what to do.

use std::io;

use crate::sys::ifreq::IF_NAME_MAX;

/// Why a tap could not be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum TapError {
    /// The name cannot be one of an interface.
    #[error("{name:?} cannot be the name of a tap: {reason}")]
    Name { name: String, reason: NameFault },
    /// No tun driver, or no device node for it.
    #[error(
        "/dev/net/tun is missing: load the tun module or pass descriptors of an open tap instead"
    )]
    NoTunDriver(#[source] io::Error),
    /// The device node is there but may not be opened.
    #[error("no permission to open /dev/net/tun: ask for its group, or pass an open tap instead")]
    OpenPermission(#[source] io::Error),
    /// The tap may not be created or attached to.
    #[error(
        "no permission for tap {name}: run with CAP_NET_ADMIN, or create it for this user \
         beforehand (ip tuntap add dev {name} mode tap user USER)"
    )]
    Permission { name: String, source: io::Error },
    /// Another process holds the only queue.
    #[error("tap {name} is busy: another process has it open and it has a single queue")]
    Busy { name: String },
    /// The tap exists with a single queue.
    #[error(
        "tap {name} is single-queue but {pairs} queue pairs were asked for: create it with \
         multi_queue, or ask for one pair"
    )]
    SingleQueue { name: String, pairs: usize },
    /// Another interface has the name.
    #[error("interface {name} exists but is no tap")]
    WrongKind { name: String },
    /// The kernel has no queue left for this tap.
    #[error("tap {name} has no queue left for {pairs} queue pairs")]
    NoQueueLeft { name: String, pairs: usize },
    /// The tap was opened by somebody who did not ask for the virtio-net header.
    #[error(
        "tap {name} works without a virtio-net header: its first owner must open it with \
         IFF_VNET_HDR and IFF_NO_PI"
    )]
    NoVnetHdr { name: String },
    /// The tap was opened by somebody who asked for protocol information before each frame.
    #[error(
        "tap {name} puts four bytes of protocol information before each frame: its first owner \
         must open it with IFF_NO_PI"
    )]
    PacketInfo { name: String },
    /// The kernel keeps another header size than the one that was set.
    #[error("tap {name} keeps a virtio-net header of {got} bytes instead of {wanted}")]
    HdrLen {
        name: String,
        wanted: usize,
        got: usize,
    },
    /// The kernel keeps the header in the host's big-endian order.
    #[error("tap {name} refuses a little-endian virtio-net header")]
    ByteOrder { name: String },
    /// A descriptor named on the command line is not there.
    #[error("descriptor {fd} was not inherited")]
    NotInherited { fd: i32, source: io::Error },
    /// A given descriptor belongs to something else.
    #[error("descriptor {fd} is no tap")]
    NotATap { fd: i32, source: io::Error },
    /// A given descriptor belongs to a tun device, which carries IP packets.
    #[error("descriptor {fd} belongs to {name}, which carries IP packets, not Ethernet frames")]
    NotEthernet { fd: i32, name: String },
    /// A given descriptor of `/dev/net/tun` was never attached to a device.
    #[error("descriptor {fd} was opened but not attached to a tap")]
    NotAttached { fd: i32, source: io::Error },
    /// The descriptors are not those of one device.
    #[error("descriptor {fd} belongs to tap {other}, the others to {name}: all must be of one tap")]
    MixedDevices {
        fd: i32,
        name: String,
        other: String,
    },
    /// Another number of descriptors than of queue pairs.
    #[error("{fds} tap descriptors for {pairs} queue pairs: one for each pair is needed")]
    FdCount { fds: usize, pairs: usize },
    /// Any other step failed.
    #[error("cannot {step} of tap {name}")]
    Setup {
        name: String,
        step: &'static str,
        source: io::Error,
    },
}

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFault {
    /// Nothing at all.
    Empty,
    /// More than 15 bytes.
    TooLong,
    /// One of the two directory names.
    Dots,
    /// A slash, a colon, a space or a percent sign.
    Character(char),
}

impl std::fmt::Display for NameFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::TooLong => write!(f, "it is longer than {IF_NAME_MAX} bytes"),
            Self::Dots => f.write_str("it names a directory"),
            Self::Character(c) => write!(f, "{c:?} is not allowed"),
        }
    }
}

/// Checks what the kernel would refuse without saying why.
///
/// Source: `dev_valid_name`, `net/core/dev.c`; the percent sign, too, because the kernel takes it
/// for a pattern.
///
/// # Errors
/// [`TapError::Name`].
pub fn check_name(name: &str) -> Result<(), TapError> {
    let odd = |c: char| matches!(c, '/' | ':' | '%' | '\0') || c.is_ascii_whitespace();
    let reason = if name.is_empty() {
        NameFault::Empty
    } else if name.len() > IF_NAME_MAX {
        NameFault::TooLong
    } else if name == "." || name == ".." {
        NameFault::Dots
    } else if let Some(c) = name.chars().find(|&c| odd(c)) {
        NameFault::Character(c)
    } else {
        return Ok(());
    };
    Err(TapError::Name {
        name: name.to_owned(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        let fault = |name| match check_name(name) {
            Err(TapError::Name { reason, .. }) => Some(reason),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        };
        assert_eq!(fault("tap0"), None);
        assert_eq!(fault("fifteen-letters"), None);
        assert_eq!(fault("sixteen-letters!"), Some(NameFault::TooLong));
        assert_eq!(fault(""), Some(NameFault::Empty));
        assert_eq!(fault(".."), Some(NameFault::Dots));
        assert_eq!(fault("a/b"), Some(NameFault::Character('/')));
        assert_eq!(fault("tap%d"), Some(NameFault::Character('%')));
        assert_eq!(fault("tap 0"), Some(NameFault::Character(' ')));
    }
}
