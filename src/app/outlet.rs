//! Where lines go: through a thread of their own to standard error, so that nobody else waits for
//! whoever reads there.
//!
//! Lines beyond [`LINES_MAX`] that wait are thrown away and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// Lines that may wait for the reader.
const LINES_MAX: usize = 1024;

/// One thing for the thread to do, in order.
enum Job {
    Write(Vec<u8>),
    /// Say so when everything before is written.
    Report(SyncSender<()>),
}

/// The near end; clones share the thread.
#[derive(Clone)]
pub(super) struct Outlet {
    jobs: Sender<Job>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    waiting: AtomicUsize,
    dropped: AtomicUsize,
}

impl Outlet {
    /// Starts the thread, which writes to `sink` as long as an outlet is there.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (jobs, todo) = channel();
        let counts = Arc::<Counts>::default();
        let shared = Arc::clone(&counts);
        Builder::new()
            .name("log".into())
            .spawn(move || write_all(sink, &todo, &shared))?;
        Ok(Self { jobs, counts })
    }

    /// Hands over a line, or a few that belong together. Never waits.
    pub(super) fn send(&self, line: &[u8]) {
        if self.counts.waiting.fetch_add(1, Ordering::Relaxed) >= LINES_MAX {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // The thread lives as long as this end does.
        let _ = self.jobs.send(Job::Write(line.to_vec()));
    }

    /// Waits until all lines so far are written, but no longer than `time`.
    pub(super) fn drain(&self, time: Duration) {
        let (done, is_done) = sync_channel(1);
        if self.jobs.send(Job::Report(done)).is_ok() {
            // Late lines are lost with the process.
            let _ = is_done.recv_timeout(time);
        }
    }
}

/// For the logger, which hands over each line with one call.
impl Write for Outlet {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(mut sink: impl Write, todo: &Receiver<Job>, counts: &Counts) {
    // Nobody is left to tell if lines cannot be written.
    for job in todo {
        match job {
            Job::Write(line) => {
                let _ = sink.write_all(&line);
                counts.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            Job::Report(done) => {
                let _ = done.send(());
            }
        }
        let dropped = counts.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(sink, "{dropped} log lines were dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    const AGES: Duration = Duration::from_secs(60);

    #[test]
    fn lines_come_out_in_order_and_are_there_after_a_drain() {
        let (reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start(writer).unwrap();
        outlet.send(b"one\n");
        outlet.send(b"two\n");
        outlet.drain(AGES);
        drop(outlet);
        let lines = BufReader::new(reader).lines().map(Result::unwrap);
        assert_eq!(lines.collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        let (reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start(writer).unwrap();
        // More than a pipe holds and more than may wait.
        let line = [&[b'x'; 1000][..], b"\n"].concat();
        let sent = 3 * LINES_MAX;
        for _ in 0..sent {
            outlet.send(&line);
        }
        outlet.drain(Duration::ZERO);
        drop(outlet);
        let lines = BufReader::new(reader).lines().map(Result::unwrap);
        let (said, written): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("dropped"));
        let dropped = said.iter().filter_map(|line| line.split(' ').next());
        let dropped: usize = dropped
            .filter_map(|count| count.parse::<usize>().ok())
            .sum();
        assert!(dropped > 0);
        assert_eq!(written.len() + dropped, sent);
    }
}
