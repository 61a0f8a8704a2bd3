//! Child processes that end with the value that holds them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use super::wait::wait_for;

/// Runs a command to its end and gives what it printed.
///
/// # Errors
///
/// That it could not be started or ended with another status than 0, with what it said.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{command:?} ended with {}: {}{}",
            output.status,
            text.trim(),
            said.trim()
        );
    }
    Ok(text)
}

/// A process in the background, with its output in a file. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

/// One thread of a process.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    /// Processor time used so far.
    pub(crate) cpu: Duration,
}

impl Process {
    /// Starts `command` with standard output and error going to `log`.
    pub(crate) fn start(name: &str, command: &mut Command, log: PathBuf) -> Result<Self> {
        command.stdin(Stdio::null());
        Self::spawn(name, command, log)
    }

    /// The same with a pipe for what the process reads.
    pub(crate) fn start_listening(
        name: &str,
        command: &mut Command,
        log: PathBuf,
    ) -> Result<(Self, ChildStdin)> {
        command.stdin(Stdio::piped());
        let mut process = Self::spawn(name, command, log)?;
        let pipe = process.child.stdin.take().context("no pipe")?;
        Ok((process, pipe))
    }

    fn spawn(name: &str, command: &mut Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = command
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Process {
            child,
            name: name.to_owned(),
            log,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Fails with what the process said, if it has ended.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}:\n{}", self.name, self.log().trim());
        }
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        rustix::process::kill_process(pid.context("no process")?, signal)?;
        Ok(())
    }

    /// Waits until the process has ended by itself.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_for(&what, limit, || Ok(self.child.try_wait()?))
    }

    /// Its threads, as they are now.
    pub(crate) fn threads(&self) -> Result<Vec<Thread>> {
        let tasks = Path::new("/proc").join(self.pid().to_string()).join("task");
        let mut threads = Vec::new();
        for task in
            std::fs::read_dir(&tasks).with_context(|| format!("threads of {}", self.name))?
        {
            let task = task?;
            // A thread may end while the list is read.
            let Ok(times) = std::fs::read_to_string(task.path().join("schedstat")) else {
                continue;
            };
            let Some(ns) = times.split(' ').next().and_then(|ns| ns.parse().ok()) else {
                continue;
            };
            let Some(tid) = task.file_name().to_str().and_then(|tid| tid.parse().ok()) else {
                continue;
            };
            threads.push(Thread {
                tid,
                cpu: Duration::from_nanos(ns),
            });
        }
        Ok(threads)
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Its resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|rest| rest.split_whitespace().next());
        number.context("no VmRSS")?.parse().context("VmRSS")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
