//! An ordinary user, for what needs no privilege.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::daemon;
use super::kit::Kit;
use super::process::{Process, output_of};
use super::sandbox::RUN_DIR;

/// Without a name, a group or a right.
const ID: u32 = 1000;

/// A user with a folder of its own, in which a copy of the daemon lies: the way to the one that was
/// built may be closed to others.
#[derive(Debug, Clone)]
pub(crate) struct User {
    home: PathBuf,
    /// `None` where the tests are run by an ordinary user, who is as good.
    id: Option<u32>,
}

impl User {
    /// Makes the folder.
    pub(crate) fn new() -> Result<Self> {
        let map = std::fs::read_to_string("/proc/self/uid_map")?;
        // A namespace of an ordinary user knows one user alone.
        let knows_all = map.split_whitespace().nth(2) == Some("4294967295");
        let user = User {
            home: Path::new(RUN_DIR).join("user"),
            id: knows_all.then_some(ID),
        };
        if !user.home.exists() {
            std::fs::create_dir(&user.home)?;
            std::fs::copy(daemon::program()?, user.home.join("vhost-user-gro"))?;
            user.own(&user.home)?;
        }
        Ok(user)
    }

    /// Where the user may write.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The user's daemon.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        Ok(self.home.join("vhost-user-gro"))
    }

    /// `program`, run by the user.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        self.run(&mut command);
        command
    }

    /// Lets the user run a command, with no right of root's left.
    pub(crate) fn run(&self, command: &mut Command) {
        if let Some(id) = self.id {
            command.gid(id).uid(id);
        }
    }

    /// Makes sure that a process is the user's and has no capability.
    pub(crate) fn check(&self, process: &Process) -> Result<()> {
        let Some(id) = self.id else {
            return Ok(());
        };
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
        let has = |line: &str| status.lines().any(|other| other == line);
        ensure!(
            has(&format!("Uid:\t{id}\t{id}\t{id}\t{id}")) && has("CapEff:\t0000000000000000"),
            "it has privileges: {status}"
        );
        Ok(())
    }

    /// Gives a file to the user.
    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        chown(path, self.id, self.id).with_context(|| format!("chown {}", path.display()))
    }

    /// The kit at a place that the user can reach.
    pub(crate) fn kit(&self, kit: &Kit) -> Result<Kit> {
        let place = Path::new(RUN_DIR).join("kit");
        if !place.exists() {
            std::fs::create_dir(&place)?;
            let mut mount = Command::new("mount");
            output_of(mount.arg("--bind").arg(kit.dir()).arg(&place))?;
        }
        Kit::open_at(place)
    }
}
