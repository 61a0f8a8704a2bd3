//! Which processor does what.

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::CpuSet;

use super::daemon::Daemon;
use super::vm::Vm;

/// One processor for guests, one for everything else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpus {
    pub(crate) guest: usize,
    pub(crate) host: usize,
}

impl Cpus {
    /// Two of the processors we may use; none if there is only one.
    pub(crate) fn choose() -> Result<Option<Self>> {
        let allowed = rustix::thread::sched_getaffinity(None).context("own processors")?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let pair = usable.next().zip(usable.next());
        Ok(pair.map(|(host, guest)| Cpus { guest, host }))
    }

    /// Binds the processors of a guest to one and QEMU's rest, its daemon, the calling thread and
    /// what that will start to the other.
    ///
    /// Else frames of one connection may reach a bridge over two processors' queues, out of order.
    pub(crate) fn pin(self, vm: &Vm, daemon: Option<&Daemon>) -> Result<()> {
        bind(None, self.host)?;
        let daemon = daemon.map(|daemon| &daemon.process);
        for process in daemon.into_iter().chain([vm.process()]) {
            for thread in process.threads()? {
                bind(Some(thread.tid), self.host)?;
            }
        }
        for tid in vm.vcpus()? {
            bind(Some(tid), self.guest)?;
        }
        Ok(())
    }
}

/// Keeps a thread on one processor: the calling one unless another is named.
pub(crate) fn bind(tid: Option<i32>, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(tid.and_then(Pid::from_raw), &set)
        .with_context(|| format!("bind thread {tid:?} to processor {cpu}"))
}
