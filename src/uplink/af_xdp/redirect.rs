//! The program at an interface, and what else is there as long as the sockets are.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use log::info;
use rustix::io::Errno;

use super::error::AfXdpError;
use super::interface::{Interface, Mode};
use super::program::redirecting;
use crate::sys::bpf::{XdpPlace, link_xdp, load_xdp, xsk_map, xsk_map_set};
use crate::sys::packet::{add_membership, packet_socket};
use crate::uplink::af_packet::memberships;

/// A program at an interface.
#[derive(Debug)]
pub(super) struct Redirect {
    name: String,
    index: u32,
    place: XdpPlace,
    /// Frames may come from a sender that leaves their checksums unfinished.
    has_unfinished: bool,
    sockets: OwnedFd,
    /// Takes the program off when it is closed.
    _link: OwnedFd,
    /// Has the interface receive what is the guest's.
    _members: OwnedFd,
}

impl Redirect {
    /// Puts the program at the interface `index`.
    pub(super) fn attach(
        interface: &Interface,
        index: u32,
        has_unfinished: bool,
    ) -> Result<Self, AfXdpError> {
        let name = interface.name();
        let macs = &interface.config().macs;
        let bpf = |step| AfXdpError::setup(step, name, "CAP_BPF and CAP_NET_ADMIN");
        let queues = u32::try_from(interface.queues()).unwrap_or(u32::MAX);
        let sockets = xsk_map(queues).map_err(bpf("make a map of sockets"))?;
        let program = redirecting(sockets.as_fd(), macs);
        let program = load_xdp(&program).map_err(bpf("load an XDP program"))?;
        let (link, place) = link(interface, program.as_fd(), index)?;
        Ok(Self {
            name: name.to_owned(),
            index,
            place,
            has_unfinished,
            sockets,
            _link: link,
            _members: members(interface, index)?,
        })
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }

    pub(super) const fn place(&self) -> XdpPlace {
        self.place
    }

    pub(super) const fn has_unfinished(&self) -> bool {
        self.has_unfinished
    }

    /// Has the frames of a queue go to its socket.
    pub(super) fn lead(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), AfXdpError> {
        xsk_map_set(self.sockets.as_fd(), queue, socket).map_err(AfXdpError::setup(
            "lead frames to a socket",
            &self.name,
            "CAP_BPF and CAP_NET_ADMIN",
        ))
    }
}

/// Attaches the program where it can be and is wanted.
fn link(
    interface: &Interface,
    program: BorrowedFd<'_>,
    index: u32,
) -> Result<(OwnedFd, XdpPlace), AfXdpError> {
    let name = interface.name();
    let mode = interface.config().mode;
    if mode != Mode::Generic {
        match link_xdp(program, index, XdpPlace::Driver) {
            Ok(link) => return Ok((link, XdpPlace::Driver)),
            Err(source) => match Errno::from_io_error(&source) {
                Some(Errno::BUSY | Errno::EXIST | Errno::PERM | Errno::NODEV) => {
                    return Err(not_linked(name, source));
                }
                _ if mode == Mode::Native => {
                    let name = name.to_owned();
                    return Err(AfXdpError::NotNative { name, source });
                }
                _ => info!("the driver of {name} takes no XDP program, so it is generic: {source}"),
            },
        }
    }
    let link = link_xdp(program, index, XdpPlace::Stack);
    let link = link.map_err(|source| not_linked(name, source))?;
    Ok((link, XdpPlace::Stack))
}

fn not_linked(name: &str, source: std::io::Error) -> AfXdpError {
    match Errno::from_io_error(&source) {
        // The latter if it is in the other place.
        Some(Errno::BUSY | Errno::EXIST) => AfXdpError::OtherProgram {
            name: name.to_owned(),
            source,
        },
        _ => AfXdpError::setup("attach an XDP program", name, "CAP_NET_ADMIN")(source),
    }
}

/// A packet socket that receives nothing, and is there for what its interface has to receive.
fn members(interface: &Interface, index: u32) -> Result<OwnedFd, AfXdpError> {
    let setup = |step| AfXdpError::setup(step, interface.name(), "CAP_NET_RAW");
    let socket = packet_socket().map_err(setup("open a packet socket"))?;
    for membership in memberships(&interface.config().macs) {
        let added = add_membership(socket.as_fd(), index, membership);
        added.map_err(setup("receive what is the guest's"))?;
    }
    Ok(socket)
}
