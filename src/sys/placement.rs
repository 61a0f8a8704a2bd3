//! Where a thread runs, and how urgently.
#![allow(unsafe_code, reason = "rustix has no call for the scheduling policy")]

use std::fmt;
use std::io;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_setaffinity};

/// A scheduling policy with its priority.
///
/// Source: sched(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Time sharing, `SCHED_OTHER`, with a nice value from -20 (most urgent) to 19.
    Other(i8),
    /// The same for what need not answer soon, `SCHED_BATCH`.
    Batch(i8),
    /// Real time, `SCHED_FIFO`, with a priority from 1 to 99 (most urgent).
    Fifo(u8),
    /// The same, taking turns with threads of equal priority, `SCHED_RR`.
    RoundRobin(u8),
}

impl Policy {
    /// Makes it the policy of the calling thread.
    fn take(self) -> io::Result<()> {
        match self {
            Self::Other(nice) => set_nice(libc::SCHED_OTHER, nice),
            Self::Batch(nice) => set_nice(libc::SCHED_BATCH, nice),
            Self::Fifo(priority) => set_scheduler(libc::SCHED_FIFO, priority),
            Self::RoundRobin(priority) => set_scheduler(libc::SCHED_RR, priority),
        }
    }
}

/// As it stands in an option.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(nice) => write!(f, "other:{nice}"),
            Self::Batch(nice) => write!(f, "batch:{nice}"),
            Self::Fifo(priority) => write!(f, "fifo:{priority}"),
            Self::RoundRobin(priority) => write!(f, "rr:{priority}"),
        }
    }
}

/// Where one thread runs, and how urgently; by default as the thread that starts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPU it stays on; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// Its policy; `None` leaves it as it is.
    pub policy: Option<Policy>,
}

/// Why a thread cannot be where it should.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named in the texts")]
pub enum PlacementError {
    /// The CPU is not there, or not ours.
    #[error(
        "cannot run on CPU {cpu}: expected one that is online and allowed here, see nproc(1) and \
         taskset(1)"
    )]
    Cpu { cpu: usize, source: io::Error },
    /// The policy is refused.
    #[error("cannot have the policy {policy}: it needs CAP_SYS_NICE, or a limit (ulimit -r, -e)")]
    Policy { policy: Policy, source: io::Error },
}

impl Placement {
    /// Puts the calling thread there. Memory that it is the first to touch afterwards is of the
    /// NUMA node of its CPU.
    ///
    /// # Errors
    /// The kernel refuses; what was done before stays done.
    pub fn take(&self) -> Result<(), PlacementError> {
        if let Some(cpu) = self.cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(None, &set).map_err(|errno| PlacementError::Cpu {
                cpu,
                source: errno.into(),
            })?;
        }
        if let Some(policy) = self.policy {
            policy
                .take()
                .map_err(|source| PlacementError::Policy { policy, source })?;
        }
        Ok(())
    }
}

fn set_nice(policy: libc::c_int, nice: i8) -> io::Result<()> {
    set_scheduler(policy, 0)?;
    // Of the calling thread alone, whatever POSIX says of the process. Source: setpriority(2).
    Ok(setpriority_process(None, nice.into())?)
}

fn set_scheduler(policy: libc::c_int, priority: u8) -> io::Result<()> {
    let param = libc::sched_param {
        sched_priority: priority.into(),
    };
    // SAFETY: the parameter is read during the call only; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    /// In a thread of its own, which takes its place with it.
    fn aside<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn a_thread_goes_where_it_is_put_and_no_other_does() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU)
            .find(|&cpu| before.is_set(cpu))
            .unwrap();
        let placement = Placement {
            cpu: Some(cpu),
            policy: Some(Policy::Batch(19)),
        };
        let (cpus, is_there, nice) = aside(|| {
            placement.take().unwrap();
            let set = rustix::thread::sched_getaffinity(None).unwrap();
            let nice = getpriority_process(None).unwrap();
            (set.count(), set.is_set(cpu), nice)
        });
        assert_eq!((cpus, is_there, nice), (1, true, 19));
        let after = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(after, before);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        let placement = Placement {
            cpu: Some(CpuSet::MAX_CPU - 1),
            policy: None,
        };
        let error = aside(|| placement.take()).unwrap_err();
        assert!(error.to_string().starts_with("cannot run on CPU 1023"));
    }
}
