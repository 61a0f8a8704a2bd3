//! The daemon's life from a checked configuration to the signal that ends it.

use std::io;
use std::os::fd::RawFd;

use super::config::{Config, UplinkConfig};
use crate::sys::take_inherited;
use crate::uplink::Uplink;
use crate::uplink::tap::{Tap, TapError};

/// Why the daemon cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host's device cannot be had.
    #[error("the uplink cannot be opened")]
    Uplink(#[from] TapError),
    /// A descriptor named on the command line is not there.
    #[error("descriptor {fd} was not inherited")]
    Inherited {
        /// Its number.
        fd: RawFd,
        /// What is wrong with it.
        source: io::Error,
    },
}

/// Serves the front-end until a signal or, with `one_off`, the end of the first session.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: Config) -> Result<(), RunError> {
    let uplink = open_uplink(&config)?;
    log::info!(
        "{} is open with {} queues",
        uplink.name(),
        uplink.caps().queues
    );
    Ok(())
}

fn open_uplink(config: &Config) -> Result<Box<dyn Uplink>, RunError> {
    let tap = match &config.uplink {
        UplinkConfig::Tap { name, persistence } => {
            Tap::open(name, config.queue_pairs, *persistence)?
        }
        UplinkConfig::TapFds(numbers) => {
            let inherit =
                |&fd| take_inherited(fd).map_err(|source| RunError::Inherited { fd, source });
            let fds = numbers.iter().map(inherit).collect::<Result<_, _>>()?;
            Tap::from_fds(fds, config.queue_pairs)?
        }
    };
    Ok(Box::new(tap))
}
