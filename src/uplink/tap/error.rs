//! Each way in which a tap cannot be had, said so that the operator knows what to do.

use std::io;

use crate::uplink::if_name::{NameFault, name_fault};
use crate::values::Counted;

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
    #[error("tap {name} has no queue left for {}", Counted(*pairs, "queue pair"))]
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
    #[error(
        "{} for {}: one for each pair is needed",
        Counted(*fds, "tap descriptor"),
        Counted(*pairs, "queue pair")
    )]
    FdCount { fds: usize, pairs: usize },
    /// Any other step failed.
    #[error("cannot {step} of tap {name}")]
    Setup {
        name: String,
        step: &'static str,
        source: io::Error,
    },
}

/// Checks what the kernel would refuse without saying why.
///
/// # Errors
/// [`TapError::Name`].
pub fn check_name(name: &str) -> Result<(), TapError> {
    match name_fault(name) {
        None => Ok(()),
        Some(reason) => Err(TapError::Name {
            name: name.to_owned(),
            reason,
        }),
    }
}
