//! A VXLAN tunnel between the sender and the bridge, for frames that come out of one.

use anyhow::Result;

use super::kit::Kit;
use super::netns::{Sender, disable_ipv6, ip, offloads_off, veth};

/// Ethernet, IPv4, UDP and VXLAN in front of what is carried, so that its MTU is as elsewhere.
const OVERHEAD: u32 = 50;
const LARGEST: u32 = 9000 + OVERHEAD;

/// Makes `eth0` in the sender's namespace, which is that of process `pid`, and `near` at this end.
/// Neither end merges or segments.
pub(super) fn make(kit: &Kit, sender: &Sender, near: &str, host: u8, pid: u32) -> Result<()> {
    let carrier = format!("c{near}");
    veth(kit, &carrier, "carrier", pid)?;
    let ends = (format!("10.78.{host}.1"), format!("10.78.{host}.2"));
    end(kit, &carrier, near, (&ends.1, &ends.0))?;
    sender.inside(|| end(kit, "carrier", "eth0", (&ends.0, &ends.1)))
}

fn end(kit: &Kit, carrier: &str, tunnel: &str, (own, other): (&str, &str)) -> Result<()> {
    disable_ipv6(carrier)?;
    offloads_off(kit, carrier)?;
    ip(kit, &format!("link set {carrier} mtu {LARGEST} up"))?;
    ip(kit, &format!("addr add {own}/24 dev {carrier}"))?;
    ip(
        kit,
        &format!(
            "link add {tunnel} type vxlan id 77 local {own} remote {other} dstport 4789 dev {carrier}"
        ),
    )?;
    offloads_off(kit, tunnel)
}
