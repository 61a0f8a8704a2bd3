//! A front-end that says whatever a test wants it to say.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub(crate) use vhost::vhost_user::message::FrontendReq as Req;

/// The virtio feature that says that protocol features exist.
pub(crate) const PROTOCOL_BIT: u64 = 1 << 30;
/// Flag of a kick, call or error message without descriptor.
pub(crate) const NO_DESCRIPTOR: u64 = 1 << 8;
/// Bytes of guest memory.
pub(crate) const MEMORY: u64 = 0x10_0000;
/// Where the front-end says it has mapped the memory.
pub(crate) const USER_BASE: u64 = 0x7f00_0000_0000;
/// Entries of the rings that [`FrontEnd::start_ring`] makes.
pub(crate) const RING_SIZE: u32 = 256;

const NEED_REPLY: u32 = 8;
const REPLY: u32 = 4;

/// One end of a connection.
pub(crate) struct FrontEnd {
    pub(crate) socket: UnixStream,
}

impl FrontEnd {
    pub(crate) fn connect(path: &Path) -> Self {
        Self {
            socket: UnixStream::connect(path).unwrap(),
        }
    }

    /// Sends a message as it is, legal or not.
    pub(crate) fn send(
        &self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let size = u32::try_from(payload.len()).unwrap();
        let mut bytes = [request, flags, size].map(u32::to_ne_bytes).concat();
        bytes.extend_from_slice(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(
            &self.socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        (&self.socket).write_all(&bytes[sent..])
    }

    /// Sends a message without waiting for anything.
    pub(crate) fn say(&self, request: Req, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send(request.into(), 1, payload, fds).unwrap();
    }

    /// Sends a message that has a reply of its own, returns its payload.
    pub(crate) fn ask(&self, request: Req, payload: &[u8]) -> Vec<u8> {
        self.say(request, payload, &[]);
        self.reply(request).expect("a reply")
    }

    /// The same for a reply that is one number.
    pub(crate) fn ask_number(&self, request: Req) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().unwrap())
    }

    /// Sends a message that is acknowledged, and waits until it is: then it has taken effect.
    /// `None` when the connection was closed instead.
    pub(crate) fn try_tell(
        &self,
        request: Req,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Option<u64> {
        self.send(request.into(), 1 | NEED_REPLY, payload, fds)
            .ok()?;
        Some(u64::from_ne_bytes(self.reply(request)?.try_into().unwrap()))
    }

    /// The same, for a message that must be taken.
    pub(crate) fn tell(&self, request: Req, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(self.try_tell(request, payload, fds), Some(0), "{request:?}");
    }

    /// Reads the reply to a request; `None` when the connection was closed instead.
    pub(crate) fn reply(&self, request: Req) -> Option<Vec<u8>> {
        let mut header = [0; 12];
        (&self.socket).read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), u32::from(request), "a reply to another request");
        assert_eq!(word(4), 1 | REPLY);
        let mut payload = vec![0; word(8) as usize];
        (&self.socket).read_exact(&mut payload).ok()?;
        Some(payload)
    }

    /// Waits until the other side closes the connection without a further word.
    pub(crate) fn expect_closed(&self) {
        let mut byte = [0];
        match (&self.socket).read(&mut byte) {
            Ok(0) => {}
            Ok(_) => panic!("something was sent instead"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }

    /// Takes all features that are offered, as QEMU does, up to and without `SET_FEATURES`.
    pub(crate) fn negotiate(&self) -> u64 {
        let features = self.ask_number(Req::GET_FEATURES);
        let protocol = self.ask_number(Req::GET_PROTOCOL_FEATURES);
        self.say(Req::SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes(), &[]);
        self.tell(Req::SET_OWNER, &[], &[]);
        features
    }

    /// Everything up to the point where rings can be started.
    pub(crate) fn prepare(&self, memory: &OwnedFd) {
        let features = self.negotiate();
        self.tell(Req::SET_FEATURES, &features.to_ne_bytes(), &[]);
        self.set_memory(memory);
    }

    pub(crate) fn set_memory(&self, memory: &OwnedFd) {
        let table = table(&[region(0)]);
        self.tell(Req::SET_MEM_TABLE, &table, &[memory.as_fd()]);
    }

    /// Size, base and addresses of a ring.
    pub(crate) fn configure_ring(&self, index: u32, base: u32) {
        self.tell(Req::SET_VRING_NUM, &state(index, RING_SIZE), &[]);
        self.tell(Req::SET_VRING_BASE, &state(index, base), &[]);
        self.tell(Req::SET_VRING_ADDR, &addresses(index), &[]);
    }

    /// Starts a ring and returns its kick and call.
    pub(crate) fn start_ring(&self, index: u32, base: u32) -> (OwnedFd, OwnedFd) {
        let (kick, call) = (event(), event());
        self.configure_ring(index, base);
        self.tell(
            Req::SET_VRING_KICK,
            &u64::from(index).to_ne_bytes(),
            &[kick.as_fd()],
        );
        self.tell(
            Req::SET_VRING_CALL,
            &u64::from(index).to_ne_bytes(),
            &[call.as_fd()],
        );
        (kick, call)
    }

    pub(crate) fn enable(&self, index: u32, value: u32) {
        self.tell(Req::SET_VRING_ENABLE, &state(index, value), &[]);
    }

    /// Stops a ring and returns its position.
    pub(crate) fn stop_ring(&self, index: u32) -> u32 {
        let reply = self.ask(Req::GET_VRING_BASE, &state(index, 0));
        assert_eq!(reply[..4], index.to_ne_bytes());
        u32::from_ne_bytes(reply[4..].try_into().unwrap())
    }
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// Guest memory of [`MEMORY`] bytes.
pub(crate) fn memory() -> OwnedFd {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, MEMORY).unwrap();
    memory
}

/// A region of the size of the whole memory at this guest address: address, size, user address,
/// offset.
pub(crate) fn region(guest: u64) -> [u64; 4] {
    [guest, MEMORY, USER_BASE + guest, 0]
}

/// The payload of `SET_MEM_TABLE`.
pub(crate) fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    words(&[&[regions.len() as u64], regions.as_flattened()].concat())
}

/// The payload of `ADD_MEM_REG` and `REM_MEM_REG`.
pub(crate) fn one_region(region: [u64; 4]) -> Vec<u8> {
    words(&[&[0], &region[..]].concat())
}

pub(crate) fn state(index: u32, num: u32) -> Vec<u8> {
    [index, num].map(u32::to_ne_bytes).concat()
}

/// Guest addresses of a ring's descriptor, available and used part.
pub(crate) fn guest_addresses(index: u32) -> [u64; 3] {
    let base = u64::from(index) * 0x4000;
    [base, base + 0x1000, base + 0x2000]
}

/// The payload of `SET_VRING_ADDR`.
pub(crate) fn addresses(index: u32) -> Vec<u8> {
    let [desc, avail, used] = guest_addresses(index).map(|address| USER_BASE + address);
    words(&[index.into(), desc, used, avail, 0])
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
