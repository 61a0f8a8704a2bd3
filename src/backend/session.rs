//! Connections, one after the other.
//!
//! States of [`Sessions::run`]: *link held down* (nothing listens, nothing is tried), *waiting*
//! for a connection, *in session*. Stopping is possible in each and takes effect at once.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use log::{debug, error, info, warn};

use super::device::Offer;
use super::endpoint::{Endpoint, EndpointError};
use super::entrance::{Entrance, Next};
use super::framework::{Framework, FrameworkError};
use super::pairs::Pairs;
use super::relay::{End, Relay, Rules};
use super::watch::{LinkHandle, StopHandle, Watch};
use crate::worker::PairControl;

/// A kick message has eight bits for the index of the ring.
const PAIRS_MAX: usize = 128;

/// The connections of one device.
pub struct Sessions {
    entrance: Entrance,
    offer: Arc<Offer>,
    controls: Vec<Arc<dyn PairControl>>,
    link: LinkHandle,
    is_one_off: bool,
}

impl Sessions {
    /// Prepares the endpoint; front-ends can connect from now on and are served by
    /// [`run`](Self::run). `controls` are the data threads, one for each queue pair; through `link`
    /// they say when there is no host to talk to.
    ///
    /// # Errors
    /// When the socket cannot be made, or belongs to somebody else.
    pub fn new(
        endpoint: Endpoint,
        offer: Offer,
        controls: Vec<Arc<dyn PairControl>>,
        link: LinkHandle,
    ) -> Result<Self, EndpointError> {
        Self::through(Entrance::claim(endpoint)?, offer, controls, link)
    }

    /// The same through an endpoint that was claimed before.
    ///
    /// # Errors
    /// When pairs or rings are too many.
    pub fn through(
        entrance: Entrance,
        offer: Offer,
        controls: Vec<Arc<dyn PairControl>>,
        link: LinkHandle,
    ) -> Result<Self, EndpointError> {
        if !(1..=PAIRS_MAX).contains(&controls.len()) {
            return Err(EndpointError::PairCount(controls.len()));
        }
        if Pairs::new(controls.clone(), offer.ring_size_max).is_err() {
            return Err(EndpointError::RingSize(offer.ring_size_max));
        }
        if !link.is_down() {
            entrance.announce();
        }
        Ok(Self {
            entrance,
            offer: Arc::new(offer),
            controls,
            link,
            is_one_off: false,
        })
    }

    /// Ends with the first session, unless its front-end never said anything.
    #[must_use]
    pub fn one_off(mut self) -> Self {
        self.is_one_off = true;
        self
    }

    /// Serves one connection after the other until told to stop, or the only one it was given.
    /// Whatever a front-end does ends its own connection at most.
    pub fn run(mut self, stop: &StopHandle) {
        let watch = Watch::new(stop.clone(), self.link.clone());
        loop {
            match self.entrance.next(&watch) {
                Next::Connection(stream) => {
                    if self.serve(&stream, &watch) && self.is_one_off {
                        return;
                    }
                }
                Next::Again => {}
                Next::Never => return,
            }
        }
    }

    /// Serves a connection to its end; whether it was a session worth the name.
    fn serve(&self, front: &UnixStream, watch: &Watch) -> bool {
        let session = match Session::start(&self.offer, &self.controls) {
            Ok(session) => session,
            Err(error) => {
                error!("connection refused: {error}");
                return false;
            }
        };
        debug!("connection accepted");
        let end = catch_unwind(AssertUnwindSafe(|| {
            session.relay(front, &self.offer, watch, self.entrance.patience())
        }));
        let complaint = session.end();
        match &end {
            Ok(End::Unused) => debug!("front-end disconnected: {}", End::Unused),
            Ok(end @ (End::Closed | End::LinkDown | End::Stopped)) => {
                info!("front-end disconnected: {end}");
            }
            Ok(end @ End::Refused(_)) => {
                let complaint = complaint.unwrap_or_default();
                warn!("front-end disconnected: {end}: {complaint}");
            }
            Ok(end) => warn!("front-end disconnected: {end}"),
            Err(_) => error!("front-end disconnected: the session panicked"),
        }
        !matches!(end, Ok(End::Unused | End::Silent | End::LinkDown))
    }
}

/// One connection's daemon and rings.
struct Session {
    pairs: Arc<Pairs>,
    framework: Framework,
}

impl Session {
    fn start(
        offer: &Arc<Offer>,
        controls: &[Arc<dyn PairControl>],
    ) -> Result<Self, FrameworkError> {
        let pairs = Pairs::new(controls.to_vec(), offer.ring_size_max)
            .expect("the ring size was checked when the sessions were made");
        let pairs = Arc::new(pairs);
        let framework = Framework::start(offer, &pairs)?;
        Ok(Self { pairs, framework })
    }

    fn relay(
        &self,
        front: &UnixStream,
        offer: &Offer,
        watch: &Watch,
        patience: Option<Duration>,
    ) -> End {
        let rings = u32::try_from(self.pairs.ring_count()).unwrap_or(u32::MAX);
        let protocol = offer.protocol_features().bits();
        let rules = Rules::new(rings, offer.queue_num_unit, protocol);
        let relay = Relay {
            front,
            daemon: &self.framework.socket,
            rings,
            watch,
            patience,
            announce: &|frame| self.pairs.announce(frame),
        };
        relay.run(rules)
    }

    /// Lets the daemon finish, takes everything from the data threads, and only then unmaps the
    /// memory. Returns what the daemon had to complain about.
    fn end(mut self) -> Option<String> {
        let complaint = self.framework.finish();
        self.pairs.end();
        complaint
    }
}
