//! The samples in `configs/` are what the program takes, every key of them.
#![cfg(feature = "daemon")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory;
use vhost_user_gro::app::{Config, Endpoint, Options, UplinkConfig};
use vhost_user_gro::gro::GroConfig;
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::uplink::tap::Persistence;

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
    let persistence = Persistence::Unchanged;
    assert_eq!(config.uplink, UplinkConfig::Tap { name, persistence });
    assert_eq!(config.queue_pairs, 1);
    assert_eq!(config.gro, GroConfig::default());
    assert_eq!(config.napi, NapiConfig::default());
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
fn every_sample_has_a_test() {
    let listed = ["low-latency.toml", "tap.toml", "throughput.toml"];
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

#[test]
fn tap_toml_explains_every_key_with_a_value_that_is_taken() {
    let text = std::fs::read_to_string(sample("tap.toml")).expect("the sample is there");
    let lines = text.lines().map(|line| line.trim_start_matches('#'));
    let shown: Vec<_> = lines
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_once(" = "))
        .collect();
    let keys: BTreeSet<_> = shown.iter().map(|(key, _)| (*key).to_owned()).collect();
    let command = Options::command();
    let known: BTreeSet<_> = command
        .get_arguments()
        .map(|arg| arg.get_id().to_string())
        .filter(|id| id != "config" && id != "print_capabilities")
        .collect();
    assert_eq!(keys, known);

    for (key, value) in shown {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        // What the key needs beside it, given on the command line.
        let socket = if key == "fd" {
            "--fd=9"
        } else {
            "--socket-path=/s"
        };
        let tap = if key == "tap_fd" {
            "--tap-fd=8"
        } else {
            "--tap=t"
        };
        let beside = match key {
            "reconnect_ms" => "--client",
            _ => "--log-level=info",
        };
        std::fs::write(file.path(), format!("{key} = {value}\n")).expect("it can be written");
        let mut args: Vec<OsString> = vec!["test".into(), "--config".into(), file.path().into()];
        args.extend([socket, tap, beside].map(OsString::from));
        let loaded = Config::load(args);
        assert!(loaded.is_ok(), "{key} = {value}: {}", loaded.unwrap_err());
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
