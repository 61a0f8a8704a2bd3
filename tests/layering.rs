//! Who may use whom: dependencies between the modules of `src` go downward only.
//!
//! The compiler holds a part of this (`cargo check --lib --no-default-features` builds the pure
//! modules alone); this test holds the rest by reading the paths in the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module at the top of `src`, and the ones that it may name. Whatever is below comes first.
const MAY_USE: &[(&str, &[&str])] = &[
    ("time", &[]),
    ("wire", &[]),
    ("gro", &["time", "wire"]),
    ("gso", &["time", "wire"]),
    ("napi", &["time", "wire"]),
    ("tx", &["time"]),
    ("sys", &["time"]),
    // A socket to listen at is made with the same care for front-ends and for peers.
    ("socket_file", &[]),
    // What an option's value may be, whoever has the option.
    ("values", &[]),
    // Captures are written by what is replayed and by what is delivered.
    ("pcapng", &["time"]),
    // The frame pool lives here, because an uplink may bring frames in a ring of its own.
    ("uplink", &["socket_file", "sys", "values", "wire"]),
    // Guest memory is touched through `sys`; a packet that cannot fit is segmented (FILL-4).
    ("device", &["gro", "gso", "sys", "wire"]),
    (
        "worker",
        &[
            "device", "gro", "gso", "napi", "pcapng", "sys", "time", "tx", "uplink", "wire",
        ],
    ),
    ("backend", &["socket_file", "sys", "wire", "worker"]),
    (
        "app",
        &[
            "backend", "device", "gro", "gso", "napi", "pcapng", "sys", "time", "tx", "uplink",
            "values", "wire", "worker",
        ],
    ),
    ("main", &["app"]),
];

/// Modules without descriptors, clock, log or dependency.
const PURE: &[&str] = &["time", "wire", "gro", "gso", "napi", "tx"];

/// One source file: the module at the top of `src` that it belongs to, and its code without
/// comments and strings.
struct Source {
    path: PathBuf,
    module: String,
    code: String,
}

impl Source {
    /// Whether the top module has a module of this name below it.
    fn has_child(&self, name: &str) -> bool {
        let folder = root().join(&self.module);
        folder.join(name).is_dir() || folder.join(name).with_extension("rs").is_file()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The sources of the program. Modules that exist for tests alone may use what they like.
fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    collect(&root, &root, &mut found);
    assert!(found.len() > 20, "src was not read");
    let test_only: Vec<_> = found.iter().flat_map(test_modules).collect();
    found.retain(|source| {
        !test_only
            .iter()
            .any(|module| source.path.starts_with(module))
    });
    found
}

/// Files and folders of the modules that a source declares under `#[cfg(test)]`.
fn test_modules(source: &Source) -> Vec<PathBuf> {
    let folder = match source.path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => source.path.with_file_name(""),
        _ => source.path.with_extension(""),
    };
    let lines: Vec<_> = source.code.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let names = declared.filter_map(|pair| pair[1].strip_suffix(';')?.rsplit_once("mod "));
    names
        .flat_map(|(_, name)| [folder.join(name), folder.join(name).with_extension("rs")])
        .collect()
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            collect(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let within = path.strip_prefix(root).expect("is below src");
            let first = within.iter().next().expect("has a name");
            let module = first.to_string_lossy().trim_end_matches(".rs").to_owned();
            let text = fs::read_to_string(&path).expect("src is readable");
            found.push(Source {
                module,
                code: without_comments_and_strings(&text),
                path,
            });
        }
    }
}

/// The code alone. What is left of a string is its quotes.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(literal) = ["'\"'", "'\\\"'"].iter().find(|q| rest.starts_with(**q)) {
            literal.len()
        } else if next == '"' {
            code.push_str("\"\"");
            string_len(rest)
        } else {
            code.push(next);
            next.len_utf8()
        };
        rest = &rest[skip..];
    }
    code
}

/// Bytes of the string literal at the start of `text`, quotes included.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The names that follow `prefix` in paths: one, or the heads of a group in braces.
fn names_after(code: &str, prefix: &str) -> BTreeSet<String> {
    let starts = code.match_indices(prefix).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':')
    });
    starts
        .flat_map(|(at, _)| heads(code[at + prefix.len()..].trim_start()))
        .filter(|name| !name.is_empty())
        .collect()
}

fn heads(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return vec![identifier(path)];
    };
    let mut depth = 1;
    let mut names = vec![identifier(group.trim_start())];
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(identifier(group[at + 1..].trim_start())),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn identifier(text: &str) -> String {
    let is_part = |letter: &char| letter.is_alphanumeric() || *letter == '_';
    text.chars().take_while(is_part).collect()
}

/// Whether `word` stands in the code as a word of its own.
fn has_word(code: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part)
    })
}

/// The code in front of its unit tests, which stand at the end of a file or in `tests.rs`.
fn without_tests(source: &Source) -> &str {
    if source.path.ends_with("tests.rs") {
        return "";
    }
    let tests = source.code.find("#[cfg(test)]");
    &source.code[..tests.unwrap_or(source.code.len())]
}

#[test]
fn dependencies_go_downward_only() {
    let known: BTreeSet<&str> = MAY_USE.iter().map(|(module, _)| *module).collect();
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.module != "lib") {
        let Some((_, may)) = MAY_USE.iter().find(|(name, _)| *name == source.module) else {
            wrong.push(format!("{}: not in the table", source.path.display()));
            continue;
        };
        let mut used = names_after(&source.code, "crate::");
        used.extend(names_after(&source.code, "vhost_user_gro::"));
        // Out of a module through its parent.
        let parent = names_after(&source.code, "super::").into_iter();
        used.extend(parent.filter(|name| known.contains(name.as_str()) && !source.has_child(name)));
        used.remove(&source.module);
        for name in used.iter().filter(|name| !may.contains(&name.as_str())) {
            wrong.push(format!("{} uses {name}", source.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_itself_goes_downward_only() {
    for (place, (module, may)) in MAY_USE.iter().enumerate() {
        for name in *may {
            let below = MAY_USE[..place].iter().any(|(below, _)| below == name);
            assert!(below, "{module} may use {name}, which is not below it");
        }
    }
    for module in PURE {
        let (_, may) = MAY_USE
            .iter()
            .find(|(name, _)| name == module)
            .expect("in the table");
        assert!(
            may.iter().all(|name| PURE.contains(name)),
            "{module} is not pure"
        );
    }
}

#[test]
fn pure_modules_use_core_and_alloc_only() {
    let mut wrong = Vec::new();
    for source in &sources() {
        if !PURE.contains(&source.module.as_str()) {
            continue;
        }
        for word in ["std", "log", "libc"] {
            if !names_after(without_tests(source), &format!("{word}::")).is_empty() {
                wrong.push(format!("{} uses {word}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_below_sys_only() {
    let (sys, rest): (Vec<_>, Vec<_>) = sources()
        .into_iter()
        .partition(|source| source.module == "sys");
    assert!(
        sys.iter().any(|source| has_word(&source.code, "unsafe")),
        "the search finds nothing"
    );
    for source in rest {
        let path = source.path.display();
        assert!(!has_word(&source.code, "unsafe"), "{path} has unsafe code");
        assert!(
            !has_word(&source.code, "unsafe_code"),
            "{path} opts out of the lint"
        );
    }
}

#[test]
fn paths_are_found_in_all_their_forms() {
    let code = without_comments_and_strings(
        r#"
        // use crate::comment;
        use crate::one::Thing;
        use crate::{two, three::{four, Five}, six::*};
        pub(crate) fn f() { g("crate::string", '"', crate::seven::h()) }
        use other_crate::eight;
        "#,
    );
    let names = names_after(&code, "crate::");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(names, ["one", "seven", "six", "three", "two"]);
}

#[test]
fn words_are_whole() {
    assert!(has_word("unsafe { x }", "unsafe"));
    assert!(!has_word("deny(unsafe_code)", "unsafe"));
}
