//! A device, a driver for it, and how many frames pass between them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::harness::capture::write_pcap;
use crate::harness::cpus::bind;
use crate::harness::process::{Process, output_of};
use crate::harness::sandbox::RUN_DIR;
use crate::harness::testpmd::{Memory, PortCount, Testpmd, TestpmdConfig};
use crate::harness::wait::{now, wait_until};
use crate::harness::{Cpus, Daemon, DaemonConfig, Kit};

/// Pages of 2 MiB for two testpmds.
const PAGES: u32 = 320;
const PAGES_FILE: &str = "/proc/sys/vm/nr_hugepages";

/// What serves the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// The daemon on an uplink without a host: it discards, or generates.
    Null,
    /// The daemon on a tap: the host drops what arrives, or sends on the daemon's own processor.
    Tap,
    /// DPDK's own vhost-user device, which polls.
    Dpdk,
}

impl Device {
    pub(crate) const ALL: [Self; 3] = [Self::Null, Self::Tap, Self::Dpdk];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "daemon, null or generator",
            Self::Tap => "daemon, tap",
            Self::Dpdk => "testpmd's net_vhost",
        }
    }
}

/// Which way the frames go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    FromGuest,
    ToGuest,
}

impl Direction {
    pub(crate) const ALL: [Self; 2] = [Self::FromGuest, Self::ToGuest];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FromGuest => "from the guest",
            Self::ToGuest => "to the guest",
        }
    }

    fn driver_mode(self) -> &'static str {
        match self {
            Self::FromGuest => "txonly",
            Self::ToGuest => "rxonly",
        }
    }

    fn device_mode(self) -> &'static str {
        match self {
            Self::FromGuest => "rxonly",
            Self::ToGuest => "txonly",
        }
    }

    fn count(self, port: PortCount) -> u64 {
        match self {
            Self::FromGuest => port.sent,
            Self::ToGuest => port.received,
        }
    }
}

/// Pages that were set aside for a run, and are given back when it ends.
#[derive(Debug)]
pub(crate) struct Pages {
    before: Option<String>,
}

impl Pages {
    /// Takes what is missing; without the right to do so, ordinary pages are used.
    pub(crate) fn reserve() -> Self {
        let before = std::fs::read_to_string(PAGES_FILE).ok();
        let has = |text: &String| text.trim().parse::<u32>().is_ok_and(|count| count < PAGES);
        let before = before.filter(has);
        let taken = before.is_some() && std::fs::write(PAGES_FILE, PAGES.to_string()).is_ok();
        Self {
            before: before.filter(|_| taken),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // There is nobody left to tell.
            let _ = std::fs::write(PAGES_FILE, before.trim());
        }
    }
}

/// Which pages there are.
pub(crate) fn memory() -> Memory {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    match free.ok().and_then(|text| text.trim().parse::<u32>().ok()) {
        Some(free) if free >= PAGES => Memory::Huge,
        _ => Memory::Ordinary,
    }
}

/// A device at a socket. Whatever it is, it ends when this is dropped.
#[derive(Debug)]
enum Running {
    Daemon { _daemon: Daemon, tap: Option<Tap> },
    Testpmd { _testpmd: Testpmd },
}

impl Running {
    fn start(
        kit: &Kit,
        cpu: usize,
        (device, direction): (Device, Direction),
        frame_len: u16,
        memory: Memory,
    ) -> Result<(Self, PathBuf)> {
        let uplink = match (device, direction) {
            (Device::Dpdk, _) => {
                let socket = Path::new(RUN_DIR).join("dpdk.sock");
                // The one before was killed and left it behind, for which a new one does not listen.
                if socket.exists() {
                    std::fs::remove_file(&socket)?;
                }
                let config = TestpmdConfig {
                    frame_len,
                    memory,
                    cpu: Some(cpu),
                    ..TestpmdConfig::device(&socket, direction.device_mode())
                };
                let mut testpmd = Testpmd::start(kit, &config)?;
                wait_until("testpmd's socket", Duration::from_secs(10), || {
                    testpmd.process.check_alive()?;
                    Ok(socket.exists())
                })?;
                testpmd.go()?;
                return Ok((Running::Testpmd { _testpmd: testpmd }, socket));
            }
            (Device::Tap, _) => "--tap ratestap".to_owned(),
            (Device::Null, Direction::FromGuest) => "--null".to_owned(),
            (Device::Null, Direction::ToGuest) => {
                // Headers of Ethernet, IPv4 and TCP with timestamps.
                let payload = frame_len.saturating_sub(66).max(1);
                format!("--generator 1 --generator-payload-bytes {payload}")
            }
        };
        let tap = (device == Device::Tap).then(Tap::make).transpose()?;
        let config = DaemonConfig {
            options: format!("--cpus {cpu}"),
            ..DaemonConfig::on(&uplink)
        };
        let socket = config.socket.clone();
        let daemon = Daemon::start(&config)?;
        Ok((
            Running::Daemon {
                _daemon: daemon,
                tap,
            },
            socket,
        ))
    }
}

/// A tap whose host drops what comes, or sends as fast as it can.
#[derive(Debug)]
struct Tap {
    sender: Option<Process>,
}

impl Tap {
    fn make() -> Result<Self> {
        ip("tuntap add dev ratestap mode tap vnet_hdr")?;
        std::fs::write("/proc/sys/net/ipv6/conf/ratestap/disable_ipv6", "1")?;
        // 1518 bytes are 4 more than a tap takes as it is made.
        ip("link set ratestap mtu 2000 up")?;
        Ok(Self { sender: None })
    }

    /// Sends frames of `len` bytes to nobody until it is dropped.
    fn send(&mut self, kit: &Kit, cpu: usize, len: u16) -> Result<()> {
        let mut frame = vec![0; usize::from(len)];
        // From one local address to another, of a type for experiments (IEEE 802, 88b5).
        let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        frame[..head.len()].copy_from_slice(&head);
        let file = Path::new(RUN_DIR).join("rates.pcap");
        std::fs::write(&file, write_pcap(&vec![frame; 64])?)?;
        let mut command = kit.tool("tcpreplay")?;
        command
            .args(["--topspeed", "--preload-pcap", "--loop=0", "--quiet"])
            .args(["-i", "ratestap"])
            .arg(file);
        let log = Path::new(RUN_DIR).join("tcpreplay.log");
        let sender = Process::start("tcpreplay", &mut command, log)?;
        bind(i32::try_from(sender.pid()).ok(), cpu)?;
        self.sender = Some(sender);
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.sender = None;
        // Else it goes with the sandbox.
        let _ = ip("link del ratestap");
    }
}

fn ip(words: &str) -> Result<()> {
    let mut ip = Command::new("ip");
    output_of(ip.args(words.split_whitespace())).map(drop)
}

/// Frames a second that the driver counts once they flow.
pub(crate) fn measure(
    kit: &Kit,
    cpus: Cpus,
    (device, direction): (Device, Direction),
    frame_len: u16,
    length: Duration,
) -> Result<f64> {
    let memory = memory();
    let (mut running, socket) =
        Running::start(kit, cpus.host, (device, direction), frame_len, memory)?;
    let driver = TestpmdConfig {
        frame_len,
        memory,
        cpu: Some(cpus.guest),
        ..TestpmdConfig::driver(&socket, "", direction.driver_mode())
    };
    let mut driver = Testpmd::start(kit, &driver)?;
    if let (Running::Daemon { tap: Some(tap), .. }, Direction::ToGuest) = (&mut running, direction)
    {
        tap.send(kit, cpus.host, frame_len)?;
    }
    driver.go()?;
    wait_until("the first frames", Duration::from_secs(20), || {
        Ok(direction.count(driver.show()?) > 10_000)
    })?;
    let (began, before) = (now(), direction.count(driver.show()?));
    std::thread::sleep(length);
    let (seconds, after) = (began.elapsed(), direction.count(driver.show()?));
    driver.stop()?;
    driver.quit()?;
    // A count of a few seconds.
    let frames = u32::try_from(after - before).context("too many frames")?;
    Ok(f64::from(frames) / seconds.as_secs_f64())
}
