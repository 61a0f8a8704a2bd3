//! Every fault of `docs/field-faults.md` has a test whose name begins with its number.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Faults of what is not built or not tested yet.
const OPEN: [(u32, &str); 6] = [
    (52, "queue numbers out of range, by name"),
    (53, "a memory table that changes under traffic, by name"),
    (56, "no dirty log yet"),
    (57, "hostile messages, by name"),
    (65, "guests that forward"),
    (67, "rate limits"),
];

/// Where tests are.
const FOLDERS: [&str; 5] = ["src", "tests", "qemu-tests", "benches", "fuzz"];

/// The numbers of all headings such as `### F07 ...`.
fn listed() -> BTreeSet<u32> {
    let text = fs::read_to_string("docs/field-faults.md").expect("the list is there");
    let headings = text.lines().filter_map(|line| line.strip_prefix("### F"));
    let numbers = headings.map(|heading| heading.split(' ').next().unwrap_or_default().parse());
    numbers
        .collect::<Result<_, _>>()
        .expect("headings have numbers")
}

/// Adds the numbers that functions in the files below `folder` begin with.
fn add_named(folder: &Path, named: &mut BTreeSet<u32>) {
    // A package comes without the tests on guests.
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("it can be read").path();
        if path.is_dir() && !path.ends_with("target") {
            add_named(&path, named);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).expect("source is text");
            let names = text.lines().filter_map(|line| {
                let (number, _) = line.trim_start().strip_prefix("fn f")?.split_once('_')?;
                number.parse::<u32>().ok()
            });
            named.extend(names);
        }
    }
}

#[test]
fn every_fault_is_named_by_a_test_or_listed_as_open() {
    let mut named = BTreeSet::new();
    for folder in FOLDERS {
        add_named(Path::new(folder), &mut named);
    }
    let open: BTreeSet<u32> = OPEN.iter().map(|(number, _)| *number).collect();
    let listed = listed();
    assert!(listed.len() > 60, "{listed:?}");
    let missing: Vec<_> = listed.difference(&named).collect();
    let known: Vec<_> = open.iter().collect();
    assert_eq!(
        missing, known,
        "on the left those without a test, on the right those of OPEN"
    );
}
