//! What the guest tests, the demo and the experiments are made of.
//!
//! Everything runs in a [`sandbox`]: network, mount and process namespaces of its own, which the
//! kernel takes down with all that is in them when the program ends, however it ends. In there a
//! [`Lab`] is one small network:
//!
//! ```text
//!   sender's namespace          the sandbox's own namespace
//!   +-------------+      +-------------------------------------------+
//!   | eth0        |------| up0 -- br0 -- tap0x0 -- daemon -- QEMU     |
//!   | 10.77.0.1   | veth |            \- tap0x1 -- (QEMU itself)      |
//!   +-------------+      +-------------------------------------------+
//! ```
//!
//! In place of a tap the daemon is on an interface or on a stream socket, whatever
//! [`attachment::ATTACHMENTS`] lists. A [`Vm`] is a QEMU with a guest that carries out commands sent
//! over a virtio console.
#![allow(
    dead_code,
    unused_imports,
    reason = "the tests, the demo, the rates and the experiments each use a part of the harness"
)]

pub(crate) mod account;
pub(crate) mod attachment;
pub(crate) mod capture;
mod command_line;
pub(crate) mod console;
pub(crate) mod counters;
pub(crate) mod cpus;
pub(crate) mod daemon;
pub(crate) mod facts;
mod farewell;
pub(crate) mod kit;
pub(crate) mod middleman;
pub(crate) mod netns;
pub(crate) mod netperf;
pub(crate) mod process;
pub(crate) mod qmp;
mod relay;
pub(crate) mod sandbox;
pub(crate) mod spread;
pub(crate) mod station;
pub(crate) mod strace;
pub(crate) mod testpmd;
mod tunnel;
pub(crate) mod user;
pub(crate) mod vm;
pub(crate) mod wait;

pub(crate) use account::Account;
pub(crate) use cpus::Cpus;
pub(crate) use daemon::{Daemon, DaemonConfig};
pub(crate) use kit::Kit;
pub(crate) use netns::{Lab, Sender, Wire};
pub(crate) use spread::Spread;
pub(crate) use station::{Backend, Station};
pub(crate) use vm::{Netdev, Vm, VmConfig};
