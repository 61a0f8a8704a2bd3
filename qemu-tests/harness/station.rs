//! A guest and what serves its network device.

use anyhow::Result;

use super::cpus::Cpus;
use super::daemon::{Daemon, DaemonConfig};
use super::kit::Kit;
use super::vm::{Netdev, Vm, VmConfig};

/// What serves a guest's network device.
#[derive(Debug)]
pub(crate) enum Backend {
    Daemon(DaemonConfig),
    /// QEMU itself, on the tap of this name.
    QemuTap(String),
}

/// A guest with its network up. QEMU ends before the daemon.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) vm: Vm,
    /// None where QEMU serves the device.
    pub(crate) daemon: Option<Daemon>,
}

impl Station {
    /// Starts both, for measurements; `config` says all of the guest but its network device.
    pub(crate) fn start(kit: &Kit, backend: Backend, config: &VmConfig) -> Result<Self> {
        let (daemon, netdev) = match backend {
            Backend::Daemon(config) => (
                Some(Daemon::start(&config)?),
                Netdev::VhostUser(config.socket),
            ),
            Backend::QemuTap(tap) => (None, Netdev::Tap(tap)),
        };
        let config = VmConfig {
            netdev,
            ..config.clone()
        };
        let vm = Vm::start_with_true_clock(kit, kit.newest(), &config)?;
        vm.configure()?;
        Ok(Station { vm, daemon })
    }

    /// Binds every thread of both to its place.
    pub(crate) fn pin(&self, cpus: Cpus) -> Result<()> {
        cpus.pin(&self.vm, self.daemon.as_ref())
    }
}
