//! The machine, the versions and the place of every thread, for results.

use anyhow::Result;
use serde::Serialize;

use super::cpus::Cpus;
use super::daemon;
use super::kit::Kit;

/// What was measured on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) accelerator: &'static str,
    /// Processor of the guests; the other one has everything else. None if nothing is bound.
    pub(crate) guest_cpu: Option<usize>,
    pub(crate) host_cpu: Option<usize>,
    pub(crate) versions: Vec<(String, String)>,
}

impl Machine {
    pub(crate) fn gather(kit: &Kit, cpus: Option<Cpus>) -> Result<Self> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
        let processor = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, name)| name);
        let mut versions = vec![(
            "vhost-user-gro".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        )];
        versions.push(("build".into(), daemon::profile()?));
        versions.push(("qemu".into(), kit.newest().version.clone()));
        versions.push((
            "host".into(),
            std::fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .into(),
        ));
        versions.extend(kit.versions()?);
        Ok(Machine {
            processor: processor.to_owned(),
            accelerator: kit.accel.name(),
            guest_cpu: cpus.map(|cpus| cpus.guest),
            host_cpu: cpus.map(|cpus| cpus.host),
            versions,
        })
    }

    /// Where everything runs, in words.
    pub(crate) fn placement(&self) -> String {
        match (self.guest_cpu, self.host_cpu) {
            (Some(guest), Some(host)) => {
                format!("guest processors bound to CPU {guest}, everything else to CPU {host}")
            }
            _ => "only one CPU: nothing is bound, numbers are of little worth".into(),
        }
    }

    /// Names and versions in one line.
    pub(crate) fn version_line(&self) -> String {
        let versions: Vec<_> = self
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        versions.join(", ")
    }
}
