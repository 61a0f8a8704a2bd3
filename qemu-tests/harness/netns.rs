//! The network of a run: a sender in a namespace of its own, and a bridge with taps.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::LinkNameSpaceType;
use serde_json::Value;

use super::kit::Kit;
use super::process::{Process, output_of};
use super::sandbox::RUN_DIR;
use super::tunnel;
use super::wait::wait_until;

/// What the sender puts on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Frames of at most the MTU with complete checksums, as from another machine.
    Frames,
    /// Packets of up to 64 KiB that the sender's kernel did not segment.
    Bulk,
    /// Frames of at most the MTU that came out of a VXLAN tunnel, in which nothing was merged.
    Tunnelled,
}

/// How VLAN tags come to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tags {
    /// Beside their frames, as a card does that takes them out.
    Beside,
    /// Within their frames, for who is told nothing else.
    InFrames,
}

/// One bridge with a sender on it. Each has names of its own, so several can be there at once.
#[derive(Debug)]
pub(crate) struct Lab<'a> {
    kit: &'a Kit,
    id: u32,
    mtu: u32,
    next_port: AtomicU32,
    pub(crate) sender: Sender,
}

/// A network namespace with one interface, `eth0`, that leads to the bridge.
#[derive(Debug)]
pub(crate) struct Sender {
    namespace: File,
    pub(crate) ip4: String,
    pub(crate) ip6: String,
}

static NEXT_LAB: AtomicU32 = AtomicU32::new(0);

impl<'a> Lab<'a> {
    pub(crate) fn new(kit: &'a Kit, wire: Wire, mtu: u32) -> Result<Self> {
        let id = NEXT_LAB.fetch_add(1, Ordering::Relaxed);
        let bridge = format!("br{id}");
        ip(
            kit,
            &format!("link add {bridge} type bridge mcast_snooping 0"),
        )?;
        disable_ipv6(&bridge)?;
        ip(kit, &format!("link set {bridge} mtu {mtu} up"))?;
        let sender = Sender::new(kit, &bridge, &format!("up{id}"), 1, wire, mtu)?;
        Ok(Lab {
            kit,
            id,
            mtu,
            next_port: AtomicU32::new(0),
            sender,
        })
    }

    /// One more sender on the same bridge, with the host part `host` in its addresses.
    pub(crate) fn add_sender(&self, host: u8, wire: Wire) -> Result<Sender> {
        let uplink = format!("up{}x{host}", self.id);
        Sender::new(
            self.kit,
            &format!("br{}", self.id),
            &uplink,
            host,
            wire,
            self.mtu,
        )
    }

    /// A number for a port that is yet to be made.
    pub(crate) fn next_port(&self) -> u32 {
        self.next_port.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a tap on the bridge and gives its name. It stays when nobody has it open.
    pub(crate) fn add_tap(&self, queues: u16) -> Result<String> {
        self.make_tap(self.next_port(), queues)
    }

    /// Makes the tap with this number, for the first time or again.
    pub(crate) fn make_tap(&self, port: u32, queues: u16) -> Result<String> {
        let tap = self.tap(port);
        let multi = if queues > 1 { "multi_queue" } else { "" };
        ip(
            self.kit,
            &format!("tuntap add dev {tap} mode tap vnet_hdr {multi}"),
        )?;
        disable_ipv6(&tap)?;
        ip(
            self.kit,
            &format!("link set {tap} mtu {} master br{} up", self.mtu, self.id),
        )?;
        Ok(tap)
    }
}

impl Lab<'_> {
    /// Name of the tap that was added as the one with this number.
    pub(crate) fn tap(&self, port: u32) -> String {
        format!("tap{}x{port}", self.id)
    }

    /// Makes the interface with this number, whose other end is on the bridge, for the first time
    /// or again, and gives its name.
    pub(crate) fn make_interface(&self, number: u32, tags: Tags) -> Result<String> {
        let Lab { kit, id, mtu, .. } = self;
        let [interface, port] = self.interface(number);
        ip(
            kit,
            &format!("link add {interface} mtu {mtu} type veth peer name {port} mtu {mtu}"),
        )?;
        disable_ipv6(&interface)?;
        disable_ipv6(&port)?;
        if tags == Tags::InFrames {
            tags_stay(kit, &port)?;
        }
        ip(kit, &format!("link set {port} master br{id} up"))?;
        ip(kit, &format!("link set {interface} up"))?;
        Ok(interface)
    }

    /// Name of the interface with this number, and of its other end.
    pub(crate) fn interface(&self, number: u32) -> [String; 2] {
        ["if", "port"].map(|end| format!("{end}{}x{number}", self.id))
    }

    /// The bridge's interface that leads to the sender.
    pub(crate) fn uplink(&self) -> String {
        format!("up{}", self.id)
    }

    /// Lets so many frames wait in an interface.
    pub(crate) fn lengthen(&self, interface: &str, frames: u32) -> Result<()> {
        ip(
            self.kit,
            &format!("link set {interface} txqueuelen {frames}"),
        )
    }

    /// Lets an interface send no faster than `rate`, such as `100mbit`, with at most `limit` bytes
    /// waiting. None lifts it.
    pub(crate) fn shape(&self, interface: &str, limit: Option<(&str, u32)>) -> Result<()> {
        let mut tc = self.kit.tool("tc")?;
        match limit {
            // Two frames of the MTU may go at once.
            Some((rate, limit)) => tc.args(
                format!("qdisc add dev {interface} root tbf rate {rate} burst 3028 limit {limit}")
                    .split_whitespace(),
            ),
            None => tc.args(["qdisc", "del", "dev", interface, "root"]),
        };
        output_of(&mut tc).map(drop)
    }

    /// Takes away the interface with this number.
    pub(crate) fn remove_interface(&self, number: u32) -> Result<()> {
        ip(self.kit, &format!("link del {}", self.interface(number)[0]))
    }

    /// Takes any interface down, or up.
    pub(crate) fn set_up(&self, interface: &str, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        ip(self.kit, &format!("link set {interface} {state}"))
    }

    /// Takes away the tap that was added as the one with this number.
    pub(crate) fn remove_tap(&self, port: u32) -> Result<()> {
        ip(self.kit, &format!("link del {}", self.tap(port)))
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        // What is left goes with the sandbox, so failing here does no harm.
        let ports = self.next_port.load(Ordering::Relaxed);
        for port in 0..ports {
            let _ = self
                .remove_tap(port)
                .or_else(|_| self.remove_interface(port));
        }
        let _ = ip(self.kit, &format!("link del br{}", self.id));
    }
}

impl Sender {
    fn new(kit: &Kit, bridge: &str, uplink: &str, host: u8, wire: Wire, mtu: u32) -> Result<Self> {
        // Some process has to be in a new namespace until somebody else holds it.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; read -r line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start unshare")?;
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().context("no pipe")?).read_line(&mut ready)?;
        let pid = holder.id();
        let sender = Sender {
            namespace: File::open(format!("/proc/{pid}/ns/net"))?,
            ip4: format!("10.77.0.{host}"),
            ip6: format!("fd77::{host}"),
        };
        if wire == Wire::Tunnelled {
            tunnel::make(kit, &sender, uplink, host, pid)?;
        } else {
            veth(kit, uplink, "eth0", pid)?;
        }
        drop(holder.stdin.take());
        holder.wait()?;

        disable_ipv6(uplink)?;
        ip(
            kit,
            &format!("link set {uplink} mtu {mtu} master {bridge} up"),
        )?;
        sender.inside(|| -> Result<()> {
            // One connection's findings must not shape the next.
            std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")?;
            ip(kit, "link set lo up")?;
            ip(kit, &format!("link set eth0 mtu {mtu} up"))?;
            ip(kit, &format!("addr add {}/24 dev eth0", sender.ip4))?;
            ip(kit, &format!("addr add {}/64 dev eth0 nodad", sender.ip6))
        })?;
        if wire == Wire::Frames {
            sender.inside(|| offloads_off(kit, "eth0"))?;
            offloads_off(kit, uplink)?;
        }
        Ok(sender)
    }

    /// Starts a netserver in the namespace.
    pub(crate) fn serve(&self, kit: &Kit) -> Result<Process> {
        let mut netserver = kit.tool("netserver")?;
        netserver.arg("-D");
        let log = Path::new(RUN_DIR).join(format!("netserver-{}.log", self.ip4));
        let mut process = self.inside(|| Process::start("netserver", &mut netserver, log))?;
        let listens = || self.inside(|| TcpStream::connect((self.ip4.as_str(), 12865)).is_ok());
        wait_until("netserver's start", Duration::from_secs(10), || {
            process.check_alive()?;
            Ok(listens())
        })?;
        Ok(process)
    }

    /// The address of its interface.
    pub(crate) fn mac(&self, kit: &Kit) -> Result<String> {
        let mut ip = kit.tool("ip")?;
        ip.args(["-j", "link", "show", "eth0"]);
        let text = self.inside(|| output_of(&mut ip))?;
        let links: Value = serde_json::from_str(&text)?;
        let mac = links[0]["address"]
            .as_str()
            .context("eth0 has no address")?;
        Ok(mac.to_owned())
    }

    /// Does `action` on a thread that is in the namespace; sockets and processes made by it are so,
    /// too.
    pub(crate) fn inside<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(self.namespace.as_fd(), network)
                    .expect("the namespace was made by this process");
                action()
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// Makes a pair of interfaces with one queue each, the second in the namespace of a process.
pub(super) fn veth(kit: &Kit, near: &str, far: &str, pid: u32) -> Result<()> {
    let queues = "numtxqueues 1 numrxqueues 1";
    ip(
        kit,
        &format!("link add {near} {queues} type veth peer name {far} {queues} netns {pid}"),
    )
}

/// Runs `ip` with words separated by spaces, in the namespace of the calling thread.
pub(crate) fn ip(kit: &Kit, words: &str) -> Result<()> {
    output_of(kit.tool("ip")?.args(words.split_whitespace())).map(drop)
}

/// The host's kernel must not take part in what goes over the bridge.
pub(super) fn disable_ipv6(interface: &str) -> Result<()> {
    let setting = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    std::fs::write(&setting, "1").with_context(|| setting)
}

/// Makes an interface send tags within their frames.
fn tags_stay(kit: &Kit, interface: &str) -> Result<()> {
    let mut ethtool = kit.tool("ethtool")?;
    ethtool.args([
        "-K",
        interface,
        "tx-vlan-offload",
        "off",
        "tx-vlan-stag-hw-insert",
        "off",
    ]);
    output_of(&mut ethtool).map(drop)
}

/// Makes an interface send what its kernel would otherwise have left to the next device.
pub(super) fn offloads_off(kit: &Kit, interface: &str) -> Result<()> {
    let mut ethtool = kit.tool("ethtool")?;
    ethtool.args([
        "-K", interface, "tso", "off", "gso", "off", "gro", "off", "tx", "off", "sg", "off",
    ]);
    output_of(&mut ethtool).map(drop)
}
