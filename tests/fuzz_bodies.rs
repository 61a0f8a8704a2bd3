//! The bodies that are fuzzed, on a stable toolchain: for their seeds, for what once broke them,
//! and for a bounded number of changes of both. `fuzz/README.md` tells more.

mod support;

#[path = "../fuzz/src/bodies/mod.rs"]
mod bodies;

use std::fmt::Write as _;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use bodies::{Body, captured, seeds};

/// Changed inputs per body: a few seconds without optimisation.
const INPUTS: usize = 1000;

/// One test for each body.
macro_rules! bodies {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let name = stringify!($name);
            let body = bodies::ALL.iter().find(|body| body.0 == name);
            run_all(body.expect("there is such a body"));
        })*

        #[test]
        fn no_body_is_left_out() {
            assert_eq!(bodies::ALL.map(|body| body.0), [$(stringify!($name)),*]);
        }
    };
}

bodies! { layout engine tx_frame chain }

fn run_all(body: &Body) {
    let mut inputs = regressions(body.0);
    inputs.extend(seeds::of(body.0, &[&captured::recorded()]));
    for input in &inputs {
        run(body, input);
    }
    let mut random = Random(0x5eed);
    for _ in 0..INPUTS {
        run(body, &changed(&inputs, &mut random));
    }
}

/// Inputs that once broke a body.
fn regressions(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/regressions");
    let Ok(entries) = fs::read_dir(folder.join(name)) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("is readable").path())
        .collect();
    paths.sort();
    let inputs = paths
        .iter()
        .map(|path| fs::read(path).expect("is readable"));
    inputs.collect()
}

/// Runs a body, and says on which input it panicked.
fn run(body: &Body, input: &[u8]) {
    let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| body.1(input))) else {
        return;
    };
    let hex = input.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes all");
        hex
    });
    eprintln!(
        "{} panics; add this as a file of fuzz/regressions/{0}: {hex}",
        body.0
    );
    panic::resume_unwind(panic);
}

/// A seed with a few changes: bytes flipped, put in or taken out, or the end of another seed.
fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = random.choose(seeds).clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 => bytes.insert(at, random.byte()),
            1 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.below(8)))),
            2 => {
                let other = random.choose(seeds);
                bytes.truncate(at);
                bytes.extend(&other[random.below(other.len() + 1)..]);
            }
            _ if at < bytes.len() => bytes[at] = random.value(bytes[at]),
            _ => {}
        }
    }
    bytes
}

/// Numbers that are the same in every run. Source: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("an address fits");
        usize::try_from(self.next() % end).expect("is below a length")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Something else in place of a byte: near it, at a border, or anything.
    fn value(&mut self, byte: u8) -> u8 {
        match self.below(4) {
            0 => byte ^ 1 << self.below(8),
            1 => byte.wrapping_add(self.byte() % 5).wrapping_sub(2),
            2 => *self.choose(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => self.byte(),
        }
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
