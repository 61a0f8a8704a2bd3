//! Our side: turns of the same length as those of `librte_gro.c`.
#![allow(
    clippy::disallowed_methods,
    reason = "the clock of the system is what a bench reads"
)]

use std::time::{Duration, Instant};

/// As in `librte_gro.c`.
const TURN: Duration = Duration::from_millis(50);
const WARM_UP: Duration = Duration::from_millis(5);
const MIN_ROUNDS: usize = 9;
/// Calls between two looks at the clock, for what takes nanoseconds.
const CALLS: u32 = 200;

/// Median time of a round in nanoseconds; `prepare` is not measured.
pub(crate) fn rounds<T>(mut prepare: impl FnMut() -> T, mut run: impl FnMut(&mut T)) -> f64 {
    let mut turn = |time| {
        let mut times = Vec::new();
        let end = Instant::now() + time;
        while times.len() < MIN_ROUNDS || Instant::now() < end {
            let mut input = prepare();
            let began = Instant::now();
            run(&mut input);
            times.push(began.elapsed());
        }
        times.sort_unstable();
        times[times.len() / 2]
    };
    turn(WARM_UP);
    turn(TURN).as_nanos() as f64
}

/// Median time of a call in nanoseconds, for what finds everything in cache.
pub(crate) fn calls(mut call: impl FnMut()) -> f64 {
    rounds(|| (), |()| (0..CALLS).for_each(|_| call())) / f64::from(CALLS)
}
