//! What is logged by the thread of a test.

use std::cell::RefCell;
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct ByThread;

impl Log for ByThread {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The lines at level `info` or above that `run` logs.
pub(crate) fn lines_of(run: impl FnOnce()) -> Vec<String> {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&ByThread).expect("nobody else sets one");
        log::set_max_level(LevelFilter::Info);
    });
    LINES.with_borrow_mut(Vec::clear);
    run();
    LINES.with_borrow_mut(std::mem::take)
}
