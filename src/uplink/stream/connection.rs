//! The connection to the peer: made, lost and made again, without ever waiting.
//!
//! ```text
//!             timer                    done
//!   Pausing ---------> Connecting --------------> Connected --+--> Ending
//!      ^  \   timer                  accept      ^            |       |
//!      |   `---------> Listening ----------------'            |       |
//!      `------------------------------------------- lost -----+-------'
//! ```
//! *Ending* is a connection whose peer has hung up while nobody read: what it sent is still to be
//! had. A connection that was handed to us is not made again: when it is lost, all is over.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use log::{info, warn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, getpeername, getsockname, ipproto,
    shutdown, socket_with, sockopt,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::address::{Place, StreamAddress};
use super::backoff::Backoff;
use super::door::Door;
use super::error::StreamError;
use super::origin::{Origin, listener_at, set_tcp_options};
use crate::socket_file::{SocketFile, connect_to};

/// How often a connection that is being made is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often it is looked at before it is given up: 5 s.
const LOOKS: u32 = 250;

/// How many peers are refused at a time.
const REFUSALS: u32 = 16;

#[derive(Debug)]
enum State {
    Pausing,
    Connecting { socket: OwnedFd, looks: u32 },
    Listening,
    Connected(OwnedFd),
    Ending(OwnedFd),
    Over,
}

/// The connection, or the way to the next one.
#[derive(Debug)]
pub(super) struct Connection {
    origin: Origin,
    /// For the log.
    name: String,
    state: State,
    /// Counts the states, each of which may have another descriptor.
    generation: u64,
    timer: OwnedFd,
    /// Readable all the time.
    ready: OwnedFd,
    backoff: Backoff,
    /// What kept the last attempt from success, said once.
    complained: Option<io::ErrorKind>,
    made: u64,
    /// Where further peers are refused while one is served, if they come to us.
    door: Option<Door>,
}

/// There is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// At the moment.
    Now,
    /// For good.
    ForGood,
}

impl Connection {
    /// Prepares for connections as `address` says. The first is tried for at once, but a peer
    /// that is not there yet is no error.
    ///
    /// # Errors
    /// It can never be: nothing can be listened at, or the host has no address.
    pub(super) fn open(address: &StreamAddress) -> Result<Self, StreamError> {
        let origin = match (&address.place, address.listens) {
            (Place::Unix(path), false) => Origin::Unix(path.clone()),
            (Place::Unix(path), true) => Origin::UnixListener(SocketFile::listen(path, None)?),
            (Place::Tcp { host, port }, listens) => {
                let resolved = (host.as_str(), *port).to_socket_addrs();
                let addresses: Vec<_> = resolved
                    .map_err(|source| StreamError::Resolve {
                        host: host.clone(),
                        source,
                    })?
                    .collect();
                if listens {
                    Origin::TcpListener(listener_at(address, &addresses)?)
                } else {
                    Origin::Tcp(addresses, 0)
                }
            }
        };
        let connection = Self::new(origin, address.to_string(), State::Pausing)?;
        connection.set_timer(Duration::from_nanos(1));
        Ok(connection)
    }

    /// Uses a connected stream socket, as long as it lasts.
    ///
    /// # Errors
    /// The descriptor cannot be used, or none is left.
    pub(super) fn given(socket: OwnedFd) -> Result<Self, StreamError> {
        let kind = sockopt::socket_type(&socket);
        match getpeername(&socket).and(kind) {
            Ok(SocketType::STREAM) => {}
            _ => return Err(StreamError::NotConnected),
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
        let name = "the inherited socket".to_owned();
        let mut connection = Self::new(Origin::Given, name, State::Connected(socket))?;
        connection.made = 1;
        Ok(connection)
    }

    fn new(origin: Origin, name: String, state: State) -> Result<Self, StreamError> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(io::Error::from)?;
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let door = match &origin {
            Origin::UnixListener(_) | Origin::TcpListener(_) => Some(Door::new()?),
            _ => None,
        };
        Ok(Self {
            origin,
            name,
            state,
            generation: 0,
            timer,
            ready: eventfd(1, flags).map_err(io::Error::from)?,
            backoff: Backoff::default(),
            complained: None,
            made: 0,
            door,
        })
    }

    /// What says that there is something to read or to do.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Pausing | State::Connecting { .. } => self.timer.as_fd(),
            State::Listening => self.origin.listener().unwrap_or(self.timer.as_fd()),
            State::Connected(socket) => socket.as_fd(),
            State::Ending(_) | State::Over => self.ready.as_fd(),
        }
    }

    /// What says that a further peer has come while one is served, if any may come.
    pub(super) fn door(&self) -> Option<BorrowedFd<'_>> {
        self.door.as_ref().map(Door::fd)
    }

    /// Refuses peers that come while one is served: they would wait without knowing, and be taken
    /// later with what was meant for the time before.
    pub(super) fn refuse_others(&mut self) {
        if !self.is_up() {
            return;
        }
        for _ in 0..REFUSALS {
            match (self.origin.accept(), &self.door, self.origin.listener()) {
                (Ok(_), ..) => {}
                (Err(error), Some(door), Some(listener))
                    if error.kind() != io::ErrorKind::WouldBlock =>
                {
                    // The process is out of descriptors, and would be called for ever.
                    door.leave(listener);
                    return;
                }
                _ => return,
            }
            if self.door.as_mut().is_some_and(Door::is_first) {
                let name = &self.name;
                warn!("{name}: a further peer is refused while one is served; not said again");
            }
        }
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Connections made so far.
    pub(super) const fn made(&self) -> u64 {
        self.made
    }

    /// Whether there is a peer.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Connected(_) | State::Ending(_))
    }

    /// The socket to the peer; looks whether there is one by now.
    pub(super) fn socket(&mut self) -> Result<BorrowedFd<'_>, Missing> {
        if !self.is_up() {
            self.advance();
        }
        match &self.state {
            State::Connected(socket) | State::Ending(socket) => Ok(socket.as_fd()),
            State::Over => Err(Missing::ForGood),
            State::Pausing | State::Connecting { .. } | State::Listening => Err(Missing::Now),
        }
    }

    /// The peer has sent something of use.
    pub(super) const fn proved_good(&mut self) {
        self.backoff.reset();
    }

    /// Whether the peer has hung up, and only what it has sent is still of interest.
    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(_))
    }

    /// The peer has hung up, and what it has sent will be read later.
    pub(super) fn end(&mut self) {
        if matches!(self.state, State::Connected(_)) {
            self.change(|state| match state {
                State::Connected(socket) => State::Ending(socket),
                other => other,
            });
        }
    }

    /// Closes the connection and prepares for another one.
    pub(super) fn lose(&mut self, why: &dyn std::fmt::Display) {
        if !self.is_up() {
            return;
        }
        info!("{}: connection ended: {why}", self.name);
        if let State::Connected(socket) | State::Ending(socket) = &self.state {
            // The owner of the queue may hold a duplicate for a little while.
            let _ = shutdown(socket, Shutdown::Both);
        }
        self.pause();
    }

    /// Does what the time or an event has made possible.
    fn advance(&mut self) {
        match &mut self.state {
            State::Pausing if is_over(&self.timer) => self.begin(),
            State::Connecting { socket, looks } if is_over(&self.timer) => {
                *looks += 1;
                let is_last = *looks == LOOKS;
                match outcome(socket.as_fd()) {
                    Ok(true) => self.change(|state| match state {
                        State::Connecting { socket, .. } => State::Connected(socket),
                        other => other,
                    }),
                    Ok(false) if is_last => self.failed(&io::ErrorKind::TimedOut.into()),
                    Ok(false) => self.set_timer(LOOK),
                    Err(error) => self.failed(&error),
                }
            }
            State::Listening => self.accept(),
            _ => {}
        }
    }

    /// Begins an attempt.
    fn begin(&mut self) {
        let begun = match &mut self.origin {
            Origin::Unix(path) => connect_to(path).map(|stream| State::Connected(stream.into())),
            Origin::Tcp(addresses, next) => {
                let address = addresses.get(*next % addresses.len().max(1)).copied();
                *next = next.wrapping_add(1);
                address
                    .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
                    .and_then(begin_tcp)
            }
            Origin::UnixListener(_) | Origin::TcpListener(_) => Ok(State::Listening),
            Origin::Given => Ok(State::Over),
        };
        match begun {
            Ok(state) => self.change(|_| state),
            Err(error) => self.failed(&error),
        }
        match self.state {
            State::Connecting { .. } => self.set_timer(LOOK),
            State::Listening => self.accept(),
            _ => {}
        }
    }

    /// Takes a waiting peer.
    fn accept(&mut self) {
        match self.origin.accept() {
            Ok(socket) => self.change(|_| State::Connected(socket)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The peer is gone again, or the process is out of descriptors.
            Err(error) => self.failed(&error),
        }
    }

    /// Says once why there is no connection, and tries again later.
    fn failed(&mut self, error: &io::Error) {
        if self.complained.replace(error.kind()) != Some(error.kind()) {
            warn!("{}: no connection, will try again: {error}", self.name);
        }
        self.pause();
    }

    fn pause(&mut self) {
        if matches!(self.origin, Origin::Given) {
            self.change(|_| State::Over);
            return;
        }
        self.change(|_| State::Pausing);
        let pause = self.backoff.pause();
        self.set_timer(pause);
    }

    /// Goes over to another state, which has another descriptor.
    fn change(&mut self, to: impl FnOnce(State) -> State) {
        let was_up = self.is_up();
        self.state = to(core::mem::replace(&mut self.state, State::Over));
        self.generation += 1;
        let is_up = self.is_up();
        if let (Some(door), Some(listener)) = (&mut self.door, self.origin.listener()) {
            if was_up && !is_up {
                door.leave(listener);
            } else if is_up
                && !was_up
                && let Err(error) = door.watch(listener)
            {
                warn!("{}: further peers are not refused: {error}", self.name);
            }
        }
        if self.is_up() && !was_up {
            self.made += 1;
            self.complained = None;
            info!("{}: connected", self.name);
        }
    }

    fn set_timer(&self, time: Duration) {
        let no_time = Timespec::default();
        let spec = Itimerspec {
            it_interval: no_time,
            it_value: Timespec::try_from(time).unwrap_or(no_time),
        };
        // Neither the descriptor nor the time can be wrong.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }
}

/// Whether the timer has fired; it is quiet afterwards.
fn is_over(timer: &OwnedFd) -> bool {
    rustix::io::read(timer, &mut [0; 8]).is_ok()
}

fn begin_tcp(address: SocketAddr) -> io::Result<State> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    set_tcp_options(socket.as_fd())?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(State::Connecting { socket, looks: 0 }),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a connection that was begun has come about.
fn outcome(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec::default()))? == 0 {
        return Ok(false);
    }
    sockopt::socket_error(socket)??;
    // Who connects to a port of this host that nobody listens at may be given that very port, and
    // is then connected to itself.
    if Some(getsockname(socket)?) == getpeername(socket)? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(true)
}
