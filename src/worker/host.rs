//! The uplink queue of a pair, and what is known about its device.

use std::fmt::Display;
use std::time::Duration;

use log::{info, warn};

use super::thread::LinkReport;
use crate::uplink::UplinkQueue;

/// How long an uplink is left alone that keeps saying it is ready and then does nothing.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// State of the host side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Frames flow.
    Up,
    /// The interface is down and may come back; frames from the guest are dropped and counted.
    Down,
    /// The device is gone for good. Nothing is read or sent any more.
    Gone,
}

/// The uplink queue and what is known about it, shared by both directions.
pub(super) struct Host {
    pub(super) queue: Box<dyn UplinkQueue>,
    pub(super) link: Link,
    /// What the queue was told last.
    is_active: bool,
    was_refused: bool,
    /// What the guest was told last of the other end.
    has_carrier: bool,
    report: LinkReport,
}

impl Host {
    pub(super) fn new(queue: Box<dyn UplinkQueue>, report: LinkReport) -> Self {
        Self {
            queue,
            link: Link::Up,
            is_active: true,
            was_refused: false,
            has_carrier: true,
            report,
        }
    }

    /// Tells the queue whether its frames are read. One that refuses goes on as it was, which costs
    /// frames but nothing else, so it is said once.
    pub(super) fn set_active(&mut self, is_active: bool) {
        if self.is_active == is_active || self.link == Link::Gone {
            return;
        }
        self.is_active = is_active;
        let Err(error) = self.queue.set_active(is_active) else {
            return;
        };
        if !core::mem::replace(&mut self.was_refused, true) {
            let what = if is_active {
                "put into"
            } else {
                "taken out of"
            };
            warn!("the queue cannot be {what} the uplink's set: {error}");
        }
    }

    /// Reports whether the other end of the uplink came or went.
    pub(super) fn note_carrier(&mut self) {
        let Some(has_carrier) = self.queue.carrier() else {
            return;
        };
        if has_carrier != self.has_carrier && self.link != Link::Gone {
            self.has_carrier = has_carrier;
            (self.report)(has_carrier);
        }
    }

    /// Notes a change of the link, says so once, and reports a loss for good. A device that can be
    /// watched says itself when it is down and up.
    pub(super) fn set_link(&mut self, link: Link, why: &dyn Display) {
        if self.link == link || self.link == Link::Gone {
            return;
        }
        if link != Link::Gone && self.queue.is_watched() {
            return;
        }
        self.link = link;
        match link {
            Link::Up => info!("uplink is up"),
            Link::Down => warn!("uplink is down: {why}"),
            Link::Gone => {
                warn!("uplink is gone: {why}");
                (self.report)(false);
            }
        }
    }
}
