//! Every kind of uplink that there is: the list, and what a kind has to say about itself.
//!
//! A kind is a struct of its options. Everybody else sees [`UplinkOptions`], which holds those of
//! all kinds and opens the one that was asked for.

use std::error::Error;
use std::os::fd::RawFd;

use clap::Args;
use rustix::thread::{CapabilitySet, capabilities};

use super::Uplink;
use super::fault::FaultOptions;
use super::steer::SteerOptions;

/// The list. To add a kind, add a line: the name of its field, and its options.
macro_rules! kinds {
    ($($name:ident: $options:ty,)+) => {
        /// The options of all kinds of uplink, one of which is asked for.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
        pub struct UplinkOptions {
            $(
                #[doc = concat!("Those of the kind `", stringify!($name), "`.")]
                #[command(flatten)]
                pub $name: $options,
            )+
            /// Faults of whatever it is.
            #[command(flatten)]
            pub fault: FaultOptions,
            /// How the queues of whatever it is become more.
            #[command(flatten)]
            pub steer: SteerOptions,
        }

        impl UplinkOptions {
            /// Every kind, in the order in which they are shown.
            #[must_use]
            pub fn kinds(&self) -> Vec<&dyn Kind> {
                vec![$(&self.$name),+]
            }
        }
    };
}

kinds! {
    tap: super::tap::TapOptions,
    af_packet: super::af_packet::AfPacketOptions,
    af_xdp: super::af_xdp::AfXdpOptions,
    stream: super::stream::StreamOptions,
    null: super::null::NullOptions,
    loopback: super::loopback::LoopbackOptions,
    generator: super::generator::GeneratorOptions,
}

/// Why an uplink cannot be opened, in the words of its kind.
pub type OpenError = Box<dyn Error + Send + Sync>;

/// What is said of this host: what a kind can do here, or why it can do nothing.
pub type Probe = Result<String, String>;

/// One kind of uplink: how it is asked for, opened and explained.
///
/// The options that ask for one are in clap's group `uplink`, of which one can be given.
pub trait Kind {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// The options that ask for it, as they stand in the file.
    fn words(&self) -> &'static [&'static str];

    /// Whether it was asked for.
    ///
    /// # Errors
    /// One of its options was given that has no meaning without, or beside, another.
    fn is_chosen(&self) -> Result<bool, Misuse>;

    /// Numbers of inherited descriptors that it takes over, one for each queue pair.
    fn descriptors(&self) -> &[RawFd] {
        &[]
    }

    /// Opens it with a queue for each of `pairs` queue pairs.
    ///
    /// # Errors
    /// Says what stands in the way, and its causes.
    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError>;

    /// Finds out what this host and user can have of it, without changing anything.
    ///
    /// # Errors
    /// Says why not, so that the operator knows what to do.
    fn probe(&self) -> Probe;
}

/// An option that does not fit the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// Its word in the file.
    pub option: &'static str,
    /// What it needs.
    pub expected: &'static str,
}

impl UplinkOptions {
    /// The kind that was asked for, `None` if there is none.
    ///
    /// # Errors
    /// See [`Kind::is_chosen`].
    pub fn chosen(&self) -> Result<Option<&dyn Kind>, Misuse> {
        let mut chosen = None;
        // All are asked, so that an option of another kind is not passed over in silence.
        for kind in self.kinds() {
            if kind.is_chosen()? {
                chosen = chosen.or(Some(kind));
            }
        }
        Ok(chosen)
    }

    /// Opens the uplink that was asked for, with a queue for each of `pairs` queue pairs; `None` if
    /// there is none.
    ///
    /// # Errors
    /// See [`Kind::open`].
    pub fn open(&self, pairs: usize) -> Option<Result<Box<dyn Uplink>, OpenError>> {
        let kind = self.chosen().ok().flatten()?;
        let open = || {
            let device = kind.open(self.steer.queues(pairs))?;
            Ok(self.steer.around(self.fault.around(device), pairs)?)
        };
        Some(open())
    }

    /// The options that ask for an uplink, each as it stands in the file.
    pub fn words() -> impl Iterator<Item = &'static str> {
        let kinds = Self::default();
        let words: Vec<_> = kinds.kinds().iter().map(|kind| kind.words()).collect();
        words.into_iter().flatten().copied()
    }
}

/// Whether this process has a capability in effect.
#[must_use]
pub(super) fn has_capability(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        uplink: UplinkOptions,
    }

    fn parse(args: &[&str]) -> Result<UplinkOptions, clap::Error> {
        let all = ["test"].iter().chain(args);
        Alone::try_parse_from(all).map(|alone| alone.uplink)
    }

    #[test]
    fn one_kind_can_be_asked_for() {
        let options = parse(&["--tap=t"]).unwrap();
        assert_eq!(
            options.chosen().unwrap().map(|kind| kind.name()),
            Some("tap")
        );
        assert!(parse(&[]).unwrap().chosen().unwrap().is_none());
        let err = parse(&["--tap=t", "--null"]).unwrap_err();
        assert_eq!(err.kind(), clap::error::ErrorKind::ArgumentConflict);
    }

    #[test]
    fn an_option_of_another_kind_is_named() {
        let options = parse(&["--null", "--tap-persistent"]).unwrap();
        let misuse = options.chosen().err().unwrap();
        assert_eq!(misuse.option, "tap_persistent");
    }

    #[test]
    fn every_word_is_an_option_of_the_group() {
        use clap::CommandFactory;
        let mut command = Alone::command();
        command.build();
        let group: Vec<_> = command
            .get_groups()
            .filter(|group| group.get_id() == "uplink")
            .flat_map(|group| group.get_args().map(ToString::to_string))
            .collect();
        let words: Vec<_> = UplinkOptions::words().collect();
        assert_eq!(group, words);
    }
}
