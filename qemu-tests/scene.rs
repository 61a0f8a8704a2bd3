//! What nearly every test starts from: a sender, a daemon and a guest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::harness::attachment::{Attachment, Port};
use crate::harness::kit::Qemu;
use crate::harness::middleman::Middleman;
use crate::harness::sandbox::RUN_DIR;
use crate::harness::{Daemon, DaemonConfig, Kit, Lab, Netdev, Vm, VmConfig, Wire};

/// What a test is run on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) kit: &'a Kit,
    pub(crate) qemu: &'a Qemu,
    pub(crate) backend: Backend,
}

/// What serves the guest's network device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Backend {
    /// The daemon, and what it is attached to.
    Daemon(&'static Attachment),
    QemuTap,
}

impl Backend {
    pub(crate) fn from_environment() -> Self {
        match std::env::var("QEMU_TESTS_BACKEND").as_deref() {
            Ok("tap") => Backend::QemuTap,
            _ => Backend::Daemon(Attachment::usual()),
        }
    }
}

/// In which a test differs from the plain case.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) wire: Wire,
    pub(crate) mtu: u32,
    /// Of the guest's network device.
    pub(crate) properties: String,
    pub(crate) rx_queue_size: u16,
    pub(crate) queues: u16,
    /// A guest uses no more queue pairs than it has processors.
    pub(crate) vcpus: u16,
    /// Of the daemon.
    pub(crate) options: String,
    /// Whether a [`Middleman`] acks USO for the guest.
    pub(crate) uso: bool,
}

impl Default for Plot {
    fn default() -> Self {
        Plot {
            wire: Wire::Frames,
            mtu: 1500,
            properties: String::new(),
            rx_queue_size: 256,
            queues: 1,
            vcpus: 1,
            options: String::new(),
            uso: false,
        }
    }
}

/// A guest with its network up. QEMU ends before the daemon, and both before the network.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) vm: Vm,
    pub(crate) middleman: Option<Middleman>,
    pub(crate) daemon: Option<Daemon>,
    /// What the daemon is attached to.
    pub(crate) port: Option<Port>,
    pub(crate) lab: Lab<'a>,
}

/// A network with a place for a daemon, for tests in which daemons or guests come and go.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    stage: &'a Stage<'a>,
    /// Of each daemon.
    pub(crate) config: DaemonConfig,
    pub(crate) port: Port,
    pub(crate) lab: Lab<'a>,
}

impl Site<'_> {
    pub(crate) fn daemon(&self) -> Result<Daemon> {
        Daemon::start(&self.config)
    }

    /// A guest with its network up.
    pub(crate) fn guest(&self) -> Result<Vm> {
        let config = VmConfig::new(self.config.netdev());
        let vm = Vm::start(self.stage.kit, self.stage.qemu, &config)?;
        vm.configure()?;
        Ok(vm)
    }
}

impl<'a> Stage<'a> {
    /// The plain case: guest defaults and the daemon's defaults.
    pub(crate) fn open(&self) -> Result<Scene<'a>> {
        self.open_with(&Plot::default())
    }

    /// What the daemon is attached to.
    pub(crate) fn attachment(&self) -> &'static Attachment {
        match self.backend {
            Backend::Daemon(attachment) => attachment,
            Backend::QemuTap => Attachment::usual(),
        }
    }

    /// A network for a daemon with its defaults, which listens, or connects as `is_client` says.
    pub(crate) fn site(&'a self, is_client: bool) -> Result<Site<'a>> {
        let lab = Lab::new(self.kit, Wire::Frames, 1500)?;
        let port = self.attachment().make(&lab, 1)?;
        let config = DaemonConfig {
            client: is_client,
            ..DaemonConfig::on(&port.words)
        };
        Ok(Site {
            stage: self,
            config,
            port,
            lab,
        })
    }

    pub(crate) fn open_with(&self, plot: &Plot) -> Result<Scene<'a>> {
        let lab = Lab::new(self.kit, plot.wire, plot.mtu)?;
        let (mut middleman, mut port) = (None, None);
        let (daemon, netdev) = match self.backend {
            Backend::QemuTap => (None, Netdev::Tap(lab.add_tap(plot.queues)?)),
            Backend::Daemon(attachment) => {
                let port = port.insert(attachment.make(&lab, plot.queues)?);
                let mut config = DaemonConfig {
                    queue_pairs: plot.queues,
                    options: plot.options.clone(),
                    ..DaemonConfig::on(&port.words)
                };
                let daemon = Daemon::start(&config)?;
                if plot.uso {
                    let between = Middleman::start(&config.socket)?;
                    config.socket.clone_from(&between.socket);
                    middleman = Some(between);
                }
                (Some(daemon), config.netdev())
            }
        };
        let config = VmConfig {
            properties: plot.properties.clone(),
            rx_queue_size: plot.rx_queue_size,
            queues: plot.queues,
            vcpus: plot.vcpus,
            mtu: plot.mtu,
            ..VmConfig::new(netdev)
        };
        let vm = Vm::start(self.kit, self.qemu, &config)?;
        vm.configure()?;
        Ok(Scene {
            vm,
            middleman,
            daemon,
            port,
            lab,
        })
    }
}

/// The logs of all daemons, QEMUs and guests of this run so far.
pub(crate) fn logs() -> std::io::Result<BTreeSet<PathBuf>> {
    let mut logs = BTreeSet::new();
    for entry in std::fs::read_dir(RUN_DIR)? {
        let path = entry?.path();
        if path.is_dir() {
            logs.extend(["qemu.log", "serial"].map(|name| path.join(name)));
        } else if path.extension().is_some_and(|end| end == "log") {
            logs.insert(path);
        }
    }
    Ok(logs
        .into_iter()
        .filter(|log| Path::new(log).exists())
        .collect())
}
