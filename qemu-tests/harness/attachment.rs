//! What a daemon can be attached to in a [`Lab`].
//!
//! A new uplink adds one line to [`ATTACHMENTS`], and a function if none of those below makes what
//! it needs; all tests that are for every uplink are then run on it.

use std::ops::{Add, AddAssign};
use std::path::Path;

use anyhow::{Context, Result};

use super::counters::InterfaceCounters;
use super::farewell::Farewells;
use super::netns::{Lab, Tags};
use super::relay::Relay;
use super::sandbox::RUN_DIR;

/// A kind of uplink.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// As the names of tests end.
    pub(crate) name: &'static str,
    make: fn(&Lab<'_>, u16) -> Result<Port>,
    lacks: &'static [(Need, &'static str)],
}

/// What a test may need beside frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Several queue pairs.
    Queues,
    /// Frames of 9000 bytes.
    LongFrames,
    /// Packets of 64 KiB that the host did not segment.
    LongPackets,
}

/// Every uplink that leads to a network. Tests that are for one of them run on the first.
pub(crate) const ATTACHMENTS: &[Attachment] = &[
    Attachment {
        name: "tap",
        make: Port::tap,
        lacks: &[],
    },
    Attachment {
        name: "af_packet",
        make: |lab, _| Port::interface(lab, "--af-packet", Tags::Beside),
        lacks: &[],
    },
    Attachment {
        name: "af_xdp",
        make: |lab, _| Port::interface(lab, "--af-xdp", Tags::InFrames),
        lacks: &[
            (
                Need::Queues,
                "what comes in on a queue that the guest leaves is lost",
            ),
            (Need::LongFrames, "a frame has to fit into a page"),
        ],
    },
    Attachment {
        name: "stream",
        make: Port::stream,
        lacks: &[
            (Need::Queues, "a stream has one queue"),
            (Need::LongPackets, "a stream carries whole frames only"),
        ],
    },
];

impl Attachment {
    /// The one that is meant where nothing is said.
    pub(crate) fn usual() -> &'static Self {
        &ATTACHMENTS[0]
    }

    /// Makes the host's side of it, for a daemon with so many queue pairs.
    pub(crate) fn make(&self, lab: &Lab<'_>, queues: u16) -> Result<Port> {
        (self.make)(lab, queues).with_context(|| format!("make a port for {}", self.name))
    }

    /// Why it cannot be tested with what a test needs, `None` if it can.
    pub(crate) fn lacks(&self, need: Need) -> Option<&'static str> {
        let lack = self.lacks.iter().find(|(lack, _)| *lack == need);
        lack.map(|(_, why)| *why)
    }
}

/// The place on a lab's bridge that a daemon is attached to.
#[derive(Debug)]
pub(crate) struct Port {
    /// Words of the daemon's command line that ask for it.
    pub(crate) words: String,
    /// What it was added as.
    number: u32,
    side: Side,
    /// By what was in its place before.
    passed: Passed,
}

#[derive(Debug)]
enum Side {
    Tap(u16),
    Interface(Tags),
    Relay(Relay),
}

/// Frames that went through a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Handed out towards the daemon.
    pub(crate) to_daemon: u64,
    /// Dropped on this way, by a host that counts them.
    pub(crate) dropped: u64,
    /// Taken from the daemon.
    pub(crate) from_daemon: u64,
    /// Dropped on this way, by a host that counts them.
    pub(crate) refused: u64,
}

impl Port {
    fn new(words: String, number: u32, side: Side) -> Self {
        Port {
            words,
            number,
            side,
            passed: Passed::default(),
        }
    }

    fn tap(lab: &Lab<'_>, queues: u16) -> Result<Self> {
        let number = lab.next_port();
        let words = format!("--tap {}", lab.make_tap(number, queues)?);
        Ok(Self::new(words, number, Side::Tap(queues)))
    }

    /// One end of a pair, with the words of the command line that come before its name.
    fn interface(lab: &Lab<'_>, words: &str, tags: Tags) -> Result<Self> {
        let number = lab.next_port();
        let words = format!("{words} {}", lab.make_interface(number, tags)?);
        Ok(Self::new(words, number, Side::Interface(tags)))
    }

    /// A stream socket with a peer that passes frames on to a tap.
    fn stream(lab: &Lab<'_>, _queues: u16) -> Result<Self> {
        let number = lab.next_port();
        let tap = lab.make_tap(number, 1)?;
        let socket = Path::new(RUN_DIR).join(format!("{tap}.sock"));
        let words = format!("--stream {}", socket.display());
        Ok(Self::new(
            words,
            number,
            Side::Relay(Relay::start(socket, &tap)?),
        ))
    }

    /// Takes away what the daemon is attached to.
    pub(crate) fn remove(&mut self, lab: &Lab<'_>) -> Result<()> {
        let mut farewells = Farewells::listen()?;
        match &mut self.side {
            Side::Tap(_) => {
                lab.remove_tap(self.number)?;
                let tap = farewells.of(&lab.tap(self.number))?;
                self.passed += Passed::through_tap(tap);
            }
            Side::Interface(_) => {
                lab.remove_interface(self.number)?;
                let ends = lab.interface(self.number).map(|end| farewells.of(&end));
                let [interface, port] = ends;
                self.passed += Passed::through_interface(interface?, port?);
            }
            Side::Relay(relay) => relay.stop()?,
        }
        Ok(())
    }

    /// Makes it again.
    pub(crate) fn make_again(&mut self, lab: &Lab<'_>) -> Result<()> {
        match &mut self.side {
            Side::Tap(queues) => lab.make_tap(self.number, *queues).map(drop),
            Side::Interface(tags) => lab.make_interface(self.number, *tags).map(drop),
            Side::Relay(relay) => relay.go_on(),
        }
    }

    /// Takes the interface behind it down, or up again.
    pub(crate) fn set_up(&self, lab: &Lab<'_>, up: bool) -> Result<()> {
        let interface = match &self.side {
            Side::Tap(_) | Side::Relay(_) => lab.tap(self.number),
            Side::Interface(_) => lab.interface(self.number)[0].clone(),
        };
        lab.set_up(&interface, up)
    }

    /// Whether it hands out frames only to somebody who takes them.
    pub(crate) fn waits_for_taker(&self) -> bool {
        match self.side {
            Side::Tap(_) | Side::Relay(_) => true,
            // Its kernel does not know whether anybody is attached.
            Side::Interface(_) => false,
        }
    }

    /// What has gone through so far, whatever was in its place.
    pub(crate) fn passed(&self, lab: &Lab<'_>) -> Result<Passed> {
        let now = match &self.side {
            Side::Tap(_) => Passed::through_tap(InterfaceCounters::read(&lab.tap(self.number))?),
            Side::Interface(_) => {
                let [interface, port] = lab.interface(self.number);
                Passed::through_interface(
                    InterfaceCounters::read(&interface)?,
                    InterfaceCounters::read(&port)?,
                )
            }
            Side::Relay(relay) => {
                let tap = InterfaceCounters::read(&lab.tap(self.number))?;
                relay.passed(tap.tx_dropped)
            }
        };
        Ok(self.passed + now)
    }
}

impl Passed {
    fn through_tap(tap: InterfaceCounters) -> Self {
        Passed {
            to_daemon: tap.tx_packets,
            dropped: tap.tx_dropped,
            from_daemon: tap.rx_packets,
            refused: tap.rx_dropped,
        }
    }

    /// An end of a pair counts as sent what the other end has received. With XDP it asks the other
    /// end, and knows nothing once that has gone.
    ///
    /// Source: `veth_get_stats64` in `drivers/net/veth.c`.
    fn through_interface(interface: InterfaceCounters, port: InterfaceCounters) -> Self {
        Passed {
            to_daemon: port.tx_packets.max(interface.rx_packets),
            dropped: port.tx_dropped,
            from_daemon: interface.tx_packets,
            refused: interface.tx_dropped,
        }
    }
}

impl Add for Passed {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Passed {
            to_daemon: self.to_daemon + more.to_daemon,
            dropped: self.dropped + more.dropped,
            from_daemon: self.from_daemon + more.from_daemon,
            refused: self.refused + more.refused,
        }
    }
}

impl AddAssign for Passed {
    fn add_assign(&mut self, more: Self) {
        *self = *self + more;
    }
}
