//! System calls of a process, counted by strace.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::kit::Kit;
use super::process::Process;
use super::sandbox::RUN_DIR;
use super::wait::wait_until;

/// How often each system call was made.
#[derive(Debug)]
pub(crate) struct Calls(Vec<(String, u64)>);

/// A count under way. The process that is watched is several times slower meanwhile.
#[derive(Debug)]
pub(crate) struct Strace {
    process: Process,
}

impl Strace {
    /// Begins to count those of all threads of `watched`.
    pub(crate) fn attach(kit: &Kit, watched: &Process) -> Result<Self> {
        let mut command = kit.tool("strace")?;
        command.args(["-c", "-f", "-p", &watched.pid().to_string()]);
        let log = Path::new(RUN_DIR).join(format!("strace{}.log", watched.pid()));
        let mut process = Process::start("strace", &mut command, log)?;
        wait_until("strace's start", Duration::from_secs(10), || {
            process.check_alive()?;
            Ok(process.log().contains("attached"))
        })?;
        Ok(Strace { process })
    }

    /// Ends the count.
    pub(crate) fn detach(mut self) -> Result<Calls> {
        self.process.signal(Signal::INT)?;
        self.process.wait(Duration::from_secs(10))?;
        Calls::parse(&self.process.log())
    }
}

impl Calls {
    /// Reads the table of `strace -c`: share, seconds, usecs/call, calls, errors if any, name.
    fn parse(text: &str) -> Result<Self> {
        let mut table = text.lines().skip_while(|line| !line.starts_with("------"));
        table.next().context("strace printed no table")?;
        let calls = table
            .take_while(|line| !line.starts_with("------"))
            .filter_map(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                Some(((*words.last()?).to_owned(), words.get(3)?.parse().ok()?))
            });
        Ok(Calls(calls.collect()))
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(_, calls)| calls).sum()
    }

    /// Those whose names begin with one of `names`.
    pub(crate) fn of(&self, names: &[&str]) -> u64 {
        let wanted = |name: &str| names.iter().any(|head| name.starts_with(head));
        let calls = self.0.iter().filter(|(name, _)| wanted(name));
        calls.map(|(_, calls)| calls).sum()
    }
}
