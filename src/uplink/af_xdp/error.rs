//! Each way in which an interface cannot be attached to, said so that the operator knows what to do.

use std::io;

use rustix::io::Errno;

use crate::uplink::if_name::NameFault;
use crate::values::Counted;

/// Why an interface could not be attached to.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum AfXdpError {
    /// The name cannot be one of an interface.
    #[error("{name:?} cannot be the name of an interface: {reason}")]
    Name { name: String, reason: NameFault },
    /// A step needs a capability.
    #[error("no permission to {step}: run with {capability}")]
    Permission {
        step: &'static str,
        capability: &'static str,
        source: io::Error,
    },
    /// The kernel was built without XDP sockets or is too old for them.
    #[error("the kernel has no XDP sockets as needed (CONFIG_XDP_SOCKETS)")]
    NotInKernel(#[source] io::Error),
    /// There is no such interface.
    #[error("interface {name} does not exist: create it first")]
    NoInterface { name: String },
    /// The interface was removed or moved, and another one has its name.
    #[error("another interface is called {name} now")]
    Replaced { name: String },
    /// The interface carries something else.
    #[error("interface {name} carries no Ethernet frames")]
    NotEthernet { name: String },
    /// Somebody else has a program there.
    #[error("interface {name} has another XDP program: see it with 'ip link show {name}'")]
    OtherProgram { name: String, source: io::Error },
    /// The driver has no place for a program.
    #[error("the driver of {name} cannot take an XDP program at the moment: try the mode generic")]
    NotNative { name: String, source: io::Error },
    /// Another socket has the queue.
    #[error("receive queue {queue} of {name} is in use by another XDP socket")]
    QueueBusy {
        name: String,
        queue: u32,
        source: io::Error,
    },
    /// There are fewer queues than pairs, or more.
    #[error(
        "interface {name} receives by {} and the guest by {}, which must be as many, or frames \
         would be lost: 'ethtool -L {name} combined {wanted}' (a veth is made with 'numrxqueues \
         {wanted}'), or --queue-pairs {found}",
        Counted(*found, "queue"),
        Counted(*wanted, "queue pair")
    )]
    Queues {
        name: String,
        found: usize,
        wanted: usize,
    },
    /// A frame would not fit in a chunk.
    #[error("the MTU of {name} is {mtu}, and by XDP it can be {most} at most")]
    Mtu {
        name: String,
        mtu: usize,
        most: usize,
    },
    /// Merged frames would be dropped.
    #[error(
        "interface {name} merges frames before the program sees them, which would be lost: switch \
         that off with 'ethtool -K {name} gro off', or use the mode native if the driver can"
    )]
    Merges { name: String },
    /// More memory would be locked than may be.
    #[error(
        "cannot lock {kib} KiB of memory for {name}: raise RLIMIT_MEMLOCK (ulimit -l), run with \
         CAP_IPC_LOCK, or ask for a smaller ring"
    )]
    LockedMemory {
        name: String,
        kib: usize,
        source: io::Error,
    },
    /// Any other step failed.
    #[error("cannot {step} for {name}")]
    Setup {
        name: String,
        step: &'static str,
        source: io::Error,
    },
}

impl AfXdpError {
    /// Why there is no socket.
    pub(super) fn no_socket(errno: Errno) -> Self {
        Self::setup("open an XDP socket", "the interface", "CAP_NET_RAW")(errno.into())
    }

    /// A step of the set-up that failed, and the capabilities that it needs.
    pub(super) fn setup(
        step: &'static str,
        name: &str,
        capability: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let name = name.to_owned();
        move |source| match Errno::from_io_error(&source) {
            Some(Errno::NODEV | Errno::NXIO) => Self::NoInterface { name },
            Some(Errno::PERM | Errno::ACCESS) => Self::Permission {
                step,
                capability,
                source,
            },
            Some(Errno::AFNOSUPPORT | Errno::NOSYS | Errno::OPNOTSUPP) => Self::NotInKernel(source),
            _ => Self::Setup { name, step, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_about_the_number_of_queues_is_a_whole_command() {
        let error = AfXdpError::Queues {
            name: "w0".to_owned(),
            found: 2,
            wanted: 1,
        };
        let text = error.to_string();
        for part in [
            "receives by 2 queues and the guest by 1 queue pair,",
            "'ethtool -L w0 combined 1'",
            "'numrxqueues 1'",
            "--queue-pairs 2",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
