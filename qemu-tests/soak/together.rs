//! Kinds of traffic, and all of them at once.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::flows::{self, Portion, Progress};
use crate::harness::Sender;
use crate::harness::wait::now;

type Act<'a> = Box<dyn Fn(&AtomicBool, &Progress) -> Result<()> + Send + Sync + 'a>;

/// One kind of traffic, from one place.
pub(super) struct Flow<'a> {
    name: &'static str,
    act: Act<'a>,
    done: Progress,
}

impl<'a> Flow<'a> {
    pub(super) fn new(
        name: &'static str,
        act: impl Fn(&AtomicBool, &Progress) -> Result<()> + Send + Sync + 'a,
    ) -> Self {
        Flow {
            name,
            act: Box::new(act),
            done: Progress::default(),
        }
    }

    pub(super) fn into(
        name: &'static str,
        sender: &'a Sender,
        to: &'a str,
        portion: Portion,
    ) -> Self {
        Flow::new(name, move |stop, done| {
            sender.inside(|| flows::into_guest(to, portion, stop, done))
        })
    }

    pub(super) fn out_of(
        name: &'static str,
        sender: &'a Sender,
        from: &'a str,
        hash: &'a str,
    ) -> Self {
        Flow::new(name, move |stop, done| {
            sender.inside(|| flows::out_of_guest(from, hash, stop, done))
        })
    }

    pub(super) fn dialogue(name: &'static str, sender: &'a Sender, with: &'a str) -> Self {
        Flow::new(name, move |stop, done| {
            sender.inside(|| flows::request_response(with, stop, done))
        })
    }
}

/// Looks after all flows while they run.
pub(super) struct Watch<'a, 'scope> {
    threads: &'a [ScopedJoinHandle<'scope, Result<()>>],
}

impl Watch<'_, '_> {
    /// Lets time pass; ends early if a flow has, which says why when it is joined.
    pub(super) fn pass(&self, length: Duration) {
        let begin = now();
        while begin.elapsed() < length {
            if self.threads.iter().any(ScopedJoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Runs all flows while `during` does something, and says what came of each.
pub(super) fn run(
    name: &str,
    flows: &[Flow<'_>],
    during: impl FnOnce(&Watch<'_, '_>) -> Result<()>,
) -> Result<()> {
    let (stop, begin) = (AtomicBool::new(false), now());
    std::thread::scope(|scope| {
        let threads: Vec<_> = flows
            .iter()
            .map(|flow| scope.spawn(|| (flow.act)(&stop, &flow.done)))
            .collect();
        let result = during(&Watch { threads: &threads });
        stop.store(true, Relaxed);
        let ends = threads.into_iter().zip(flows).map(|(thread, flow)| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                .with_context(|| format!("{name}: {}", flow.name))
        });
        // What went wrong with a flow tells more than what that led to.
        ends.collect::<Result<()>>().and(result)
    })?;
    say(&format!("\nsoak {name}, {:.0?}\n", begin.elapsed()));
    for flow in flows {
        let (rounds, bytes) = flow.done.read();
        let unanswered = match flow.done.unanswered.load(Relaxed) {
            0 => String::new(),
            count => format!(" {count:>6} unanswered"),
        };
        say(&format!(
            "  {:<32} {rounds:>8} rounds {:>8} KB{unanswered}\n",
            flow.name,
            bytes / 1000
        ));
        ensure!(rounds > 0, "{name}: nothing came of {}", flow.name);
    }
    Ok(())
}

pub(super) fn say(text: &str) {
    // Nobody reads it any more if that fails.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
