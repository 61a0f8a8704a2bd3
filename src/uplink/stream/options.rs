//! How a stream is asked for.

use std::os::fd::RawFd;

use clap::Args;

use super::{Stream, StreamAddress, StreamError};
use crate::sys::take_inherited;
use crate::uplink::Uplink;
use crate::uplink::kinds::{Kind, Misuse, OpenError, Probe};
use crate::values::{number, switch};

/// The options of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct StreamOptions {
    /// Socket of a peer such as passt or QEMU's -netdev stream: PATH or HOST:PORT to connect to,
    /// or listen:PATH or listen:HOST:PORT to be connected to. A path has a slash.
    #[arg(
        long,
        value_name = "ADDRESS",
        group = "uplink",
        help_heading = "Host side"
    )]
    pub stream: Option<StreamAddress>,

    /// Inherited descriptor of a connected socket, in place of --stream.
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = number(3..=i32::MAX, "as descriptor number"), group = "uplink",
        help_heading = "Host side")]
    pub stream_fd: Option<i32>,

    /// Whether the guest's link goes down while a peer that was there is away [default: on].
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", help_heading = "Host side")]
    pub stream_link: Option<bool>,
}

impl Kind for StreamOptions {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn words(&self) -> &'static [&'static str] {
        &["stream", "stream_fd"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        if self.stream.is_none() && self.stream_link.is_some() {
            return Err(Misuse {
                option: "stream_link",
                expected: "stream beside it",
            });
        }
        Ok(self.stream.is_some() || self.stream_fd.is_some())
    }

    fn descriptors(&self) -> &[RawFd] {
        self.stream_fd.as_slice()
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        if pairs != 1 {
            return Err(StreamError::Pairs(pairs).into());
        }
        let stream = match (&self.stream, self.stream_fd) {
            (Some(address), _) => Stream::open(address, self.stream_link.unwrap_or(true))?,
            (None, Some(fd)) => {
                let socket = take_inherited(fd)
                    .map_err(|source| StreamError::NotInherited { fd, source })?;
                Stream::given(socket)?
            }
            (None, None) => return Err(StreamError::NotConnected.into()),
        };
        Ok(Box::new(stream))
    }

    fn probe(&self) -> Probe {
        Ok("any peer; no privilege is needed; one queue, no offloads".to_owned())
    }
}
