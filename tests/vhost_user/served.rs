//! A device in service, for the length of a test.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tempfile::TempDir;
use vhost_user_gro::backend::{Endpoint, LinkHandle, Offer, QueueNumUnit, Sessions, StopHandle};
use vhost_user_gro::worker::PairControl;

use crate::front_end::{FrontEnd, PROTOCOL_BIT};
use crate::recorder::Recorder;

/// Features of the device in these tests; the backend takes any set.
pub(crate) const FEATURES: u64 = 0x1_2000_8003;

/// Sessions on a thread of their own, with recorders for data threads.
pub(crate) struct Served {
    pub(crate) path: PathBuf,
    pub(crate) pairs: Vec<Arc<Recorder>>,
    pub(crate) link: LinkHandle,
    _directory: TempDir,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub(crate) fn listening(pairs: usize) -> Self {
        Self::at(pairs, |path| Endpoint::Listen { path, mode: None })
    }

    pub(crate) fn at(pairs: usize, endpoint: impl FnOnce(PathBuf) -> Endpoint) -> Self {
        Self::offering(offer(), pairs, endpoint)
    }

    pub(crate) fn offering(
        offer: Offer,
        pairs: usize,
        endpoint: impl FnOnce(PathBuf) -> Endpoint,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let pairs = Recorder::for_pairs(pairs);
        let link = LinkHandle::new().unwrap();
        let controls = controls(&pairs);
        let sessions =
            Sessions::new(endpoint(path.clone()), offer, controls, link.clone()).unwrap();
        let stop = StopHandle::new().unwrap();
        let stop_of_thread = stop.clone();
        let thread = Some(std::thread::spawn(move || sessions.run(&stop_of_thread)));
        Self {
            path,
            pairs,
            link,
            _directory: directory,
            stop,
            thread,
        }
    }

    pub(crate) fn connect(&self) -> FrontEnd {
        FrontEnd::connect(&self.path)
    }

    /// Waits until the sessions have come to an end of their own.
    pub(crate) fn wait_for_end(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Served {
    /// Stops at once, whatever goes on; a test that hangs here has found that it does not.
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(
                std::thread::panicking() || result.is_ok(),
                "the sessions panicked"
            );
        }
    }
}

pub(crate) fn offer() -> Offer {
    Offer {
        features: FEATURES,
        ring_size_max: 1024,
        queue_num_unit: QueueNumUnit::Pairs,
        config_space: None,
    }
}

pub(crate) fn controls(pairs: &[Arc<Recorder>]) -> Vec<Arc<dyn PairControl>> {
    pairs
        .iter()
        .map(|pair| Arc::clone(pair) as Arc<dyn PairControl>)
        .collect()
}

/// The features as a front-end sees them.
pub(crate) fn offered() -> u64 {
    FEATURES | PROTOCOL_BIT
}
