//! Whole messages and their descriptors over a unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost::vhost_user::message::FrontendReq;

use super::End;
use super::fault::Fault;
use super::message::{HEADER_LEN, Header, Message, PAYLOAD_MAX};
use crate::backend::watch::{Wake, Watch};

/// Descriptors that are taken with one piece of a message. Those beyond are closed by the kernel
/// and end the connection: no message has more than 32.
const DESCRIPTORS_MAX: usize = 64;

/// Reads a request of the front-end with its descriptors, however it was cut in pieces.
///
/// # Errors
/// The end of the connection, whoever wanted it.
pub(super) fn read_request(
    socket: &UnixStream,
    watch: &Watch,
) -> Result<(Message, Vec<OwnedFd>), End> {
    let mut descriptors = Vec::new();
    let mut header = [0; HEADER_LEN];
    read_exact(socket, &mut header, &mut descriptors, watch)?;
    let header = Header::decode(&header);
    let (request, need_reply) = header.as_request()?;
    let mut payload = vec![0; header.size as usize];
    read_exact(socket, &mut payload, &mut descriptors, watch)?;
    Ok((
        Message {
            request,
            need_reply,
            payload,
        },
        descriptors,
    ))
}

/// Reads the payload of the daemon's reply.
///
/// # Errors
/// [`End::Refused`] when the daemon closes the connection in place of a reply.
pub(super) fn read_reply(
    socket: &UnixStream,
    request: FrontendReq,
    watch: &Watch,
) -> Result<Vec<u8>, End> {
    let refused = |end| match end {
        End::Closed | End::CutOff => End::Refused(request),
        end => end,
    };
    let mut header = [0; HEADER_LEN];
    read_exact(socket, &mut header, &mut Vec::new(), watch).map_err(refused)?;
    let size = Header::decode(&header).size as usize;
    let mut payload = vec![0; size.min(PAYLOAD_MAX)];
    read_exact(socket, &mut payload, &mut Vec::new(), watch).map_err(refused)?;
    Ok(payload)
}

/// Sends a message to the daemon, waiting while it is busy.
///
/// # Errors
/// [`End::Refused`] when the daemon has closed the connection.
pub(super) fn send_to_daemon(
    socket: &UnixStream,
    message: &Message,
    descriptors: &[OwnedFd],
    watch: &Watch,
) -> Result<(), End> {
    let bytes = message.encode();
    let mut descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match send(socket, rest, &descriptors) {
            Ok(sent) => {
                rest = &rest[sent..];
                descriptors.clear();
            }
            Err(Errno::AGAIN) => wait(watch.writable(socket.as_fd())?, watch)?,
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(End::Refused(message.request)),
            Err(error) => return Err(End::Broken(error.into())),
        }
    }
    Ok(())
}

/// Sends a reply to the front-end. One that lets thousands of replies pile up unread is cut off
/// rather than waited for. One that is gone may have left requests: they are still handled, and
/// reading finds the end.
///
/// # Errors
/// The end of the connection.
pub(super) fn send_to_front_end(socket: &UnixStream, bytes: &[u8]) -> Result<(), End> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(socket, rest, &[]) {
            Ok(sent) => rest = &rest[sent..],
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(error) => return Err(End::Broken(error.into())),
        }
    }
    Ok(())
}

/// Fills the buffer and collects the descriptors that come with any part of it.
fn read_exact(
    socket: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    watch: &Watch,
) -> Result<(), End> {
    let len = buffer.len();
    let mut filled = 0;
    while filled < len {
        match receive(socket, &mut buffer[filled..], descriptors) {
            // Only a first piece may be missing: then the last message was complete.
            Ok(0) if filled == 0 && len == HEADER_LEN => return Err(End::Closed),
            Ok(0) => return Err(End::CutOff),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(watch.readable(socket.as_fd())?, watch)?;
            }
            // Said once when the peer has left replies unread; its last requests come behind it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => return Err(End::Broken(error)),
        }
    }
    Ok(())
}

/// Turns what has ended a wait into the end of the connection, or nothing.
pub(super) fn wait(wake: Wake, watch: &Watch) -> Result<(), End> {
    match wake {
        Wake::Stop => Err(End::Stopped),
        Wake::Link if watch.link_is_down() => Err(End::LinkDown),
        Wake::Link | Wake::Ready(_) | Wake::Timeout => Ok(()),
    }
}

fn receive(
    socket: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::other("more descriptors than any message has"));
    }
    Ok(received.bytes)
}

fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        End::Fault(fault)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Broken(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::backend::watch::{LinkHandle, StopHandle};

    fn watch() -> Watch {
        Watch::new(StopHandle::new().unwrap(), LinkHandle::new().unwrap())
    }

    #[test]
    fn message_cut_into_bytes_is_put_together() {
        let (mut front, socket) = UnixStream::pair().unwrap();
        let message = Message::with_ring_state(FrontendReq::SET_VRING_NUM, 1, 256);
        let bytes = message.encode();
        let writer = std::thread::spawn(move || {
            for byte in bytes {
                front.write_all(&[byte]).unwrap();
            }
            front
        });
        let (read, descriptors) = read_request(&socket, &watch()).unwrap();
        assert_eq!(read, message);
        assert!(descriptors.is_empty());
        drop(writer.join().unwrap());
        assert!(matches!(read_request(&socket, &watch()), Err(End::Closed)));
    }

    #[test]
    fn end_inside_a_message_is_told_from_one_behind_it() {
        let bytes = Message::with_u64(FrontendReq::SET_FEATURES, 1).encode();
        for len in 1..bytes.len() {
            let (mut front, socket) = UnixStream::pair().unwrap();
            front.write_all(&bytes[..len]).unwrap();
            drop(front);
            let end = read_request(&socket, &watch()).unwrap_err();
            assert!(matches!(end, End::CutOff), "{len}: {end:?}");
        }
    }

    #[test]
    fn descriptors_come_with_their_message() {
        let (front, socket) = UnixStream::pair().unwrap();
        let event = StopHandle::new().unwrap();
        let message = Message::with_u64(FrontendReq::SET_VRING_KICK, 0);
        send(&front, &message.encode(), &[event.as_fd(), event.as_fd()]).unwrap();
        send(&front, &message.encode(), &[event.as_fd()]).unwrap();
        assert_eq!(read_request(&socket, &watch()).unwrap().1.len(), 2);
        assert_eq!(read_request(&socket, &watch()).unwrap().1.len(), 1);
    }

    #[test]
    fn more_descriptors_than_fit_end_the_connection() {
        let (front, socket) = UnixStream::pair().unwrap();
        let event = StopHandle::new().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let many = vec![event.as_fd(); 100];
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = Message::with_u64(FrontendReq::SET_VRING_KICK, 0).encode();
        sendmsg(
            &front,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        assert!(matches!(
            read_request(&socket, &watch()),
            Err(End::Broken(_))
        ));
    }

    #[test]
    fn reading_ends_when_the_program_or_the_link_does() {
        let (_front, socket) = UnixStream::pair().unwrap();
        let (stop, link) = (StopHandle::new().unwrap(), LinkHandle::new().unwrap());
        let watch = Watch::new(stop.clone(), link.clone());
        link.hold_down(true);
        assert!(matches!(read_request(&socket, &watch), Err(End::LinkDown)));
        stop.stop();
        assert!(matches!(read_request(&socket, &watch), Err(End::Stopped)));
    }
}
