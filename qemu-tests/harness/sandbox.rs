//! Namespaces that hold everything a run makes.
//!
//! The program starts itself once more under `unshare`, as the first process of a process namespace
//! and in a network and a mount namespace of its own. When that process ends, the kernel kills
//! every other one in there, and with the last one the interfaces, namespaces and the private `/run`
//! with its sockets and logs go away. It ends when its standard input closes, which is a pipe held
//! by the outer program: so an interrupt, a panic or a `kill -9` of either leaves nothing behind.
//!
//! Without root a user namespace is put around it, if the system allows that.

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

/// Set for the inner program.
const INSIDE: &str = "VHOST_USER_GRO_SANDBOX";

/// Where a run keeps its sockets and logs: a file system that only the sandbox sees.
pub(crate) const RUN_DIR: &str = "/run";

/// Status with which a run ends that lost its outer program.
const INTERRUPTED: i32 = 130;

/// Whether this is the program inside of the namespaces.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some() && std::process::id() == 1
}

/// Runs this program once more inside of new namespaces, and gives its exit code.
///
/// # Errors
///
/// That the namespaces cannot be had, with the reason.
pub(crate) fn enter() -> Result<ExitCode> {
    let own = std::env::current_exe().context("own path")?;
    let namespaces = namespaces()?;
    let mut inner = Command::new("unshare")
        .args(namespaces)
        .arg("--")
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .stdin(Stdio::piped())
        .spawn()
        .context("start unshare")?;
    let lifeline = inner.stdin.take();
    let status = inner.wait().context("wait for the sandbox")?;
    drop(lifeline);
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The options for `unshare` that work here, tried on `true`.
fn namespaces() -> Result<Vec<&'static str>> {
    let base = [
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let user = ["--user", "--map-root-user"];
    let options: Vec<_> = if rustix::process::geteuid().is_root() {
        base.into()
    } else {
        user.into_iter().chain(base).collect()
    };
    let trial = Command::new("unshare").args(&options).arg("true").output();
    let trial = trial.context("run unshare")?;
    if !trial.status.success() {
        let reason = String::from_utf8_lossy(&trial.stderr);
        bail!(
            "no namespaces (root, or unprivileged user namespaces, needed): {}",
            reason.trim()
        );
    }
    Ok(options)
}

/// Makes the new namespaces usable. Called once by the inner program, first of all.
///
/// # Errors
///
/// Whatever keeps a private `/run` or the loopback interface from coming up.
pub(crate) fn furnish() -> Result<()> {
    std::thread::Builder::new()
        .name("lifeline".into())
        .spawn(|| {
            let mut sink = [0; 16];
            while std::io::stdin().read(&mut sink).is_ok_and(|n| n > 0) {}
            std::process::exit(INTERRUPTED)
        })?;
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs", RUN_DIR])
        .status()?;
    if !mounted.success() {
        bail!("no private {RUN_DIR}: mount ended with {mounted}");
    }
    let mut reading_and_writing = std::fs::File::options();
    reading_and_writing.read(true).write(true);
    reading_and_writing
        .open("/dev/net/tun")
        .context("no tap devices: /dev/net/tun is missing or closed to this user")?;
    // A bridge that asks the packet filter about each frame would be measured along with us.
    if let Ok(settings) = std::fs::read_dir("/proc/sys/net/bridge") {
        for setting in settings.flatten() {
            if setting
                .file_name()
                .to_string_lossy()
                .starts_with("bridge-nf-call-")
            {
                std::fs::write(setting.path(), "0").context("turn bridge filtering off")?;
            }
        }
    }
    Ok(())
}
