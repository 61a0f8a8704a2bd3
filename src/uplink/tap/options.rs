//! How a tap is asked for.

use std::os::fd::RawFd;

use clap::Args;
use rustix::thread::CapabilitySet;

use super::{Persistence, Tap, TapError, check_name, open_tun};
use crate::sys::take_inherited;
use crate::uplink::Uplink;
use crate::uplink::kinds::{Kind, Misuse, OpenError, Probe, has_capability};
use crate::values::{number, switch};

/// The options of a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct TapOptions {
    /// Name of the tap, which is created if it does not exist.
    #[arg(long, value_name = "NAME", value_parser = tap_name, group = "uplink",
        help_heading = "Host side")]
    pub tap: Option<String>,

    /// Inherited descriptor of an open tap queue, in place of --tap; once for each queue pair.
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = number(3..=i32::MAX, "as descriptor number"), group = "uplink",
        help_heading = "Host side")]
    pub tap_fd: Vec<i32>,

    /// Whether the tap stays when the daemon ends [default: as it was].
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", help_heading = "Host side")]
    pub tap_persistent: Option<bool>,
}

impl Kind for TapOptions {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn words(&self) -> &'static [&'static str] {
        &["tap", "tap_fd"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        if self.tap.is_none() && self.tap_persistent.is_some() {
            return Err(Misuse {
                option: "tap_persistent",
                expected: "a tap by name",
            });
        }
        Ok(self.tap.is_some() || !self.tap_fd.is_empty())
    }

    fn descriptors(&self) -> &[RawFd] {
        &self.tap_fd
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        let persistence = match self.tap_persistent {
            None => Persistence::Unchanged,
            Some(true) => Persistence::Persistent,
            Some(false) => Persistence::Temporary,
        };
        let tap = match &self.tap {
            Some(name) => Tap::open(name, pairs, persistence)?,
            None => {
                let inherited = |&fd| {
                    take_inherited(fd).map_err(|source| TapError::NotInherited { fd, source })
                };
                let fds = self.tap_fd.iter().map(inherited);
                Tap::from_fds(fds.collect::<Result<_, _>>()?, pairs)?
            }
        };
        Ok(Box::new(tap))
    }

    fn probe(&self) -> Probe {
        open_tun().map_err(|err| err.to_string())?;
        Ok(if has_capability(CapabilitySet::NET_ADMIN) {
            "any tap, by name or descriptor".to_owned()
        } else {
            "taps of this user, or by descriptor; to create one needs CAP_NET_ADMIN".to_owned()
        })
    }
}

fn tap_name(text: &str) -> Result<String, TapError> {
    check_name(text).map(|()| text.to_owned())
}
