//! The programs and the guest image that `setup.sh` puts below `target/qemu`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::vm::{Netdev, Vm, VmConfig};

/// Everything fetched, and where it lies.
#[derive(Debug)]
pub(crate) struct Kit {
    dir: PathBuf,
    pub(crate) accel: Accel,
    /// Newest first; one where the distribution has only one.
    pub(crate) qemus: Vec<Qemu>,
}

/// One version of QEMU.
#[derive(Debug, Clone)]
pub(crate) struct Qemu {
    tree: PathBuf,
    /// As it says itself, such as `10.0.2`.
    pub(crate) version: String,
}

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accel {
    Kvm,
    Tcg,
}

impl Accel {
    /// The name QEMU and the results use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }
}

/// The build's `target` folder: this program is `target/PROFILE/{deps,examples}/NAME`.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("own path")?;
    let target = own
        .ancestors()
        .nth(3)
        .context("not in a build's target folder")?;
    Ok(target.to_path_buf())
}

/// Fetches and builds what is missing. To be called outside of the sandbox: it needs the network
/// the first time.
///
/// # Errors
///
/// That the script could not be run or failed; it has said why on standard error.
pub(crate) fn set_up() -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu-tests/setup.sh");
    let status = Command::new(&script)
        .arg(target_dir()?.join("qemu"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("run {}", script.display()))?;
    if !status.success() {
        bail!("{} failed", script.display());
    }
    Ok(())
}

impl Kit {
    /// Opens what [`set_up`] left, and finds out whether KVM can be used.
    pub(crate) fn open() -> Result<Self> {
        Self::open_at(target_dir()?.join("qemu"))
    }

    /// The same, wherever it lies.
    pub(crate) fn open_at(dir: PathBuf) -> Result<Self> {
        let qemus = ["newest", "release"]
            .into_iter()
            .map(|name| dir.join("qemu").join(name))
            .filter(|tree| tree.exists())
            .map(Qemu::open)
            .collect::<Result<Vec<_>>>()?;
        if qemus.is_empty() {
            bail!("no QEMU below {}", dir.display());
        }
        let mut kit = Kit {
            dir,
            accel: Accel::Tcg,
            qemus,
        };
        kit.accel = kit.probe_kvm()?;
        Ok(kit)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The newest QEMU there is.
    pub(crate) fn newest(&self) -> &Qemu {
        &self.qemus[0]
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.dir.join("image/vmlinuz")
    }

    pub(crate) fn initrd(&self) -> PathBuf {
        self.dir.join("image/initrd")
    }

    /// Names and versions of the guest's kernel and programs.
    pub(crate) fn versions(&self) -> Result<Vec<(String, String)>> {
        let text = std::fs::read_to_string(self.dir.join("image/versions"))?;
        let pair = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next_back()?.to_owned()))
        };
        Ok(text.lines().filter_map(pair).collect())
    }

    /// A host program of the kit, such as `netperf`, ready to be given arguments.
    pub(crate) fn tool(&self, name: &str) -> Result<Command> {
        let tree = self.dir.join("tools");
        let program = ["usr/bin", "usr/sbin", "bin", "sbin"]
            .iter()
            .map(|folder| tree.join(folder).join(name))
            .find(|path| path.is_file())
            .with_context(|| format!("no {name} in {}", tree.display()))?;
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", library_path(&tree))
            .stdin(Stdio::null());
        Ok(command)
    }

    /// KVM may be there and yet not run a stock guest, so a guest is booted with it. The answer is
    /// kept until the machine boots again.
    fn probe_kvm(&self) -> Result<Accel> {
        let opened = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm");
        if opened.is_err() {
            return Ok(Accel::Tcg);
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let cache = self.dir.join("accel");
        if let Some(accel) = std::fs::read_to_string(&cache).ok().and_then(|text| {
            let (accel, of_boot) = text.split_once(' ')?;
            (of_boot == boot).then_some(if accel == "kvm" {
                Accel::Kvm
            } else {
                Accel::Tcg
            })
        }) {
            return Ok(accel);
        }
        let trial = VmConfig {
            accel: Some(Accel::Kvm),
            boot_limit: Duration::from_secs(15),
            ..VmConfig::new(Netdev::None)
        };
        let accel = match Vm::start(self, self.newest(), &trial) {
            Ok(_) => Accel::Kvm,
            Err(_) => Accel::Tcg,
        };
        std::fs::write(cache, format!("{} {boot}", accel.name()))?;
        Ok(accel)
    }
}

impl Qemu {
    fn open(tree: PathBuf) -> Result<Self> {
        let mut qemu = Qemu {
            tree,
            version: String::new(),
        };
        let output = qemu
            .command()
            .arg("--version")
            .output()
            .context("run QEMU")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text
            .split_whitespace()
            .nth(3)
            .context("QEMU tells no version")?;
        version.clone_into(&mut qemu.version);
        Ok(qemu)
    }

    /// The first number of the version.
    pub(crate) fn major(&self) -> u32 {
        self.version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .unwrap_or(0)
    }

    /// QEMU with its own libraries, modules and firmware.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.tree.join("usr/bin/qemu-system-x86_64"));
        command
            .env("LD_LIBRARY_PATH", library_path(&self.tree))
            .env(
                "QEMU_MODULE_DIR",
                self.tree.join("usr/lib/x86_64-linux-gnu/qemu"),
            )
            .arg("-L")
            .arg(self.tree.join("usr/share/qemu"))
            .arg("-L")
            .arg(self.tree.join("usr/share/seabios"));
        command
    }
}

pub(super) fn library_path(tree: &Path) -> OsString {
    let mut path = tree.join("usr/lib/x86_64-linux-gnu").into_os_string();
    path.push(":");
    path.push(tree.join("lib/x86_64-linux-gnu"));
    path
}
