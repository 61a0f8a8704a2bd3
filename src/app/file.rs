//! The configuration file: flat TOML whose keys are the long options with underscores.
//!
//! Each key is turned into the option of the same name and checked by its parser, so file and
//! command line cannot drift apart. A key is left out if the command line gives the same option
//! or one that excludes it.

use std::any::TypeId;
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::{Table, Value};

use super::config::ConfigError;
use super::policies::PolicyList;
use crate::uplink::UplinkOptions;
use crate::values::CpuList;

/// Options that make no sense inside the file.
const FLAGS_ONLY: [&str; 4] = ["config", "print_capabilities", "help", "version"];

const SINGLE: &str = "expected a single value, not a list";

/// More than any configuration has.
const BYTES_MAX: u64 = 1 << 20;

/// One key of the file and what it says as arguments.
pub(super) struct Key {
    name: String,
    arguments: Vec<OsString>,
}

impl Key {
    /// The key as it stands in the file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The same as on the command line.
    pub(super) fn arguments(&self) -> impl Iterator<Item = OsString> {
        self.arguments.iter().cloned()
    }
}

/// Reads `path` and gives its keys for `command`, without those that `flags` win over.
pub(super) fn read(
    path: &Path,
    command: &Command,
    flags: &ArgMatches,
) -> Result<Vec<Key>, ConfigError> {
    let text = text_of(path)?;
    let table: Table = toml::from_str(&text).map_err(|source| ConfigError::Syntax {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    let mut all = Vec::new();
    let mut wanted = Vec::new();
    for (key, value) in &table {
        let arg = known(command, key).ok_or_else(|| unknown_key(path, command, key))?;
        let wrong_value = |expected| ConfigError::Value {
            path: path.to_owned(),
            key: key.clone(),
            value: shown(value),
            expected,
        };
        let Some(args) = arguments(key, value) else {
            return Err(wrong_value(format!("expected {}", kind_of(arg))));
        };
        // Would say nothing, and so leave the default where none was meant.
        if args.is_empty() && !matches!(arg.get_action(), ArgAction::Append) {
            return Err(wrong_value(single(arg)));
        }
        check(command, &args).map_err(|err| wrong_value(expectation(&err, arg)))?;
        if let Some(expected) = other_type(arg, value) {
            return Err(wrong_value(format!("expected {expected}")));
        }
        all.extend(args.iter().cloned());
        if !flags_win(command, flags, arg) {
            wanted.push(Key {
                name: key.clone(),
                arguments: args,
            });
        }
    }
    check(command, &all).map_err(|err| conflict(path, &err))?;
    Ok(wanted)
}

fn text_of(path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let file = File::open(path);
    let read = file.and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        // Cut off, even within a letter.
        Ok(_) if text.len() as u64 > BYTES_MAX => Err(ConfigError::TooLong {
            path: path.to_owned(),
            max: BYTES_MAX,
        }),
        Ok(_) => Ok(text),
        Err(source) => Err(ConfigError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn keys(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !FLAGS_ONLY.contains(&arg.get_id().as_str()))
}

fn known<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    keys(command).find(|arg| arg.get_id() == key)
}

fn unknown_key(path: &Path, command: &Command, key: &str) -> ConfigError {
    let nearest = keys(command)
        .map(|arg| arg.get_id().as_str())
        .min_by_key(|known| strsim::damerau_levenshtein(known, key))
        .unwrap_or_default();
    ConfigError::UnknownKey {
        path: path.to_owned(),
        key: key.to_owned(),
        nearest: nearest.to_owned(),
    }
}

/// `key = value` as arguments; `None` for a value that no option can have.
fn arguments(key: &str, value: &Value) -> Option<Vec<OsString>> {
    let flag = key.replace('_', "-");
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Boolean(is_true) => Some(is_true.to_string()),
        _ => None,
    };
    let values = match value {
        Value::Array(values) => values.iter().map(scalar).collect::<Option<Vec<_>>>()?,
        value => vec![scalar(value)?],
    };
    let argument = |value| OsString::from(format!("--{flag}={value}"));
    Some(values.into_iter().map(argument).collect())
}

/// What the option is written as, if the value is of another type that happens to read the same.
fn other_type(arg: &Arg, value: &Value) -> Option<&'static str> {
    let option = arg.get_value_parser().type_id();
    let is_one_of = |types: &[TypeId]| types.iter().any(|id| option == *id);
    let is_mode = arg.get_id() == "socket_mode";
    let numbers = [
        TypeId::of::<i32>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ];
    let (expected, fits): (_, fn(&Value) -> bool) = if is_one_of(&[TypeId::of::<bool>()]) {
        let is_switch = |value: &Value| value.is_bool() || value.is_str();
        ("true or false, or \"on\" or \"off\"", is_switch)
    } else if is_one_of(&numbers) && !is_mode {
        ("an integer without quotes", Value::is_integer)
    } else {
        // A mode without quotes would be decimal, or octal twice.
        (example(arg).unwrap_or("a string in quotes"), Value::is_str)
    };
    let is_right = match value {
        Value::Array(values) => values.iter().all(fits),
        value => fits(value),
    };
    (!is_right).then_some(expected)
}

/// A value as the file has it, or its kind where that would be long.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Boolean(is_true) => is_true.to_string(),
        Value::Float(number) => number.to_string(),
        other => format!("({})", other.type_str()),
    }
}

fn check(command: &Command, args: &[OsString]) -> Result<(), clap::Error> {
    let name = OsString::from(command.get_name());
    let args = std::iter::once(&name).chain(args);
    command.clone().try_get_matches_from(args).map(drop)
}

/// What an option's parser says it would have taken.
fn expectation(err: &clap::Error, arg: &Arg) -> String {
    if err.kind() == ErrorKind::ArgumentConflict {
        return single(arg);
    }
    if let Some(ContextValue::Strings(words)) = err.get(ContextKind::ValidValue) {
        return format!("expected {}", words.join(", "));
    }
    match err.source() {
        Some(source) => source.to_string(),
        None => format!("expected {}", kind_of(arg)),
    }
}

/// What the help calls the option's value.
/// What is expected in place of a list.
fn single(arg: &Arg) -> String {
    example(arg).map_or(SINGLE.to_owned(), |example| format!("expected {example}"))
}

/// How a list of several values is written that is one string.
fn example(arg: &Arg) -> Option<&'static str> {
    let option = arg.get_value_parser().type_id();
    if option == TypeId::of::<CpuList>() {
        Some("a string such as \"2,4-7\"")
    } else if option == TypeId::of::<PolicyList>() {
        Some("a string such as \"fifo:50,other:0\"")
    } else {
        None
    }
}

fn kind_of(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<_> = names.iter().map(|name| name.to_lowercase()).collect();
    format!("a plain value ({})", names.join(" "))
}

fn conflict(path: &Path, err: &clap::Error) -> ConfigError {
    let word = |kind| match err.get(kind) {
        Some(ContextValue::String(text)) => key_of(text),
        Some(ContextValue::Strings(texts)) => texts.first().map_or(String::new(), |t| key_of(t)),
        _ => String::new(),
    };
    ConfigError::Conflict {
        path: path.to_owned(),
        key: word(ContextKind::InvalidArg),
        other: word(ContextKind::PriorArg),
    }
}

/// Whether each option asks for an uplink: of those one is enough.
fn is_other_uplink(arg: &Arg, other: &Arg) -> bool {
    let is_uplink = |arg: &Arg| UplinkOptions::words().any(|word| arg.get_id() == word);
    arg != other && is_uplink(arg) && is_uplink(other)
}

/// `--tap-fd <N>` as `tap_fd`.
fn key_of(usage: &str) -> String {
    let flag = usage.split([' ', '=', '[']).next().unwrap_or_default();
    flag.trim_start_matches('-').replace('-', "_")
}

fn flags_win(command: &Command, flags: &ArgMatches, arg: &Arg) -> bool {
    let given =
        |arg: &Arg| flags.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    // An exclusion is declared on one side only.
    let exclude_each_other = |other: &Arg| {
        is_other_uplink(arg, other)
            || command.get_arg_conflicts_with(other).contains(&arg)
            || command.get_arg_conflicts_with(arg).contains(&other)
    };
    given(arg) || keys(command).any(|other| given(other) && exclude_each_other(other))
}
