//! The samples in `configs/` are what the program takes, every key of them.
#![cfg(feature = "daemon")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory;
use vhost_user_gro::app::{Config, Endpoint, Options};
use vhost_user_gro::gro::GroConfig;
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::tx::TxConfig;
use vhost_user_gro::uplink::UplinkOptions;
use vhost_user_gro::uplink::af_packet::AfPacketOptions;
use vhost_user_gro::uplink::af_xdp::AfXdpOptions;
use vhost_user_gro::uplink::tap::TapOptions;

/// One for each kind of uplink; together they explain every key.
const UPLINK_SAMPLES: [&str; 5] = [
    "tap.toml",
    "af-packet.toml",
    "af-xdp.toml",
    "stream.toml",
    "null.toml",
];

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("configs")
        .join(name)
}

fn load(name: &str) -> Config {
    let args = [
        OsString::from("test"),
        "--config".into(),
        sample(name).into(),
    ];
    Config::load(args.to_vec()).unwrap_or_else(|err| panic!("{name}: {err}"))
}

#[test]
fn tap_toml_is_all_defaults() {
    let config = load("tap.toml");
    let path = PathBuf::from("/run/vhost-user-gro/vm0.sock");
    assert_eq!(config.endpoint, Endpoint::Listen { path, mode: None });
    let name = "tap0".to_owned();
    let uplink = UplinkOptions {
        tap: TapOptions {
            tap: Some(name),
            ..TapOptions::default()
        },
        ..UplinkOptions::default()
    };
    assert_eq!(config.uplink, uplink);
    assert_eq!(config.queue_pairs, 1);
    assert_eq!(config.gro, GroConfig::default());
    assert_eq!(config.napi, NapiConfig::default());
    assert_eq!(config.tx, TxConfig::default());
}

#[test]
fn low_latency_toml_holds_nothing() {
    let config = load("low-latency.toml");
    assert_eq!(config.napi.gro_flush_timeout, Duration::ZERO);
    assert_eq!(config.napi.napi_defer_hard_irqs, 0);
    assert_eq!(config.gro.gro_normal_batch, 1);
}

#[test]
fn throughput_toml_has_a_cpu_for_each_thread() {
    let config = load("throughput.toml");
    let cpus = config.cpus.expect("it names CPUs");
    let taken: BTreeSet<_> = (0..config.queue_pairs)
        .map(|i| cpus.for_thread(i))
        .collect();
    assert_eq!(taken.len(), config.queue_pairs);
    assert!(config.napi.gro_flush_timeout > NapiConfig::default().gro_flush_timeout);
}

#[test]
fn stream_toml_connects_to_a_peer() {
    let stream = load("stream.toml").uplink.stream;
    let address = stream.stream.expect("it has an address");
    assert!(!address.listens);
    assert_eq!(stream.stream_link, None);
}

#[test]
fn af_packet_toml_is_all_defaults() {
    let options = AfPacketOptions {
        af_packet: Some("eth1".to_owned()),
        ..AfPacketOptions::default()
    };
    assert_eq!(load("af-packet.toml").uplink.af_packet, options);
}

#[test]
fn af_xdp_toml_is_all_defaults() {
    let options = AfXdpOptions {
        af_xdp: Some("eth1".to_owned()),
        ..AfXdpOptions::default()
    };
    assert_eq!(load("af-xdp.toml").uplink.af_xdp, options);
}

#[test]
fn null_toml_has_no_host_device() {
    assert!(load("null.toml").uplink.null.null);
}

#[test]
fn every_sample_has_a_test() {
    let mut listed = vec!["low-latency.toml", "throughput.toml"];
    listed.extend(UPLINK_SAMPLES);
    listed.sort_unstable();
    let mut found: Vec<_> = std::fs::read_dir(sample(""))
        .expect("the samples are there")
        .map(|entry| {
            entry
                .expect("it can be read")
                .file_name()
                .into_string()
                .expect("ASCII")
        })
        .filter(|name| name.ends_with(".toml"))
        .collect();
    found.sort_unstable();
    assert_eq!(found, listed);
}

/// Keys and values that a sample shows, commented out or not.
fn shown_in(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().map(|line| line.trim_start_matches('#'));
    lines
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_once(" = "))
        .collect()
}

#[test]
fn the_samples_explain_every_key_with_a_value_that_is_taken() {
    let mut keys = BTreeSet::new();
    for name in UPLINK_SAMPLES {
        let text = std::fs::read_to_string(sample(name)).expect("the sample is there");
        let uplink = text.lines().find(|line| is_uplink(line));
        for (key, value) in shown_in(&text) {
            keys.insert(key.to_owned());
            check_value(key, value, uplink.expect("the sample asks for an uplink"));
        }
    }
    let command = Options::command();
    let known: BTreeSet<_> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .map(|arg| arg.get_id().to_string())
        .filter(|id| id != "config" && id != "print_capabilities")
        .collect();
    assert_eq!(keys, known);
}

/// Whether a line asks for an uplink.
fn is_uplink(line: &str) -> bool {
    let key = line.split(" = ").next();
    UplinkOptions::words().any(|word| key == Some(word))
}

/// Loads a file with this key, and with an uplink unless the key asks for one.
fn check_value(key: &str, value: &str, uplink: &str) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let line = format!("{key} = {value}\n");
    let uplink = if is_uplink(&line) { "" } else { uplink };
    std::fs::write(file.path(), line + uplink).expect("it can be written");
    // What the key needs beside it, given on the command line.
    let socket = match key {
        "fd" => "--fd=9",
        _ => "--socket-path=/s",
    };
    let beside: &[&str] = match key {
        "reconnect_ms" => &["--client"],
        "steer_by" | "steer_ring" | "steer_batch" | "steer_cpu" => {
            &["--uplink-queues=1", "--queue-pairs=2"]
        }
        _ => &[],
    };
    let mut args: Vec<OsString> = vec!["test".into(), "--config".into(), file.path().into()];
    args.push(socket.into());
    args.extend(beside.iter().map(OsString::from));
    let loaded = Config::load(args);
    if let Err(error) = loaded {
        panic!("{key} = {value}: {error}");
    }
}

#[test]
fn the_discovery_file_describes_a_network_backend() {
    let text = std::fs::read_to_string(sample("50-vhost-user-gro.json")).expect("it is there");
    let json: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    // Source: QEMU `docs/interop/vhost-user.json`, `VhostUserBackend`.
    assert_eq!(json["type"], "net");
    assert!(json["description"].is_string());
    let binary = json["binary"].as_str().expect("a path");
    assert!(Path::new(binary).is_absolute() && binary.ends_with("/vhost-user-gro"));
    assert!(
        json["tags"]
            .as_array()
            .is_some_and(|tags| tags.iter().all(|tag| tag.is_string()))
    );
    assert_eq!(json.as_object().map(serde_json::Map::len), Some(4));
}
