//! A QEMU with a guest in it.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::command_line;
use super::console::{Answer, Console};
use super::kit::{Accel, Kit, Qemu};
use super::process::{Process, Thread};
use super::qmp::Qmp;
use super::sandbox::RUN_DIR;
use super::user::User;
use super::wait::{now, wait_for};

/// How long a command in the guest may take, unless said otherwise.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// What the guest's network device is connected to.
#[derive(Debug, Clone)]
pub(crate) enum Netdev {
    None,
    /// QEMU's own tap back end.
    Tap(String),
    /// QEMU's own stream socket, which listens.
    Stream(PathBuf),
    /// A vhost-user back end that listens.
    VhostUser(PathBuf),
    /// A vhost-user back end that connects.
    VhostUserServer(PathBuf),
}

/// How a guest is made.
#[derive(Debug, Clone)]
pub(crate) struct VmConfig {
    pub(crate) netdev: Netdev,
    /// Further properties of the network device, such as `mrg_rxbuf=off`.
    pub(crate) properties: String,
    /// Queue pairs.
    pub(crate) queues: u16,
    pub(crate) rx_queue_size: u16,
    pub(crate) vcpus: u16,
    pub(crate) memory_mib: u32,
    /// The guest's number: the host part of its addresses and the last byte of its MAC.
    pub(crate) number: u8,
    /// The guest's MTU.
    pub(crate) mtu: u32,
    /// Instead of what the kit found to work.
    pub(crate) accel: Option<Accel>,
    pub(crate) boot_limit: Duration,
    /// Who QEMU runs as, if not whoever runs the tests.
    pub(crate) user: Option<User>,
}

impl VmConfig {
    /// One queue pair, one processor, QEMU's default ring size.
    pub(crate) fn new(netdev: Netdev) -> Self {
        VmConfig {
            netdev,
            properties: String::new(),
            queues: 1,
            rx_queue_size: 256,
            vcpus: 1,
            memory_mib: 256,
            number: 10,
            mtu: 1500,
            accel: None,
            boot_limit: Duration::from_secs(90),
            user: None,
        }
    }
}

/// A running guest. QEMU ends with it.
#[derive(Debug)]
pub(crate) struct Vm {
    console: Mutex<Console>,
    qmp: Mutex<Qmp>,
    process: Process,
    dir: PathBuf,
    config: VmConfig,
    pub(crate) ip4: String,
    pub(crate) ip6: String,
    pub(crate) mac: String,
}

static NEXT_VM: AtomicU32 = AtomicU32::new(0);

impl Vm {
    /// Boots a guest and waits until it takes commands. Its network is not configured yet.
    pub(crate) fn start(kit: &Kit, qemu: &Qemu, config: &VmConfig) -> Result<Self> {
        let id = NEXT_VM.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(RUN_DIR).join(format!("vm{id}"));
        std::fs::create_dir(&dir)?;
        let console = UnixListener::bind(dir.join("console"))?;
        let monitor = UnixListener::bind(dir.join("qmp"))?;

        let mac = format!("52:54:00:77:00:{:02x}", config.number);
        let accel = config.accel.unwrap_or(kit.accel);
        let mut command = qemu.command();
        if let Some(user) = &config.user {
            user.run(&mut command);
            for path in [dir.clone(), dir.join("console"), dir.join("qmp")] {
                user.own(&path)?;
            }
        }
        command_line::machine(&mut command, config, qemu, accel);
        command
            .arg("-kernel")
            .arg(kit.kernel())
            .arg("-initrd")
            .arg(kit.initrd())
            .arg("-serial")
            .arg(format!("file:{}", dir.join("serial").display()))
            .args(["-device", "virtio-serial-pci", "-chardev"])
            .arg(format!(
                "socket,id=console,path={}",
                dir.join("console").display()
            ))
            .args(["-device", "virtserialport,chardev=console", "-qmp"])
            .arg(format!("unix:{}", dir.join("qmp").display()));
        command_line::network(&mut command, config, qemu, accel, &mac);
        let mut process = Process::start("QEMU", &mut command, dir.join("qemu.log"))?;

        let console = Console::new(accept(&console, &mut process)?);
        let qmp = Qmp::new(accept(&monitor, &mut process)?)?;
        let mut vm = Vm {
            console: Mutex::new(console),
            qmp: Mutex::new(qmp),
            process,
            dir,
            config: config.clone(),
            ip4: format!("10.77.0.{}", config.number),
            ip6: format!("fd77::{}", config.number),
            mac,
        };
        vm.wait_ready(config.boot_limit)?;
        Ok(vm)
    }

    /// As [`Vm::start`], for measurements. An emulated guest that was interrupted while it compared
    /// its clocks may find a rate that is several times too high; such a one is booted again.
    pub(crate) fn start_with_true_clock(kit: &Kit, qemu: &Qemu, config: &VmConfig) -> Result<Self> {
        for _ in 0..5 {
            let vm = Vm::start(kit, qemu, config)?;
            if (0.97..1.03).contains(&vm.clock_rate()?) {
                return Ok(vm);
            }
        }
        bail!("the guest's clock is wrong at each boot; is the machine overloaded?")
    }

    /// The guest's seconds to a second.
    fn clock_rate(&self) -> Result<f64> {
        let uptime = || -> Result<(f64, Instant)> {
            let text = self.run("cat /proc/uptime")?;
            let seconds = text
                .split_whitespace()
                .next()
                .context("no uptime")?
                .parse()?;
            Ok((seconds, now()))
        };
        let (guest, host) = uptime()?;
        std::thread::sleep(Duration::from_secs(1));
        let (later, then) = uptime()?;
        Ok((later - guest) / (then - host).as_secs_f64())
    }

    /// Waits until the guest has booted, for the first time or again.
    fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let ready = self.console().wait_ready(limit);
        if ready.is_err() {
            // Says so if it is QEMU that ended.
            let _ = self.process.wait(Duration::from_millis(100));
            self.process.check_alive()?;
        }
        ready.with_context(|| self.last_words())
    }

    /// What QEMU and the guest's kernel said last.
    pub(crate) fn last_words(&self) -> String {
        let serial = std::fs::read(self.dir.join("serial")).unwrap_or_default();
        let serial = String::from_utf8_lossy(&serial).into_owned();
        let lines: Vec<_> = serial.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        format!(
            "QEMU: {}\nguest: {}",
            self.process.log().trim(),
            tail.trim()
        )
    }

    /// Gives the guest's interface its MTU and addresses and brings it up.
    pub(crate) fn configure(&self) -> Result<()> {
        let Vm { ip4, ip6, .. } = self;
        let mtu = self.config.mtu;
        self.run(&format!(
            "ip link set eth0 mtu {mtu} up && ip addr add {ip4}/24 dev eth0 && \
             ip addr add {ip6}/64 dev eth0"
        ))
        .map(drop)
    }

    /// Runs a shell command in the guest and gives what it printed.
    ///
    /// # Errors
    ///
    /// Also when the command ends with a status other than 0.
    pub(crate) fn run(&self, command: &str) -> Result<String> {
        let answer = self.attempt(command, COMMAND_LIMIT)?;
        if answer.status != 0 {
            bail!(
                "in guest: {command}: status {}: {}",
                answer.status,
                answer.text.trim()
            );
        }
        Ok(answer.text)
    }

    /// Runs a shell command in the guest, whatever its status.
    pub(crate) fn attempt(&self, command: &str, limit: Duration) -> Result<Answer> {
        self.console().run(command, limit)
    }

    /// Lets the guest reboot and waits until it is back.
    pub(crate) fn reboot(&mut self) -> Result<()> {
        self.console().send("reboot -f")?;
        self.wait_ready(self.config.boot_limit)
    }

    /// Carries out a command of QEMU's monitor.
    pub(crate) fn qmp(&self, command: &str, arguments: &Value) -> Result<Value> {
        self.qmp
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .execute(command, arguments)
    }

    /// The last byte of the guest's addresses.
    pub(crate) fn number(&self) -> u8 {
        self.config.number
    }

    /// QEMU itself.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// The thread ids of the guest's processors.
    pub(crate) fn vcpus(&self) -> Result<Vec<i32>> {
        let answer = self.qmp("query-cpus-fast", &json!({}))?;
        let cpus = answer.as_array().context("query-cpus-fast gives no list")?;
        cpus.iter()
            .map(|cpu| {
                cpu["thread-id"]
                    .as_i64()
                    .and_then(|tid| i32::try_from(tid).ok())
                    .context("no thread-id")
            })
            .collect()
    }

    /// Processor time used so far by the guest's processors, and by the rest of QEMU.
    pub(crate) fn cpu_time(&self) -> Result<(Duration, Duration)> {
        let vcpus = self.vcpus()?;
        let (guest, rest): (Vec<_>, Vec<_>) = self
            .process
            .threads()?
            .into_iter()
            .partition(|thread| vcpus.contains(&thread.tid));
        let sum = |threads: Vec<Thread>| threads.iter().map(|thread| thread.cpu).sum();
        Ok((sum(guest), sum(rest)))
    }

    /// Ends QEMU in the way of a user who closes it, and waits for that.
    pub(crate) fn quit(mut self) -> Result<()> {
        // The answer may get lost in the end of QEMU.
        let _ = self.qmp("quit", &json!({}));
        self.process.wait(Duration::from_secs(10)).map(drop)
    }

    fn console(&self) -> std::sync::MutexGuard<'_, Console> {
        self.console.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until QEMU connects, or has ended.
fn accept(listener: &UnixListener, process: &mut Process) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let stream = wait_for("QEMU's connection", Duration::from_secs(30), || {
        process.check_alive()?;
        match listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}
