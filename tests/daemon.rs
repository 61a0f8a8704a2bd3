//! The program from start to end without a guest: its socket, its signals. Needs root for the tap.
#![cfg(feature = "daemon")]

#[path = "support/netns.rs"]
mod netns;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use self::netns::{in_namespace, ip};

/// A started daemon and what it says.
struct Daemon {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Daemon {
    fn start(socket: &Path) -> Self {
        Self::start_on(socket, &["--tap=tap0"])
    }

    fn start_on(socket: &Path, uplink: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vhost-user-gro"))
            .arg("--socket-path")
            .arg(socket)
            .args(uplink)
            .arg("--log-level=info")
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let said = BufReader::new(child.stderr.take().expect("it is a pipe"));
        Self { child, said }
    }

    /// The next line with `word` in it, and nothing if the daemon ends before.
    fn wait_for(&mut self, word: &str) -> Option<String> {
        let lines = self.said.by_ref().lines();
        lines.map_while(Result::ok).find(|line| line.contains(word))
    }

    fn kill(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("it has a number"), signal).expect("it runs");
    }

    fn status(&mut self) -> Option<i32> {
        self.child.wait().expect("it is our child").code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn the_socket_of_another_daemon_stays_alive() {
    in_namespace("the_socket_of_another_daemon_stays_alive", || {
        ip("tuntap add dev tap0 mode tap");
        let folder = folder();
        let socket = folder.path().join("live");
        let live = UnixListener::bind(&socket).unwrap();
        let mut daemon = Daemon::start(&socket);
        let text = daemon.wait_for("caused by");
        assert_eq!(daemon.status(), Some(1), "{text:?}");
        assert!(text.is_some_and(|text| text.contains("live")), "no cause");
        let client = UnixStream::connect(&socket).unwrap();
        live.accept().unwrap();
        drop(client);
    });
}

#[test]
fn a_socket_that_nobody_listens_on_is_replaced_and_removed_at_the_end() {
    let test = "a_socket_that_nobody_listens_on_is_replaced_and_removed_at_the_end";
    in_namespace(test, || {
        let folder = folder();
        let socket = folder.path().join("stale");
        drop(UnixListener::bind(&socket).unwrap());
        let mut daemon = Daemon::start(&socket);
        daemon.wait_for("listening").expect("it listens");
        UnixStream::connect(&socket).unwrap();
        daemon.kill(Signal::TERM);
        assert_eq!(daemon.status(), Some(0));
        assert!(!socket.exists());
    });
}

#[test]
fn f40_a_tap_deleted_without_a_guest_is_noticed_and_made_again() {
    in_namespace(
        "f40_a_tap_deleted_without_a_guest_is_noticed_and_made_again",
        || {
            let folder = folder();
            let mut daemon = Daemon::start(&folder.path().join("socket"));
            daemon.wait_for("listening").expect("it listens");
            ip("link del tap0");
            daemon.wait_for("tap tap0 is gone").expect("it says so");
            ip("tuntap add dev tap0 mode tap vnet_hdr");
            ip("link set dev tap0 up");
            daemon.wait_for("is there again").expect("it says so");
            daemon.kill(Signal::TERM);
            assert_eq!(daemon.status(), Some(0));
        },
    );
}

#[test]
fn a_tap_that_is_down_is_said_to_be() {
    in_namespace("a_tap_that_is_down_is_said_to_be", || {
        let folder = folder();
        let mut daemon = Daemon::start(&folder.path().join("socket"));
        daemon.wait_for("tap tap0 is down").expect("it says so");
        ip("link set dev tap0 up");
        daemon.wait_for("tap tap0 is up").expect("it says so");
        ip("link set dev tap0 down");
        daemon.wait_for("tap tap0 is down").expect("it says so");
        daemon.kill(Signal::TERM);
        assert_eq!(daemon.status(), Some(0));
    });
}

#[test]
fn each_signal_to_stop_is_a_normal_end() {
    in_namespace("each_signal_to_stop_is_a_normal_end", || {
        let folder = folder();
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut daemon = Daemon::start(&folder.path().join("socket"));
            daemon.wait_for("listening").expect("it listens");
            daemon.kill(signal);
            assert_eq!(daemon.status(), Some(0), "{signal:?}");
        }
    });
}

#[test]
fn counters_are_one_line_of_json_and_the_daemon_goes_on() {
    in_namespace(
        "counters_are_one_line_of_json_and_the_daemon_goes_on",
        || {
            let folder = folder();
            let mut daemon = Daemon::start(&folder.path().join("socket"));
            daemon.wait_for("listening").expect("it listens");
            for _ in 0..2 {
                daemon.kill(Signal::USR1);
                let line = daemon.wait_for("{").expect("it prints counters");
                let json: serde_json::Value = serde_json::from_str(&line).unwrap();
                assert_eq!(json["queue_pairs"].as_array().map(Vec::len), Some(1));
            }
            daemon.kill(Signal::TERM);
            assert_eq!(daemon.status(), Some(0));
        },
    );
}

#[test]
fn the_end_does_not_wait_for_a_reader_of_standard_error() {
    in_namespace(
        "the_end_does_not_wait_for_a_reader_of_standard_error",
        || {
            let folder = folder();
            let mut daemon = Daemon::start(&folder.path().join("socket"));
            daemon.wait_for("listening").expect("it listens");
            // Nobody reads any more, and the pipe is full before the counters are asked for.
            let stderr = daemon.said.get_ref().as_raw_fd();
            let pid = daemon.child.id();
            let writer = std::fs::OpenOptions::new()
                .write(true)
                .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                .open(format!("/proc/self/fd/{stderr}"))
                .unwrap_or_else(|error| panic!("the pipe of {pid} cannot be opened: {error}"));
            while (&writer).write(&[b'x'; 4096]).is_ok() {}
            while (&writer).write(b"x").is_ok() {}
            daemon.kill(Signal::USR1);
            daemon.kill(Signal::TERM);
            assert_eq!(daemon.status(), Some(0));
        },
    );
}

/// Needs no root.
#[test]
fn at_the_end_the_trace_is_whole_and_no_socket_is_left() {
    let folder = folder();
    let (front, link) = (folder.path().join("front"), folder.path().join("link"));
    let trace = folder.path().join("trace");
    let options = [
        format!("--stream=listen:{}", link.display()),
        format!("--pcap={}", trace.display()),
    ];
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let mut daemon = Daemon::start_on(&front, &options);
    daemon.wait_for("listening at").expect("it listens");
    let peer = UnixStream::connect(&link).expect("it listens for a peer");
    daemon.wait_for("connected").expect("it takes the peer");
    drop(peer);
    daemon
        .wait_for("connection ended")
        .expect("it sees its end");
    daemon.kill(Signal::TERM);
    assert_eq!(daemon.status(), Some(0));
    assert!(!front.exists() && !link.exists());
    // A section and an interface, and nothing behind them.
    assert_eq!(std::fs::metadata(&trace).expect("it is there").len(), 60);
}

/// Needs no root.
#[test]
fn a_second_start_touches_nothing_of_the_first() {
    let folder = folder();
    let (front, link) = (folder.path().join("front"), folder.path().join("link"));
    let trace = folder.path().join("trace");
    let pcap = format!("--pcap={}", trace.display());
    let stream = format!("--stream=listen:{}", link.display());
    let mut first = Daemon::start_on(&front, &[&stream, &pcap]);
    first.wait_for("listening at").expect("it is there");
    // What a capture has gained since must be there afterwards.
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(&trace)
        .expect("it is there");
    file.write_all(&[0; 100]).expect("there is room");
    let other = folder.path().join("other");
    for (socket, uplink, word) in [
        (&front, "--null", "front is in use"),
        (&other, stream.as_str(), "link is in use"),
        (&other, "--null", "another process writes its trace"),
    ] {
        let mut second = Daemon::start_on(socket, &[uplink, &pcap]);
        second.wait_for(word).expect("it says what is in the way");
        assert_eq!(second.status(), Some(1), "{word}");
        assert!(!other.exists());
        assert_eq!(std::fs::metadata(&trace).expect("it is there").len(), 160);
    }
    first.kill(Signal::USR1);
    let counters = first.wait_for("{").expect("it prints counters");
    let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
    assert!(
        counters.to_string().contains("\"connects\":0"),
        "{counters}"
    );
    first.kill(Signal::TERM);
    assert_eq!(first.status(), Some(0));
}

/// Needs no root.
#[test]
fn a_start_that_fails_late_leaves_the_capture_of_the_last_one() {
    let folder = folder();
    let trace = folder.path().join("trace");
    std::fs::write(&trace, "an old one").expect("there is room");
    let pcap = format!("--pcap={}", trace.display());
    let uplink = ["--null", "--cpus=1023", &pcap];
    let mut daemon = Daemon::start_on(&folder.path().join("front"), &uplink);
    daemon.wait_for("cannot run on CPU").expect("it says so");
    assert_eq!(daemon.status(), Some(1));
    let kept = std::fs::read(&trace).expect("it is there");
    assert_eq!(kept, b"an old one");
}

/// Needs no root.
#[test]
fn the_log_says_whether_the_socket_is_there_while_the_link_goes_and_comes() {
    let folder = folder();
    let (front, link) = (folder.path().join("front"), folder.path().join("link"));
    let stream = format!("--stream=listen:{}", link.display());
    let mut daemon = Daemon::start_on(&front, &[&stream]);
    daemon.wait_for("listening at").expect("it listens");
    let peer = UnixStream::connect(&link).expect("it listens for a peer");
    daemon.wait_for("connected").expect("it takes the peer");
    drop(peer);
    daemon
        .wait_for("nothing listens at")
        .expect("it says that there is no socket");
    assert!(!front.exists());
    let _peer = UnixStream::connect(&link).expect("it listens for a peer");
    let again = format!("listening at {} again", front.display());
    daemon.wait_for(&again).expect("it says that there is one");
    assert!(front.exists());
    daemon.kill(Signal::TERM);
    assert_eq!(daemon.status(), Some(0));
}
