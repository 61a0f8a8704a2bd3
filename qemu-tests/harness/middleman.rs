//! Somebody between QEMU and the daemon who acks USO in the guest's stead.
//!
//! No front-end negotiates USO over vhost-user: QEMU hides the bits from its guests unless a tap is
//! behind the device. A Linux guest takes datagrams merged by us all the same, because its driver
//! looks at the header of each packet and not at what was negotiated. So the middleman adds both
//! bits where the guest acks features, and hands on everything else as it is.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost_user_gro::device::Features;

/// Request, flags and size of the payload, four bytes each.
/// Source: QEMU `docs/interop/vhost-user.rst`, "Message Specification".
const HEADER: usize = 12;
const SET_FEATURES: u32 = 2;
/// Most descriptors in one message. Source: the same, `VHOST_USER_MAX_RAM_SLOTS`.
const DESCRIPTORS: usize = 32;

const USO: [Features; 2] = [Features::GUEST_USO4, Features::GUEST_USO6];

/// A socket for one QEMU. What serves it ends with QEMU's connection.
#[derive(Debug)]
pub(crate) struct Middleman {
    pub(crate) socket: PathBuf,
    acks: Arc<AtomicBool>,
}

impl Middleman {
    /// Listens beside the daemon's socket `daemon`.
    pub(crate) fn start(daemon: &Path) -> Result<Self> {
        let socket = daemon.with_extension("middle");
        let listener = UnixListener::bind(&socket)?;
        let acks = Arc::new(AtomicBool::new(true));
        let (daemon, acks_there) = (daemon.to_owned(), Arc::clone(&acks));
        std::thread::Builder::new()
            .name("middleman".into())
            .spawn(move || serve(&listener, &daemon, &acks_there))?;
        Ok(Middleman { socket, acks })
    }

    /// Whether USO is acked when the guest's driver starts the next time.
    pub(crate) fn ack(&self, acks: bool) {
        self.acks.store(acks, Ordering::SeqCst);
    }
}

fn serve(listener: &UnixListener, daemon: &Path, acks: &AtomicBool) -> Result<()> {
    let (front, _) = listener.accept()?;
    let back = UnixStream::connect(daemon).context("connect to the daemon")?;
    std::thread::scope(|scope| {
        scope.spawn(|| pass_on(&back, &front, |_| ()));
        pass_on(&front, &back, |message| {
            if acks.load(Ordering::SeqCst) {
                add_uso(message);
            }
        });
    });
    Ok(())
}

/// Messages one way, until either end closes; then nothing goes the other way any more, either.
fn pass_on(from: &UnixStream, to: &UnixStream, change: impl Fn(&mut [u8])) {
    while let Ok((mut message, descriptors)) = receive(from) {
        change(&mut message);
        if send(to, &message, &descriptors).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // The other direction may have done so.
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn add_uso(message: &mut [u8]) {
    let Some((header, payload)) = message.split_first_chunk_mut::<HEADER>() else {
        return;
    };
    let Ok(bits) = <&mut [u8; 8]>::try_from(payload) else {
        return;
    };
    let acked = Features::from_bits(u64::from_le_bytes(*bits));
    // Before there is a driver QEMU says what it would take itself.
    if header[..4] == SET_FEATURES.to_le_bytes() && acked.contains(Features::GUEST_CSUM) {
        let acked = USO.into_iter().fold(acked, |all, uso| all | uso);
        *bits = acked.bits().to_le_bytes();
    }
}

fn receive(from: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut message = vec![0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut header = [IoSliceMut::new(&mut message)];
    let got = recvmsg(from, &mut header, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    anyhow::ensure!(got.bytes > 0, "closed");
    let mut from = from;
    from.read_exact(&mut message[got.bytes..])?;
    let size = u32::from_le_bytes([message[8], message[9], message[10], message[11]]);
    message.resize(HEADER + usize::try_from(size)?, 0);
    from.read_exact(&mut message[HEADER..])?;
    Ok((message, descriptors))
}

fn send(to: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) -> Result<()> {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    let sent = sendmsg(
        to,
        &[IoSlice::new(message)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    let mut to = to;
    to.write_all(&message[sent..])?;
    Ok(())
}
