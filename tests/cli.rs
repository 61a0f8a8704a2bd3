//! The command line through the built program: what it refuses, how it says so, how it ends.
#![cfg(feature = "daemon")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

const SOCKET: &str = "--socket-path=/nowhere/socket";
const TAP: &str = "--tap=no-such-tap";

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vhost-user-gro"))
        .args(args)
        .env_remove("RUST_LOG")
        .env_remove("JOURNAL_STREAM")
        .stdin(Stdio::null())
        .output()
        .expect("the program was built")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs with a configuration file of this text and gives what is said when it is refused.
#[track_caller]
fn refused_file(text: &str) -> String {
    let file = tempfile::NamedTempFile::with_suffix(".toml").expect("a temporary file");
    std::fs::write(file.path(), text).expect("it can be written");
    let path = file.path().to_str().expect("it is ASCII");
    let output = run(&["--config", path]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(path), "the file is not named: {text}");
    text
}

#[track_caller]
fn refused_flags(args: &[&str]) -> String {
    let output = run(args);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    text
}

#[test]
fn capabilities_are_printed_whatever_else_is_asked() {
    let output = run(&[
        "--budget=0",
        "--nonsense",
        "--print-capabilities",
        "--config=/nowhere",
    ]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(json["type"], "net");
}

#[test]
fn version_and_help_go_to_standard_output() {
    let output = run(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let version = concat!("vhost-user-gro ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("--gro-flush-timeout-ns"));
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (key, nearest) in [
        ("gro_flush_timeout", "gro_flush_timeout_ns"),
        ("queue-pairs", "queue_pairs"),
        ("sock_path", "socket_path"),
    ] {
        let text = refused_file(&format!("{key} = 1\n"));
        let expected = format!("unknown key {key}: the nearest known one is {nearest}");
        assert!(text.contains(&expected), "{text}");
    }
    // An option of the command line alone is no key.
    let text = refused_file("config = \"other.toml\"\n");
    assert!(text.contains("unknown key config"), "{text}");
    let text = refused_flags(&[SOCKET, TAP, "--gro-flush-timeout=1"]);
    assert!(text.contains("--gro-flush-timeout-ns"), "{text}");
}

#[test]
fn a_value_out_of_range_names_file_key_and_range() {
    for (line, expected) in [
        ("budget = 65", "budget = 65: expected 1 to 64 frames"),
        ("budget = 0", "budget = 0: expected 1 to 64 frames"),
        ("budget = -1", "budget = -1: expected 1 to 64 frames"),
        (
            "gro_flush_timeout_ns = 1_000_000_001",
            "0 to 1000000000 nanoseconds",
        ),
        ("napi_defer_hard_irqs = 2147483648", "0 to 2147483647 polls"),
        ("gro_normal_batch = 1025", "1 to 1024 segments"),
        ("gro_max_size_bytes = 65536", "1500 to 65535 bytes"),
        ("gro_max_segs = 1", "2 to 65535 segments"),
        ("round_usecs = 99", "100 to 1000000 microseconds"),
        (
            "udp_exclude_ports = \"4789,65536\"",
            "at most 16 ports, 0 to 65535",
        ),
        ("mtu = 67", "68 to 65535 bytes"),
        ("queue_pairs = 33", "1 to 32 queue pairs"),
        ("reconnect_ms = 0", "1 to 3600000 milliseconds"),
        ("tap = \"a/b\"", "'/' is not allowed"),
        ("tap = \"sixteen-letters!\"", "longer than 15 bytes"),
        ("socket_mode = \"999\"", "octal permissions"),
        ("cpus = \"7-4\"", "CPU numbers and ranges"),
        ("sched = \"fifo\"", "fifo:PRIORITY or rr:PRIORITY"),
        ("workers = 33", "workers = 33: expected 1 to 32"),
        ("uplink_queues = 0", "uplink_queues = 0: expected 1 to 32"),
        ("steer_by = \"ports\"", "expected flow, addresses"),
        ("steer_ring = 63", "64 to 16384 frames"),
        ("steer_batch = 65", "1 to 64 frames"),
        ("steer_cpu = \"a\"", "CPU numbers and ranges"),
        ("stream = \"passt\"", "a path with a slash or HOST:PORT"),
        ("stream = \"host:0\"", "a path with a slash or HOST:PORT"),
    ] {
        let text = refused_file(line);
        assert!(text.contains(expected), "{line}: {text}");
        let key = line.split(' ').next().unwrap_or_default();
        assert!(text.contains(key), "{line}: {text}");
    }
    let text = refused_flags(&[SOCKET, TAP, "--budget=65"]);
    assert!(
        text.contains("--budget") && text.contains("1 to 64 frames"),
        "{text}"
    );
}

#[test]
fn a_value_of_the_wrong_kind_says_what_was_expected() {
    for (line, expected) in [
        ("budget = \"many\"", "expected 1 to 64 frames"),
        ("budget = 1.5", "expected a plain value"),
        ("budget = [1, 2]", "expected a single value"),
        ("budget = []", "expected a single value"),
        ("udp_gro = \"perhaps\"", "expected on, off"),
        ("udp_exclude_ports = [4789]", "expected a string in quotes"),
        ("udp_exclude_ports = []", "expected a single value"),
        ("tap = { name = \"tap0\" }", "expected a plain value"),
        ("gro = \"maybe\"", "expected on, off"),
        ("queue_num = \"dozens\"", "expected pairs, vrings"),
        ("log_level = \"loud\"", "expected off, error, warn"),
        ("tap = 5", "tap = 5: expected a string"),
        (
            "socket_path = true",
            "socket_path = true: expected a string",
        ),
        ("socket_mode = 660", "socket_mode = 660: expected a string"),
        ("cpus = 1", "cpus = 1: expected a string such as \"2,4-7\""),
        ("cpus = [0, 1]", ": expected a string such as \"2,4-7\""),
        (
            "sched = []",
            "expected a string such as \"fifo:50,other:0\"",
        ),
        ("udp_exclude_ports = 4789", "4789: expected a string"),
        ("budget = \"64\"", "budget = \"64\": expected an integer"),
        ("tap_fd = [4, \"5\"]", "expected an integer"),
    ] {
        let text = refused_file(line);
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn a_file_that_is_no_toml_or_not_there_is_refused() {
    let text = refused_file("budget = [");
    assert!(text.contains("line 1"), "{text}");
    let text = refused_flags(&["--config", "/nowhere/at/all.toml"]);
    assert!(text.contains("/nowhere/at/all.toml"), "{text}");
}

#[test]
fn a_file_without_end_is_not_read_to_it() {
    let text = refused_flags(&["--config=/dev/zero"]);
    assert!(text.contains("/dev/zero: expected at most"), "{text}");
}

#[test]
fn what_does_not_fit_names_the_file_if_it_came_from_there() {
    let paths = "socket_path = \"/s\"\n";
    for (text, expected) in [
        ("tap = \"t\"", "expected socket_path or fd"),
        (
            "client = true\nsocket_mode = \"600\"\ntap = \"t\"",
            "socket_mode was given",
        ),
        ("tap_fd = [4, 4]", "descriptor 4"),
        ("tap_fd = [4]\nqueue_pairs = 2", "queue_pairs is 2"),
        ("tap = \"t\"\nround_budget = 8", "round_budget is 8"),
        (
            "tap = \"t\"\nworkers = 2",
            "workers is 2: expected at most queue_pairs, which is 1",
        ),
        (
            "tap = \"t\"\nqueue_pairs = 2\nuplink_queues = 3",
            "uplink_queues is 3: expected at most queue_pairs, which is 2",
        ),
        (
            "null = true\nuplink_queues = 2",
            "uplink_queues is 2: expected at most queue_pairs, which is 1",
        ),
        (
            "tap_fd = [7, 8]\nqueue_pairs = 4\nuplink_queues = 1",
            "uplink_queues is 1: expected tap_fd as often, but it was given 2 times",
        ),
        (
            "tap = \"t\"\nqueue_pairs = 2\nsteer_ring = 64",
            "steer_ring was given: expected uplink_queues beside it, below queue_pairs",
        ),
    ] {
        let paths = if expected.contains("socket_path") {
            ""
        } else {
            paths
        };
        let text = refused_file(&format!("{paths}{text}\n"));
        assert!(text.contains(expected), "{text}");
    }
    // The file has no part in this.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), paths).expect("it can be written");
    let path = file.path().to_str().expect("it is ASCII");
    let text = refused_flags(&["--config", path, "--tap-fd=4", "--tap-fd=4"]);
    assert!(
        !text.contains(path) && text.contains("descriptor 4"),
        "{text}"
    );
}

#[test]
fn a_negative_number_is_out_of_range_and_no_unknown_option() {
    let text = refused_flags(&[SOCKET, TAP, "--gro-flush-timeout-ns", "-1"]);
    assert!(text.contains("0 to 1000000000 nanoseconds"), "{text}");
}

#[test]
fn socket_path_and_fd_exclude_each_other() {
    let text = refused_flags(&[SOCKET, "--fd=3", TAP]);
    assert!(
        text.contains("--fd") && text.contains("--socket-path"),
        "{text}"
    );
    let text = refused_file("fd = 3\nsocket_path = \"/s\"\ntap = \"t\"\n");
    assert!(
        text.contains("fd") && text.contains("socket_path"),
        "{text}"
    );
    let text = refused_file("tap_fd = [3]\nsocket_path = \"/s\"\ntap = \"t\"\n");
    assert!(
        text.contains("tap_fd") && text.contains("exclude each other"),
        "{text}"
    );
}

#[test]
fn what_is_missing_or_does_not_fit_is_named() {
    for (args, expected) in [
        (&[TAP][..], "socket_path or fd"),
        (&[SOCKET][..], "expected one of tap, tap_fd, "),
        (&[SOCKET, TAP, "--reconnect-ms=5"][..], "reconnect_ms"),
        (
            &[SOCKET, TAP, "--client", "--socket-mode=600"][..],
            "socket_mode",
        ),
        (&["--fd=3", TAP, "--client"][..], "client"),
        (
            &[SOCKET, "--tap-fd=4", "--queue-pairs=2"][..],
            "queue_pairs is 2",
        ),
        (&[SOCKET, "--tap-fd=4", "--tap-fd=4"][..], "descriptor 4"),
        (&["--fd=4", "--tap-fd=4"][..], "descriptor 4"),
        (
            &[SOCKET, "--tap-fd=4", "--tap-persistent"][..],
            "tap_persistent",
        ),
        (&[SOCKET, TAP, "--round-budget=8"][..], "round_budget is 8"),
        (&["--fd=4", "--stream-fd=4"][..], "descriptor 4"),
        (&[SOCKET, TAP, "--stream-link=off"][..], "stream_link"),
    ] {
        let text = refused_flags(args);
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn uplinks_exclude_each_other() {
    let text = refused_flags(&[SOCKET, TAP, "--stream=/s"]);
    assert!(
        text.contains("--stream") && text.contains("--tap"),
        "{text}"
    );
    let text = refused_file("socket_path = \"/s\"\ntap = \"t\"\nnull = true\n");
    assert!(
        text.contains("tap and null exclude each other")
            || text.contains("null and tap exclude each other"),
        "{text}"
    );
}

#[test]
fn uplinks_are_listed() {
    let output = run(&["uplinks"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for (kind, flag) in [
        ("tap", "--tap-fd"),
        ("stream", "--stream"),
        ("null", "--null"),
    ] {
        let line = text.lines().find(|line| line.starts_with(kind));
        let line = line.unwrap_or_else(|| panic!("no {kind}: {text}"));
        assert!(line.contains(flag), "{line}");
        let has_answer = line.contains(" yes  ") || line.contains(" no   ");
        assert!(has_answer, "{line}");
    }
}

#[test]
fn what_an_uplink_or_a_trace_cannot_have_is_named() {
    for (args, expected) in [
        (
            &["--stream=/s", "--queue-pairs=2"][..],
            "expected uplink_queues = 1",
        ),
        (
            &["--stream=listen:/nowhere/s"][..],
            "cannot bind /nowhere/s",
        ),
        (&["--stream-fd=99"][..], "descriptor 99 was not inherited"),
        (
            &["--null", "--pcap=/nowhere/trace"][..],
            "/nowhere/trace cannot be written",
        ),
        (
            &["--null", "--queue-pairs=2", "--cpus=0,1023"][..],
            "cannot run on CPU 1023",
        ),
    ] {
        // A client has nothing of its own that could be missing.
        let output = run(&[&[SOCKET, "--client"], args].concat());
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn flags_win_over_the_file() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = file.path().to_str().expect("it is ASCII");
    let said_with = |in_file: &str, flag: &str| {
        let text = format!("socket_path = \"/nowhere/socket\"\n{in_file}\n");
        std::fs::write(file.path(), text).expect("it can be written");
        let output = run(&["--config", path, flag]);
        // The configuration is taken, and then the uplink cannot be had.
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    // The option itself, and one that excludes the one in the file, from either side.
    let text = said_with("tap_fd = [77]", "--tap-fd=78");
    assert!(text.contains("descriptor 78"), "{text}");
    let text = said_with("tap = \"lo\"", "--tap-fd=78");
    assert!(text.contains("descriptor 78"), "{text}");
    let text = said_with("tap_fd = [77]", "--tap=lo");
    assert!(!text.contains("77"), "{text}");
    let text = said_with("stream_fd = 77", "--tap-fd=78");
    assert!(text.contains("descriptor 78"), "{text}");
}

#[test]
fn a_failure_at_run_time_has_status_1_and_a_cause() {
    let output = run(&[SOCKET, "--tap-fd=99"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("descriptor 99 was not inherited"), "{text}");
    assert!(text.contains("caused by: "), "{text}");
}

#[test]
fn an_inherited_descriptor_that_is_no_tap_is_named() {
    let null = File::open(Path::new("/dev/null")).expect("it is there");
    // Without the flag the child inherits the descriptor under the same number.
    fcntl_setfd(null.as_fd(), FdFlags::empty()).expect("it is open");
    let number = null.as_raw_fd();
    let output = run(&[SOCKET, &format!("--tap-fd={number}")]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains(&format!("descriptor {number} is no tap")),
        "{text}"
    );
}

#[test]
fn errors_carry_a_priority_when_they_go_to_the_journal() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let stderr = file.reopen().expect("it is there");
    let stat = rustix::fs::fstat(&stderr).expect("it is open");
    let status = Command::new(env!("CARGO_BIN_EXE_vhost-user-gro"))
        .arg(SOCKET)
        .env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino))
        .stderr(stderr)
        .status()
        .expect("the program was built");
    assert_eq!(status.code(), Some(2));
    let text = std::fs::read_to_string(file.path()).expect("it can be read");
    assert!(text.starts_with("<3>"), "{text}");
}
