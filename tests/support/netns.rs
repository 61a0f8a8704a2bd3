//! A network namespace of its own for one test, so that nothing of the host is touched.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `body` on a thread of its own in a fresh network namespace. Where none can be had the
/// test is skipped, and standard error says so even if the test harness captures output.
pub(crate) fn in_namespace(test: &str, body: impl FnOnce() + Send + 'static) {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(err) => {
            let text = format!("SKIPPED {test}: needs root for a network namespace: {err}\n");
            io::stderr().write_all(text.as_bytes()).ok();
            return;
        }
    };
    let in_there = move || {
        namespace.enter().expect("the namespace was just made");
        // Neighbour discovery would mix its frames with those of the tests.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").ok();
        body();
    };
    let result = std::thread::spawn(in_there).join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Runs ip(8) in the namespace of this thread.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status()
        .expect("ip(8) is installed");
    assert!(status.success(), "ip {arguments}");
}

/// A namespace that lives as long as a process that waits in it.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> io::Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = holder.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line != "ready\n" {
            holder.wait()?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self { holder })
    }

    fn enter(&self) -> io::Result<()> {
        let link = File::open(format!("/proc/{}/ns/net", self.holder.id()))?;
        move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The holder ends when its input does; a thread inside keeps the namespace.
        drop(self.holder.stdin.take());
        self.holder.wait().ok();
    }
}
