//! The settings that are compared, and a running guest for each.

use anyhow::{Context, Result};

use crate::harness::{Backend, DaemonConfig, Kit, Lab, Netdev, Station, VmConfig};

/// One row of the tables.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    /// The daemon's options; none where QEMU itself serves the tap.
    pub(crate) daemon: Option<&'static str>,
    /// Measured with 64 KiB packets as well.
    pub(crate) with_bulk: bool,
}

/// In the order in which they get their turn.
pub(crate) const ALL: [Setting; 4] = [
    Setting {
        name: "off",
        meaning: "daemon, merging off",
        daemon: Some("--gro off"),
        with_bulk: true,
    },
    Setting {
        name: "on-0",
        meaning: "daemon, merging within a poll",
        daemon: Some("--gro on --gro-flush-timeout-ns 0 --napi-defer-hard-irqs 0"),
        with_bulk: false,
    },
    Setting {
        name: "on",
        meaning: "daemon, default timeout",
        daemon: Some("--gro on"),
        with_bulk: true,
    },
    Setting {
        name: "qemu-tap",
        meaning: "QEMU's own tap device",
        daemon: None,
        with_bulk: true,
    },
];

/// A setting's guest and back end.
#[derive(Debug)]
pub(crate) struct Contender<'a> {
    pub(crate) setting: &'a Setting,
    pub(crate) station: Station,
}

impl<'a> Contender<'a> {
    pub(crate) fn start(
        kit: &Kit,
        lab: &Lab<'_>,
        setting: &'a Setting,
        number: u8,
    ) -> Result<Self> {
        let tap = lab.add_tap(1)?;
        let backend = match setting.daemon {
            Some(options) => Backend::Daemon(DaemonConfig {
                options: options.into(),
                ..DaemonConfig::new(&tap)
            }),
            None => Backend::QemuTap(tap),
        };
        let config = VmConfig {
            number,
            ..VmConfig::new(Netdev::None)
        };
        let station = Station::start(kit, backend, &config)
            .with_context(|| format!("guest of {}", setting.name))?;
        Ok(Contender { setting, station })
    }
}
