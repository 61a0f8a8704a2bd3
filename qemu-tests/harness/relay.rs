//! A peer for the daemon's stream socket: frames go between it and a tap, as they are.
//!
//! It cuts the stream by code of its own, so that no mistake of the daemon's is made twice. While
//! nobody is connected, the tap's frames wait in the kernel's queue, which counts what it drops.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use vhost_user_gro::uplink::tap::{Persistence, Tap};
use vhost_user_gro::uplink::{FramePool, TxFrame, Uplink, UplinkQueue};
use vhost_user_gro::wire::VnetHdr;

use super::attachment::Passed;

/// Frames that wait for room in the socket; the next ones wait in the tap.
const WAITING: usize = 64;
/// No Ethernet frame is longer: 64 KiB of IP packet, a header and two tags.
const LONGEST: usize = 65_535 + 14 + 8;

/// Frames that a relay has seen, over all its connections.
#[derive(Debug, Default)]
struct Relayed {
    /// From the tap, handed over, if only in part.
    to_daemon: AtomicU64,
    /// From the tap, not handed over when their connection ended.
    lost: AtomicU64,
    /// From the daemon, taken by the tap.
    from_daemon: AtomicU64,
    /// From the daemon, refused by the tap.
    refused: AtomicU64,
}

/// A relay, which can be stopped and started again.
#[derive(Debug)]
pub(crate) struct Relay {
    socket: PathBuf,
    relayed: Arc<Relayed>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The tap stays open: what waits in it is not lost.
    Stopped(Wire),
    Running {
        stop: OwnedFd,
        thread: JoinHandle<Result<Wire>>,
    },
    Failed,
}

impl Relay {
    /// Listens at `socket` for one daemon at a time, whose frames go to `tap` and come from there.
    pub(crate) fn start(socket: PathBuf, tap: &str) -> Result<Self> {
        let mut tap = Tap::open(tap, 1, Persistence::Unchanged)?;
        let queue = tap.take_queues().into_iter().next().context("no queue")?;
        let relayed = Arc::<Relayed>::default();
        let wire = Wire {
            tap: queue,
            relayed: Arc::clone(&relayed),
        };
        let mut relay = Relay {
            socket,
            relayed,
            state: State::Stopped(wire),
        };
        relay.go_on()?;
        Ok(relay)
    }

    /// Listens again after [`stop`](Self::stop).
    pub(crate) fn go_on(&mut self) -> Result<()> {
        let State::Stopped(mut wire) = mem::replace(&mut self.state, State::Failed) else {
            bail!("the relay is not stopped");
        };
        let listener = UnixListener::bind(&self.socket)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let told = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || wire.run(&listener, &told).map(|()| wire))?;
        self.state = State::Running { stop, thread };
        Ok(())
    }

    /// What has gone through, with what the tap had no room for.
    pub(super) fn passed(&self, dropped_by_tap: u64) -> Passed {
        let Relayed {
            to_daemon,
            lost,
            from_daemon,
            refused,
        } = &*self.relayed;
        Passed {
            to_daemon: to_daemon.load(Relaxed),
            dropped: lost.load(Relaxed) + dropped_by_tap,
            from_daemon: from_daemon.load(Relaxed),
            refused: refused.load(Relaxed),
        }
    }

    /// Closes the connection in the middle of whatever is under way, and listens no more.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let State::Running { stop, thread } = mem::replace(&mut self.state, State::Failed) else {
            return Ok(());
        };
        rustix::io::write(&stop, &1_u64.to_ne_bytes())?;
        let wire = thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        self.state = State::Stopped(wire);
        std::fs::remove_file(&self.socket)?;
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            let text = format!("the relay at {}: {error:#}\n", self.socket.display());
            // Nobody reads it any more if that fails.
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
}

/// What the thread has.
struct Wire {
    tap: Box<dyn UplinkQueue>,
    relayed: Arc<Relayed>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

/// A daemon that is connected.
struct Connection {
    socket: UnixStream,
    /// Bytes of frames that are not whole yet.
    incoming: Vec<u8>,
    /// Frames on their way to the daemon, each behind its length.
    outgoing: VecDeque<Vec<u8>>,
    /// Bytes of the first that have left.
    sent: usize,
}

impl Wire {
    fn run(&mut self, listener: &UnixListener, stop: &OwnedFd) -> Result<()> {
        let pool = FramePool::new(WAITING);
        loop {
            let mut fds = [stop.as_fd(), listener.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            poll(&mut fds, None)?;
            if !fds[0].revents().is_empty() {
                return Ok(());
            }
            let (socket, _) = listener.accept()?;
            socket.set_nonblocking(true)?;
            let mut peer = Connection {
                socket,
                incoming: Vec::new(),
                outgoing: VecDeque::new(),
                sent: 0,
            };
            let is_stopped = self.serve(&mut peer, stop, &pool)?;
            // Nothing more comes in, and what has come is not lost.
            peer.socket.shutdown(Shutdown::Read)?;
            while self.receive(&mut peer)? {}
            // Of one that is cut the daemon has learnt.
            let cut = u64::from(peer.sent > 0);
            let lost = peer.outgoing.len() as u64 - cut;
            self.relayed.to_daemon.fetch_add(cut, Relaxed);
            self.relayed.lost.fetch_add(lost, Relaxed);
            if is_stopped {
                return Ok(());
            }
        }
    }

    /// Until the daemon hangs up, or until it is told to stop, which it says.
    fn serve(&mut self, peer: &mut Connection, stop: &OwnedFd, pool: &FramePool) -> Result<bool> {
        loop {
            let writing = if peer.outgoing.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            let tap = self.tap.fd();
            let mut fds = vec![
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(&peer.socket, PollFlags::IN | writing),
            ];
            if peer.outgoing.len() < WAITING {
                fds.push(PollFd::new(&tap, PollFlags::IN));
            }
            poll(&mut fds, None)?;
            if !fds[0].revents().is_empty() {
                return Ok(true);
            }
            drop(fds);
            self.take_from_tap(peer, pool)?;
            if !peer.write(&self.relayed) || !self.receive(peer)? {
                return Ok(false);
            }
        }
    }

    fn take_from_tap(&mut self, peer: &mut Connection, pool: &FramePool) -> Result<()> {
        let mut frames = Vec::new();
        let room = WAITING - peer.outgoing.len();
        self.tap.recv_batch(pool, room, &mut frames)?;
        for frame in &frames {
            let frame = frame.frame.as_ref();
            let length = u32::try_from(frame.len())?;
            let message = [&length.to_be_bytes(), frame].concat();
            peer.outgoing.push_back(message);
        }
        Ok(())
    }

    /// Reads what the daemon sent; says whether it is still there.
    fn receive(&mut self, peer: &mut Connection) -> Result<bool> {
        let mut bytes = [0; 65_536];
        let is_there = match peer.socket.read(&mut bytes) {
            Ok(0) => false,
            Ok(len) => {
                peer.incoming.extend_from_slice(&bytes[..len]);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        let mut at = 0;
        while let Some((length, rest)) = peer.incoming[at..].split_first_chunk() {
            let length = usize::try_from(u32::from_be_bytes(*length))?;
            ensure!(length <= LONGEST, "the daemon sent a length of {length}");
            let Some(frame) = rest.get(..length) else {
                break;
            };
            let frame = TxFrame {
                vnet: VnetHdr::default(),
                head: frame,
                rest: &[],
            };
            let count = match self.tap.send(&frame) {
                Ok(()) => &self.relayed.from_daemon,
                Err(_) => &self.relayed.refused,
            };
            count.fetch_add(1, Relaxed);
            at += 4 + length;
        }
        peer.incoming.drain(..at);
        Ok(is_there)
    }
}

impl Connection {
    /// Writes what there is room for; says whether the daemon is still there.
    fn write(&mut self, relayed: &Relayed) -> bool {
        while !self.outgoing.is_empty() {
            let parts = self.outgoing.iter().map(|frame| IoSlice::new(frame));
            let mut parts: Vec<_> = parts.collect();
            parts[0] = IoSlice::new(&self.outgoing[0][self.sent..]);
            match self.socket.write_vectored(&parts) {
                Ok(len) => self.sent += len,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            while let Some(first) = self.outgoing.front()
                && self.sent >= first.len()
            {
                self.sent -= first.len();
                self.outgoing.pop_front();
                relayed.to_daemon.fetch_add(1, Relaxed);
            }
        }
        true
    }
}
