//! How an interface is asked for.

use clap::Args;
use rustix::thread::CapabilitySet;

use super::AfPacket;
use super::error::AfPacketError;
use super::filter::{MACS_MAX, Mac, parse_mac};
use super::interface::AfPacketConfig;
use crate::sys::packet::packet_socket;
use crate::uplink::Uplink;
use crate::uplink::if_name::name_fault;
use crate::uplink::kinds::{Kind, Misuse, OpenError, Probe, has_capability};
use crate::values::{number, switch};

/// Slots of a ring unless said otherwise.
const SLOTS: usize = 2048;

/// The options of an existing interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct AfPacketOptions {
    /// Name of an existing interface to attach to.
    #[arg(long, value_name = "IFNAME", value_parser = interface, group = "uplink",
        help_heading = "Host side")]
    pub af_packet: Option<String>,

    /// Address of the guest, once for each: receive frames to them and to groups alone
    /// [default: all frames].
    #[arg(long, value_name = "MAC", value_parser = parse_mac, help_heading = "Host side")]
    pub af_packet_mac: Vec<Mac>,

    /// Frames that the ring of each queue takes, 16 to 32768, rounded up to a power of two
    /// [default: 2048].
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true,
        value_parser = number(16..=32768usize, "frames"), help_heading = "Host side")]
    pub af_packet_ring: Option<usize>,

    /// Whether the guest's link goes down while the interface is down or away [default: on].
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", help_heading = "Host side")]
    pub af_packet_link: Option<bool>,

    /// Send past the queueing discipline of the interface [default: off].
    #[arg(long, value_name = "on|off", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", help_heading = "Host side")]
    pub af_packet_qdisc_bypass: Option<bool>,
}

impl Kind for AfPacketOptions {
    fn name(&self) -> &'static str {
        "af_packet"
    }

    fn words(&self) -> &'static [&'static str] {
        &["af_packet"]
    }

    fn is_chosen(&self) -> Result<bool, Misuse> {
        let alone = [
            ("af_packet_mac", !self.af_packet_mac.is_empty()),
            ("af_packet_ring", self.af_packet_ring.is_some()),
            ("af_packet_link", self.af_packet_link.is_some()),
            (
                "af_packet_qdisc_bypass",
                self.af_packet_qdisc_bypass.is_some(),
            ),
        ];
        let given = alone.into_iter().find(|(_, is_given)| *is_given);
        match given {
            Some((option, _)) if self.af_packet.is_none() => Err(Misuse {
                option,
                expected: "af_packet beside it",
            }),
            _ if self.af_packet_mac.len() > MACS_MAX => Err(Misuse {
                option: "af_packet_mac",
                expected: "at most 64 addresses",
            }),
            _ => Ok(self.af_packet.is_some()),
        }
    }

    fn open(&self, pairs: usize) -> Result<Box<dyn Uplink>, OpenError> {
        let config = AfPacketConfig {
            macs: self.af_packet_mac.clone(),
            slots: self.af_packet_ring.unwrap_or(SLOTS).next_power_of_two(),
            shows_link: self.af_packet_link.unwrap_or(true),
            qdisc_bypass: self.af_packet_qdisc_bypass.unwrap_or(false),
        };
        let name = self.af_packet.as_deref().unwrap_or_default();
        Ok(Box::new(AfPacket::open(name, pairs, config)?))
    }

    fn probe(&self) -> Probe {
        packet_socket().map_err(|err| AfPacketError::no_socket(err).to_string())?;
        Ok(if has_capability(CapabilitySet::NET_ADMIN) {
            "any Ethernet interface".to_owned()
        } else {
            "any Ethernet interface; without CAP_NET_ADMIN the send buffer is small, so packets of \
             64 KiB go slowly"
                .to_owned()
        })
    }
}

fn interface(text: &str) -> Result<String, AfPacketError> {
    match name_fault(text) {
        None => Ok(text.to_owned()),
        Some(reason) => Err(AfPacketError::Name {
            name: text.to_owned(),
            reason,
        }),
    }
}
