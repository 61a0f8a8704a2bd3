//! Runs the cases in `tests/gro`, and those of the files in the environment variable `GRO_CASES`.

mod support;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::case::{self, Case, CaseHashMode, Expect, Irq, Item, Kind, Op, State};
use support::check;
use support::context::Context;
use support::cut::word;
use support::packet::Built;
use vhost_user_gro::gro::{GroConfig, GroResult, HashMode};
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::time::Instant;

/// One test for each file.
macro_rules! families {
    ($($family:ident)*) => {
        /// Names of the files without `.toml`.
        const FAMILIES: &[&str] = &[$(stringify!($family)),*];

        $(#[test]
        fn $family() {
            run_file(&family_path(stringify!($family)));
        })*
    };
}

families! { ack batch data flags flows host ip4 ip6 l2 limits napi tcp tunnel udp }

/// Cases that are not run, by name: the engine lets tunnels pass.
const NOT_RUN: &[&str] = &[
    "vxlan_inner_tcp_merges",
    "vxlan_not_negotiated",
    "vxlan_outer_checksum_both",
    "vxlan_outer_checksum_mixed",
    "vxlan_outer_ttl_differs",
    "vxlan_vni_differs",
];

#[test]
fn more_cases_from_the_environment() {
    let Some(paths) = env::var_os("GRO_CASES") else {
        return;
    };
    for path in env::split_paths(&paths) {
        run_file(&path);
    }
}

#[test]
fn every_file_is_run_and_no_case_is_lost() {
    let mut files: Vec<String> = fs::read_dir(folder())
        .expect("tests/gro is readable")
        .map(|entry| entry.expect("tests/gro is readable").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .map(|path| {
            path.file_stem()
                .expect("has a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    files.sort();
    assert_eq!(files, FAMILIES);
    let cases = all_cases();
    assert_eq!(cases.len(), 135, "names are unique and none is gone");
    let not_run: Vec<&str> = cases
        .values()
        .filter(|case| reason_not_to_run(case).is_some())
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(not_run, NOT_RUN);
}

/// A runner that accepts everything would pass as well: every case, with one thing expected that
/// does not happen, must fail.
#[test]
fn a_wrong_expectation_fails() {
    for case in all_cases().into_values() {
        if reason_not_to_run(&case).is_some() {
            continue;
        }
        for spoil in SPOILERS {
            let mut spoiled = case.clone();
            if spoil(&mut spoiled) {
                assert!(
                    run(&spoiled).is_err(),
                    "case {} passes when spoiled",
                    case.name
                );
            }
        }
    }
}

/// Ways to make a case wrong; false if the case has no such thing.
const SPOILERS: &[fn(&mut Case) -> bool] = &[
    |case| {
        case.expect.pop();
        true
    },
    |case| {
        case.expect[0].payload += 1;
        true
    },
    |case| {
        case.expect[0].gso_size += 1;
        true
    },
    |case| {
        case.expect[0].segs += 1;
        true
    },
    |case| {
        case.expect[0].at += 1;
        true
    },
    |case| {
        let is_normal = case.expect[0].kind == Kind::Normal;
        case.expect[0].kind = if is_normal {
            Kind::Single
        } else {
            Kind::Normal
        };
        true
    },
    |case| {
        let flags = &mut case.expect[0].flags;
        *flags = if flags.contains('N') { "A" } else { "NA" }.into();
        true
    },
    |case| {
        let last = case.expect.len() - 1;
        case.expect.swap(0, last);
        last > 0
    },
    |case| {
        case.expect[0].from.reverse();
        case.expect[0].from.len() > 1
    },
    |case| {
        case.batches
            .as_mut()
            .is_some_and(|batches| batches.pop().is_some())
    },
    |case| {
        case.state.first_mut().is_some_and(|state| {
            state.held += 1;
            true
        })
    },
    |case| {
        case.state.first_mut().is_some_and(|state| {
            state.timer += 1;
            true
        })
    },
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gro")
}

fn family_path(family: &str) -> PathBuf {
    folder().join(family).with_extension("toml")
}

fn all_cases() -> BTreeMap<String, Case> {
    let files = FAMILIES
        .iter()
        .map(|family| case::read(&family_path(family)));
    files
        .flat_map(|cases| cases.expect("is readable"))
        .map(|case| case.expect("is well formed"))
        .map(|case| (case.name.clone(), case))
        .collect()
}

fn reason_not_to_run(case: &Case) -> Option<&'static str> {
    case.has_tunnel().then_some("tunnels are not merged")
}

/// Runs all cases of a file, then names each that failed.
fn run_file(path: &Path) {
    let cases = match case::read(path) {
        Ok(cases) => cases,
        Err(error) => panic!("{error}"),
    };
    assert!(!cases.is_empty(), "{}: no cases", path.display());
    let mut failed = String::new();
    for case in cases {
        let result = case.and_then(|case| match reason_not_to_run(&case) {
            Some(reason) => {
                say_not_run(&case.name, reason);
                Ok(())
            }
            None => run(&case),
        });
        if let Err(report) = result {
            failed.push('\n');
            failed.push_str(&report);
        }
    }
    assert!(failed.is_empty(), "{}:{failed}", path.display());
}

/// Past the capture of the test harness, so that nobody takes it for a passed case.
fn say_not_run(name: &str, reason: &str) {
    let _ = writeln!(io::stderr(), "NOT RUN: gro case {name}: {reason}");
}

/// Runs a case; the error is a report with both lists.
fn run(case: &Case) -> Result<(), String> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| outcome(case)));
    let (delivered, mut faults) = outcome.unwrap_or_else(|_| (Vec::new(), vec!["panic".into()]));
    let mut expected = case.expect.clone();
    for packet in &mut expected {
        packet.flags = case::in_order(&packet.flags);
    }
    if delivered != expected {
        faults.insert(0, "other packets than expected".into());
    }
    if faults.is_empty() {
        return Ok(());
    }
    let mut report = format!(
        "FAILED {} ({}): {}\n",
        case.name,
        case.rules.join(", "),
        case.why
    );
    for fault in faults {
        let _ = writeln!(report, "  {fault}");
    }
    list(&mut report, "expected", &expected);
    list(&mut report, "delivered", &delivered);
    Err(report)
}

fn list(report: &mut String, title: &str, packets: &[Expect]) {
    let _ = writeln!(report, "  {title}:");
    for packet in packets {
        let Expect {
            payload,
            gso_size,
            segs,
            from,
            at,
            kind,
            flags,
        } = packet;
        let _ = writeln!(
            report,
            "    {kind:?}: payload {payload}, gso_size {gso_size}, segs {segs}, from {from:?}, \
             at {at}, flags {flags}"
        );
    }
}

/// What was delivered, in the words of the case file, and what is wrong beside that list.
fn outcome(case: &Case) -> (Vec<Expect>, Vec<String>) {
    let mut faults = Vec::new();
    let mut context = context(case);
    // Position in `inputs` and the verdict of each item that is a frame.
    let mut inputs: Vec<(usize, Built)> = Vec::new();
    let mut verdicts = Vec::new();
    let mut time = 0;
    for (at, item) in case.input.iter().enumerate() {
        time = item.time().unwrap_or(time);
        let now = Instant::from_nanos(time);
        match item {
            Item::Frame(frame) => {
                let built = case.packet(frame).expect("was checked when read").build();
                verdicts.push(context.frame(now, built.bytes.clone(), built.meta));
                inputs.push((at, built));
            }
            Item::Event(event) => match event.op {
                Op::PollEnd => context.poll_end(now, event.work.unwrap_or(1)),
                Op::BudgetEnd => context.budget_end(now),
                Op::Timer if context.timer(now) => {}
                Op::Timer => faults.push(format!("after item {at}: the timer was not due")),
            },
        }
        for expected in case.state.iter().filter(|state| state.at == at) {
            let found = state(&context, at);
            if found != *expected {
                faults.push(format!("state {found:?}, expected {expected:?}"));
            }
        }
    }
    context.stop();
    if let Some(expected) = case
        .batches
        .as_ref()
        .filter(|batches| **batches != context.batches)
    {
        faults.push(format!(
            "batches {:?}, expected {expected:?}",
            context.batches
        ));
    }

    let (indexes, frames): (Vec<usize>, Vec<Built>) = inputs.into_iter().unzip();
    let mut listed = Vec::new();
    let origins = check::attribute(&context.delivered, &frames);
    for (n, (packet, from)) in context.delivered.iter().zip(origins).enumerate() {
        let from = from.unwrap_or_else(|error| {
            faults.push(format!("packet {n}: {error}"));
            Vec::new()
        });
        let parts: Vec<&Built> = from.iter().map(|&i| &frames[i]).collect();
        let verdict = from.first().map(|&i| verdicts[i]);
        let was_held = verdict == Some(GroResult::Held);
        if let Err(fault) = check::check(packet, &parts, case.types(), was_held) {
            faults.push(format!("packet {n}: {fault}"));
        }
        let is_final = packet.at == case.input.len();
        listed.push(Expect {
            payload: match parts.as_slice() {
                [only] => only.payload_len,
                [first, ..] => packet.bytes.len() - first.payload,
                [] => packet.bytes.len(),
            },
            gso_size: packet.vnet.gso_size,
            segs: packet.segs,
            at: if is_final {
                -1
            } else {
                i64::try_from(packet.at).expect("is small")
            },
            kind: match parts.len() {
                0 | 1 if was_held => Kind::Single,
                0 | 1 => Kind::Normal,
                _ => Kind::Super,
            },
            flags: parts
                .first()
                .map_or_else(String::new, |first| tcp_flags(&packet.bytes, first)),
            from: from.iter().map(|&i| indexes[i]).collect(),
        });
    }
    (listed, faults)
}

/// The TCP flags of a delivered packet; for other protocols what the format takes for default.
fn tcp_flags(bytes: &[u8], first: &Built) -> String {
    if first.protocol == 6 {
        case::flag_letters(word(bytes, first.l4 + 12) & 0x1ff)
    } else {
        "A".into()
    }
}

fn context(case: &Case) -> Context {
    let default = GroConfig::default();
    let gro = GroConfig {
        hash_mode: match case.hash_mode {
            CaseHashMode::Zero => HashMode::Zero,
            CaseHashMode::Given => HashMode::Given,
        },
        gro_normal_batch: case
            .config
            .gro_normal_batch
            .unwrap_or(default.gro_normal_batch),
        ..default
    };
    let napi = NapiConfig {
        gro_flush_timeout: Duration::from_nanos(case.config.gro_flush_timeout_ns),
        napi_defer_hard_irqs: case.config.napi_defer_hard_irqs,
        ..NapiConfig::default()
    };
    Context::new(gro, napi, case.types())
}

fn state(context: &Context, at: usize) -> State {
    let napi = context.napi();
    let timer = napi
        .timer()
        .map(|due| i64::try_from(due.as_nanos()).expect("is small"));
    State {
        at,
        irq: if napi.is_masked() {
            Irq::Masked
        } else {
            Irq::Unmasked
        },
        timer: timer.unwrap_or(-1),
        held: context.engine().held(),
    }
}
