//! DPDK's testpmd: a guest's driver without a guest, or a device to compare the daemon's with.
//!
//! It polls, so it takes a whole processor for as long as it forwards.

use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::kit::{Kit, library_path};
use super::process::Process;
use super::sandbox::RUN_DIR;
use super::wait::wait_for;

/// How long it may take to start, to stop and to answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Where its packets lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Ordinary pages, which anybody can have.
    Ordinary,
    /// Pages of 2 MiB, which the system has set aside.
    Huge,
}

/// How testpmd is started.
#[derive(Debug, Clone)]
pub(crate) struct TestpmdConfig {
    /// Its one device, such as `net_virtio_user0,path=...`.
    pub(crate) device: String,
    /// What it does with packets: `txonly`, `rxonly`, `io`, `flowgen`, ...
    pub(crate) mode: &'static str,
    /// Bytes of the frames that it makes.
    pub(crate) frame_len: u16,
    pub(crate) queues: u16,
    pub(crate) memory: Memory,
    /// The processor that it stays on.
    pub(crate) cpu: Option<usize>,
}

impl TestpmdConfig {
    /// A driver for the device at `socket`; `features` are words such as `mrg_rxbuf=0`.
    pub(crate) fn driver(socket: &Path, features: &str, mode: &'static str) -> Self {
        let comma = if features.is_empty() { "" } else { "," };
        TestpmdConfig {
            device: format!(
                "net_virtio_user0,path={},queue_size=256{comma}{features}",
                socket.display()
            ),
            mode,
            frame_len: 64,
            queues: 1,
            memory: Memory::Ordinary,
            cpu: None,
        }
    }

    /// DPDK's own vhost-user device, which listens on `socket`.
    pub(crate) fn device(socket: &Path, mode: &'static str) -> Self {
        TestpmdConfig {
            device: format!("net_vhost0,iface={}", socket.display()),
            ..Self::driver(socket, "", mode)
        }
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running testpmd.
#[derive(Debug)]
pub(crate) struct Testpmd {
    pub(crate) process: Process,
    commands: ChildStdin,
    /// Reports that were read already.
    stops: usize,
    shows: usize,
}

/// What its port has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortCount {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl Testpmd {
    /// Starts it; it is ready to be told what to do.
    pub(crate) fn start(kit: &Kit, config: &TestpmdConfig) -> Result<Self> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut command = kit.testpmd()?;
        let cpu = config.cpu.map_or_else(String::new, |cpu| format!("@{cpu}"));
        let queues = config.queues.to_string();
        command
            .env("XDG_RUNTIME_DIR", RUN_DIR)
            .arg(format!("--lcores=0{cpu},1{cpu}"))
            .args(["--no-pci", "-m", "256", "--file-prefix"])
            .arg(format!("pmd{}x{id}", std::process::id()))
            .args(match config.memory {
                Memory::Ordinary => &["--no-huge"][..],
                Memory::Huge => &["--in-memory", "--single-file-segments"],
            })
            .args([
                "--vdev",
                &format!("{},queues={queues}", config.device),
                "--",
            ])
            .args(["-i", "--nb-cores=1", "--total-num-mbufs=16384"])
            // What came before it was told to go counts as well.
            .arg("--no-flush-rx")
            .args(["--no-lsc-interrupt", "--rxq", &queues, "--txq", &queues])
            .arg(format!("--forward-mode={}", config.mode))
            .arg(format!("--txpkts={}", config.frame_len));
        let log = Path::new(RUN_DIR).join(format!("testpmd{id}.log"));
        let (process, commands) = Process::start_listening("testpmd", &mut command, log)?;
        let mut testpmd = Testpmd {
            process,
            commands,
            stops: 0,
            shows: 0,
        };
        // The answer comes when the device is set up.
        testpmd.show()?;
        Ok(testpmd)
    }

    fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}").context("testpmd no longer listens")
    }

    /// Waits for the report after the `seen` ones that begin with a line that contains `head`.
    fn report(&mut self, head: &str, seen: usize) -> Result<PortCount> {
        wait_for("testpmd's report", LIMIT, || {
            self.process.check_alive()?;
            let log = self.process.log();
            Ok(log.split(head).nth(seen + 1).and_then(parse))
        })
    }

    /// Lets it forward.
    pub(crate) fn go(&mut self) -> Result<()> {
        self.tell("start")
    }

    /// Lets it forward after it has sent `bursts` times 32 packets.
    pub(crate) fn go_with(&mut self, bursts: u32) -> Result<()> {
        self.tell(&format!("start tx_first {bursts}"))
    }

    /// Ends the forwarding. What it counted since it was started is exact.
    pub(crate) fn stop(&mut self) -> Result<PortCount> {
        self.tell("stop")?;
        self.stops += 1;
        self.report("Forward statistics for port 0", self.stops - 1)
    }

    /// What the port has counted since the beginning.
    pub(crate) fn show(&mut self) -> Result<PortCount> {
        self.tell("show port stats 0")?;
        self.shows += 1;
        self.report("NIC statistics for port 0", self.shows - 1)
    }

    /// Ends it in the ordinary way.
    pub(crate) fn quit(mut self) -> Result<()> {
        self.tell("quit")?;
        let status = self.process.wait(LIMIT)?;
        if !status.success() {
            bail!("testpmd ended with {status}:\n{}", self.process.log());
        }
        Ok(())
    }
}

/// The first counts of a report, if it is complete.
fn parse(report: &str) -> Option<PortCount> {
    // Each report ends with a line of such signs.
    let (counts, _) = report
        .split_once("\n  ---")
        .or(report.split_once("\n  ###"))?;
    let count = |name: &str| {
        let (_, rest) = counts.split_once(name)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(PortCount {
        received: count("RX-packets:")?,
        sent: count("TX-packets:")?,
    })
}

impl Kit {
    /// testpmd with its drivers, and its output line by line.
    fn testpmd(&self) -> Result<Command> {
        let tree = self.dir().join("dpdk");
        let libraries = tree.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new("stdbuf");
        command
            .arg("-oL")
            .arg(tree.join("usr/bin/dpdk-testpmd"))
            .env("LD_LIBRARY_PATH", library_path(&tree));
        for driver in ["net_vhost", "net_virtio", "mempool_ring", "bus_vdev"] {
            // By name and not by path: it refuses to load from below a folder that others may
            // write to.
            let prefix = format!("librte_{driver}.so.");
            let library = std::fs::read_dir(&libraries)
                .with_context(|| libraries.display().to_string())?
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .find(|name| {
                    name.strip_prefix(&prefix)
                        .is_some_and(|rest| !rest.contains('.'))
                })
                .with_context(|| format!("no {prefix}* in {}", libraries.display()))?;
            command.args(["-d", &library]);
        }
        Ok(command)
    }
}
