//! How an interface is asked for.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::thread::CapabilitySet;

use super::AfXdp;
use super::error::AfXdpError;
use super::interface::{AfXdpConfig, Mode};
use crate::sys::bpf::xsk_map;
use crate::sys::xdp_socket;
use crate::uplink::Uplink;
use crate::uplink::af_packet::{MACS_MAX, Mac, parse_mac};
use crate::uplink::if_name::name_fault;
use crate::uplink::kinds::{Kind, Misuse, OpenError, Probe, has_capability};
use crate::values::{number, switch};

/// Frames of a ring unless said otherwise.
const RING: u32 = 2048;

/// The options of an interface that is attached to by XDP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct AfXdpOptions {
    /// Name of an existing interface to attach to past the host's network stack, by XDP.
    #[arg(long, value_name = "IFNAME", value_parser = interface, group = "uplink",
        help_heading = "Host side")]
    pub af_xdp: Option<String>,

    /// Where frames are taken: by the driver (native), or in the stack (generic)
    /// [default: auto, the former if it can].
    #[arg(long, value_name = "MODE", value_parser = mode(), help_heading = "Host side")]
    pub af_xdp_mode: Option<Mode>,

    /// Address of the guest, once for each: take frames to them and to groups alone, and leave the
    /// others to the host [default: all frames].
    #[arg(long, value_name = "MAC", value_parser = parse_mac, help_heading = "Host side")]
    pub af_xdp_mac: Vec<Mac>,

    /// Frames that the ring of each queue takes, 64 to 32768, rounded up to a power of two
    /// [default: 2048].
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true,
        value_parser = number(64..=32768u32, "frames"), help_heading = "Host side")]
    pub af_xdp_ring: Option<u32>,

    /// Whether frames come from senders on this host, which leave checksums unfinished, so that one
    /// that looks so is taken for it [default: on at a veth, else off].
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", help_heading = "Host side")]
    pub af_xdp_unfinished: Option<bool>,

    /// Whether the guest's link goes down while the interface is down or away [default: on].
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", help_heading = "Host side")]
    pub af_xdp_link: Option<bool>,
}

impl Kind for AfXdpOptions {
    fn name(&self) -> &'static str {
        "af_xdp"
    }

    fn words(&self) -> &'static [&'static str] {
        &["af_xdp"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        let alone = [
            ("af_xdp_mode", self.af_xdp_mode.is_some()),
            ("af_xdp_mac", !self.af_xdp_mac.is_empty()),
            ("af_xdp_ring", self.af_xdp_ring.is_some()),
            ("af_xdp_unfinished", self.af_xdp_unfinished.is_some()),
            ("af_xdp_link", self.af_xdp_link.is_some()),
        ];
        let given = alone.into_iter().find(|(_, is_given)| *is_given);
        match given {
            Some((option, _)) if self.af_xdp.is_none() => Err(Misuse {
                option,
                expected: "af_xdp beside it",
            }),
            _ if self.af_xdp_mac.len() > MACS_MAX => Err(Misuse {
                option: "af_xdp_mac",
                expected: "at most 64 addresses",
            }),
            _ => Ok(self.af_xdp.is_some()),
        }
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        let config = AfXdpConfig {
            macs: self.af_xdp_mac.clone(),
            ring: self.af_xdp_ring.unwrap_or(RING).next_power_of_two(),
            mode: self.af_xdp_mode.unwrap_or_default(),
            unfinished: self.af_xdp_unfinished,
            shows_link: self.af_xdp_link.unwrap_or(true),
        };
        let name = self.af_xdp.as_deref().unwrap_or_default();
        Ok(Box::new(AfXdp::open(name, pairs, config)?))
    }

    fn probe(&self) -> Probe {
        let said = |error: AfXdpError| error.to_string();
        xdp_socket().map_err(|errno| said(AfXdpError::no_socket(errno)))?;
        let bpf = "CAP_BPF and CAP_NET_ADMIN";
        let no_map = AfXdpError::setup("make a map of sockets", "the interface", bpf);
        xsk_map(1).map_err(|err| said(no_map(err)))?;
        if !has_capability(CapabilitySet::NET_ADMIN) {
            return Err(
                "no permission to attach an XDP program: run with CAP_NET_ADMIN".to_owned(),
            );
        }
        Ok("any Ethernet interface with an MTU of at most 3802".to_owned())
    }
}

fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["auto", "native", "generic"]).map(|word| match word.as_str() {
        "native" => Mode::Native,
        "generic" => Mode::Generic,
        _ => Mode::Auto,
    })
}

fn interface(text: &str) -> Result<String, AfXdpError> {
    match name_fault(text) {
        None => Ok(text.to_owned()),
        Some(reason) => Err(AfXdpError::Name {
            name: text.to_owned(),
            reason,
        }),
    }
}
