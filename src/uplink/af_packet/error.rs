//! Each way in which an interface cannot be attached to, said so that the operator knows what to do.

use std::io;

use rustix::io::Errno;

use crate::uplink::if_name::NameFault;

/// Why an interface could not be attached to.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum AfPacketError {
    /// The name cannot be one of an interface.
    #[error("{name:?} cannot be the name of an interface: {reason}")]
    Name { name: String, reason: NameFault },
    /// Packet sockets need a capability.
    #[error("no permission for a packet socket: run with CAP_NET_RAW in the interface's namespace")]
    Permission(#[source] io::Error),
    /// The kernel was built without packet sockets.
    #[error("the kernel has no packet sockets (CONFIG_PACKET)")]
    NotInKernel(#[source] io::Error),
    /// There is no such interface.
    #[error("interface {name} does not exist: create it first")]
    NoInterface { name: String },
    /// The interface carries something else.
    #[error("interface {name} carries no Ethernet frames")]
    NotEthernet { name: String },
    /// The kernel has no memory for the ring.
    #[error(
        "no memory for a ring of {slots} slots of {slot_len} bytes on {name}: ask for fewer slots"
    )]
    RingMemory {
        name: String,
        slots: usize,
        slot_len: usize,
        source: io::Error,
    },
    /// Older kernels let no queue into a group while the interface is down.
    #[error("the queues of {name} cannot be put together: bring the interface up first")]
    Fanout { name: String, source: io::Error },
    /// Any other step failed.
    #[error("cannot {step} for {name}")]
    Setup {
        name: String,
        step: &'static str,
        source: io::Error,
    },
}

impl AfPacketError {
    /// Why there is no packet socket.
    pub(super) fn no_socket(source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => Self::Permission(source),
            Some(Errno::AFNOSUPPORT) => Self::NotInKernel(source),
            _ => Self::Setup {
                name: "a packet socket".to_owned(),
                step: "get a descriptor",
                source,
            },
        }
    }

    /// A step of the set-up that failed.
    pub(super) fn setup(step: &'static str, name: &str) -> impl FnOnce(io::Error) -> Self {
        let name = name.to_owned();
        move |source| match Errno::from_io_error(&source) {
            Some(Errno::NODEV | Errno::NXIO) => Self::NoInterface { name },
            _ => Self::Setup { name, step, source },
        }
    }
}
