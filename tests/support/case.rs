//! The format of the case files; `tests/gro/README.md` explains every key.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use vhost_user_gro::gro::GroTypes;

use super::packet::{A, ACK, AE, B, CWR, Checksum, ECE, FIN, Host, Ip, PSH, Packet, RST, SYN, URG};

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub why: String,
    pub rules: Vec<String>,
    kernel_test: Option<String>,
    ip: u8,
    l4: String,
    #[serde(default = "default_isn")]
    isn: u32,
    #[serde(default)]
    pub hash_mode: CaseHashMode,
    #[serde(default)]
    features_add: Vec<String>,
    #[serde(default)]
    features_del: Vec<String>,
    #[serde(default)]
    pub config: CaseConfig,
    pub input: Vec<Item>,
    pub expect: Vec<Expect>,
    pub batches: Option<Vec<usize>>,
    #[serde(default)]
    pub state: Vec<State>,
    linux_6_19: Option<toml::Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaseHashMode {
    #[default]
    Zero,
    Given,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaseConfig {
    pub gro_flush_timeout_ns: u64,
    pub napi_defer_hard_irqs: u32,
    pub gro_normal_batch: Option<u32>,
}

/// A frame or a poll event.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "toml::Table")]
pub enum Item {
    Frame(Box<FrameItem>),
    Event(EventItem),
}

impl TryFrom<toml::Table> for Item {
    type Error = toml::de::Error;

    fn try_from(table: toml::Table) -> Result<Self, Self::Error> {
        if table.contains_key("op") {
            table.try_into().map(Self::Event)
        } else {
            table.try_into().map(Self::Frame)
        }
    }
}

impl Item {
    /// When it happens, in ns; `None` at the time of the item before.
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Frame(frame) => frame.t,
            Self::Event(event) => event.t,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventItem {
    pub op: Op,
    pub work: Option<u32>,
    t: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    PollEnd,
    BudgetEnd,
    Timer,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameItem {
    len: usize,
    #[serde(default)]
    seq: u32,
    #[serde(default)]
    flow: u16,
    sport: Option<u16>,
    dport: Option<u16>,
    #[serde(default = "default_flags")]
    flags: String,
    ack: Option<u32>,
    win: Option<u16>,
    urg: Option<u16>,
    #[serde(default)]
    opts: String,
    doff: Option<u8>,
    ttl: Option<u8>,
    tos: Option<u8>,
    id: Option<u16>,
    df: Option<bool>,
    mf: Option<bool>,
    rb: Option<bool>,
    frag_off: Option<u16>,
    #[serde(default)]
    ip_opts: String,
    fl: Option<u32>,
    #[serde(default)]
    ext: Vec<(u8, String)>,
    tot_len_delta: Option<i32>,
    udp_len: Option<u16>,
    pad: Option<usize>,
    #[serde(default = "default_csum")]
    ip_csum: String,
    #[serde(default = "default_csum")]
    l4_csum: String,
    #[serde(default)]
    vlan: Vec<(u16, u16)>,
    smac: Option<String>,
    dmac: Option<String>,
    src: Option<String>,
    dst: Option<String>,
    #[serde(default)]
    meta: u64,
    #[serde(default)]
    hash: u64,
    t: Option<u64>,
    in_gso: Option<u16>,
    ip: Option<u8>,
    l4: Option<String>,
    vxlan: Option<toml::Table>,
}

/// A packet that must be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub payload: usize,
    pub gso_size: u16,
    pub segs: u32,
    pub from: Vec<usize>,
    pub at: i64,
    pub kind: Kind,
    #[serde(default = "default_flags")]
    pub flags: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Super,
    Single,
    Normal,
}

/// Where the context must stand after an item.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub at: usize,
    pub irq: Irq,
    pub timer: i64,
    pub held: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Irq {
    Masked,
    Unmasked,
}

fn default_isn() -> u32 {
    1_000_000
}

fn default_flags() -> String {
    "A".into()
}

fn default_csum() -> String {
    "ok".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    schema: u32,
    case: Vec<toml::Table>,
}

/// Reads a file of cases. Errors name the file, those of a case its name too; the other cases of
/// the file are good.
pub fn read(path: &Path) -> Result<Vec<Result<Case, String>>, String> {
    let within = |text: String| format!("{}: {text}", path.display());
    let text = fs::read_to_string(path).map_err(|error| within(error.to_string()))?;
    let file: CaseFile = toml::from_str(&text).map_err(|error| within(error.to_string()))?;
    if file.schema != 1 {
        return Err(within(format!("schema {}, expected 1", file.schema)));
    }
    let read_case = |table: toml::Table| {
        let name = table
            .get("name")
            .and_then(toml::Value::as_str)
            .unwrap_or("without name")
            .to_owned();
        let case = table.try_into::<Case>().map_err(|error| error.to_string());
        case.and_then(Case::checked)
            .map_err(|error| within(format!("case {name}: {error}")))
    };
    Ok(file.case.into_iter().map(read_case).collect())
}

impl Case {
    /// Finds values of the right type without a meaning before the case is run.
    fn checked(self) -> Result<Self, String> {
        for feature in self.features_add.iter().chain(&self.features_del) {
            if !FEATURES.contains(&feature.as_str()) {
                return Err(format!("unknown feature {feature}"));
            }
        }
        for (_, frame) in self.frames() {
            self.packet(frame)?;
        }
        for expect in &self.expect {
            if expect.from.is_empty() {
                return Err("a packet comes from at least one input".into());
            }
            for &from in &expect.from {
                if !matches!(self.input.get(from), Some(Item::Frame(_))) {
                    return Err(format!("input {from} is not a frame"));
                }
            }
        }
        Ok(self)
    }

    /// The frames among the input, with their indexes.
    pub fn frames(&self) -> impl Iterator<Item = (usize, &FrameItem)> {
        let items = self.input.iter().enumerate();
        items.filter_map(|(i, item)| match item {
            Item::Frame(frame) => Some((i, &**frame)),
            Item::Event(_) => None,
        })
    }

    /// Whether a frame of the case is in a tunnel.
    pub fn has_tunnel(&self) -> bool {
        self.frames().any(|(_, frame)| frame.vxlan.is_some())
    }

    /// Whether a frame of the case is UDP.
    pub fn has_udp(&self) -> bool {
        self.frames().any(|(_, frame)| self.l4(frame) == "udp")
    }

    /// What the guest of this case accepts.
    pub fn types(&self) -> GroTypes {
        let has = |name: &str| {
            let on = ACKED.contains(&name) || self.features_add.iter().any(|add| add == name);
            on && !self.features_del.iter().any(|del| del == name)
        };
        GroTypes {
            csum: has("GUEST_CSUM"),
            tcp4: has("GUEST_TSO4"),
            tcp6: has("GUEST_TSO6"),
            ecn: has("GUEST_ECN"),
            udp4: has("GUEST_USO4"),
            udp6: has("GUEST_USO6"),
        }
    }

    fn l4<'a>(&'a self, frame: &'a FrameItem) -> &'a str {
        frame.l4.as_deref().unwrap_or(&self.l4)
    }

    /// The frame that an item describes. A frame in a tunnel comes without the tunnel.
    pub fn packet(&self, frame: &FrameItem) -> Result<Packet, String> {
        let ip = match frame.ip.unwrap_or(self.ip) {
            4 => Ip::V4,
            6 => Ip::V6,
            other => return Err(format!("ip {other}")),
        };
        let protocol = match self.l4(frame) {
            "tcp" => 6,
            "udp" => 17,
            number => number.parse().map_err(|_| format!("l4 {number}"))?,
        };
        let sport = frame.sport.unwrap_or(40000 + frame.flow);
        let from = host(A, frame.smac.as_deref(), frame.src.as_deref(), sport)?;
        let dport = frame.dport.unwrap_or(8000);
        let to = host(B, frame.dmac.as_deref(), frame.dst.as_deref(), dport)?;
        let extensions = frame.ext.iter().map(|(kind, rest)| Ok((*kind, hex(rest)?)));
        let mark = match self.hash_mode {
            CaseHashMode::Zero => frame.meta,
            CaseHashMode::Given => frame.hash,
        };
        Ok(Packet::new(from, to, ip, protocol)
            .vlan(frame.vlan.clone())
            .ttl(frame.ttl.unwrap_or(64))
            .tos(frame.tos.unwrap_or(0))
            .id(frame.id.unwrap_or(0))
            .df(frame.df.unwrap_or(true))
            .mf(frame.mf.unwrap_or(false))
            .reserved_bit(frame.rb.unwrap_or(false))
            .fragment_offset(frame.frag_off.unwrap_or(0))
            .ip_options(hex(&frame.ip_opts)?)
            .ip_csum(checksum(&frame.ip_csum)?)
            .flow_label(frame.fl.unwrap_or(0))
            .extensions(extensions.collect::<Result<_, String>>()?)
            .total_length_delta(frame.tot_len_delta.unwrap_or(0))
            .padding(frame.pad.unwrap_or(0))
            .seq(self.isn.wrapping_add(frame.seq))
            .ack(frame.ack.unwrap_or(1))
            .flags(flags(&frame.flags)?)
            .window(frame.win.unwrap_or(65535))
            .urgent(frame.urg.unwrap_or(0))
            .options(hex(&frame.opts)?)
            .data_offset(frame.doff)
            .udp_length(frame.udp_len)
            .csum(checksum(&frame.l4_csum)?)
            .payload(frame.len)
            .host_gso_size(frame.in_gso)
            .merge_mark(mark))
    }
}

/// Features that the guest has acked if a case does not say otherwise.
const ACKED: [&str; 7] = [
    "GUEST_CSUM",
    "GUEST_TSO4",
    "GUEST_TSO6",
    "GUEST_ECN",
    "GUEST_USO4",
    "GUEST_USO6",
    "MRG_RXBUF",
];

/// Features that a case may name.
const FEATURES: [&str; 9] = [
    "GUEST_CSUM",
    "GUEST_TSO4",
    "GUEST_TSO6",
    "GUEST_ECN",
    "GUEST_USO4",
    "GUEST_USO6",
    "MRG_RXBUF",
    "GUEST_UDP_TUNNEL_GSO",
    "GUEST_UDP_TUNNEL_GSO_CSUM",
];

/// The letters of the TCP flags, highest bit first.
const FLAG_LETTERS: [(char, u16); 9] = [
    ('N', AE),
    ('C', CWR),
    ('E', ECE),
    ('U', URG),
    ('A', ACK),
    ('P', PSH),
    ('R', RST),
    ('S', SYN),
    ('F', FIN),
];

fn flags(letters: &str) -> Result<u16, String> {
    letters.chars().try_fold(0, |flags, letter| {
        let known = FLAG_LETTERS.iter().find(|(known, _)| *known == letter);
        let (_, bit) = known.ok_or_else(|| format!("TCP flag {letter}"))?;
        Ok(flags | bit)
    })
}

/// The flags as letters, in the order of the header.
pub fn flag_letters(flags: u16) -> String {
    let set = FLAG_LETTERS.iter().filter(|(_, bit)| flags & bit != 0);
    set.map(|(letter, _)| letter).collect()
}

/// Letters in the order of the header, whatever order they were written in.
pub fn in_order(letters: &str) -> String {
    flags(letters).map_or_else(|_| letters.into(), flag_letters)
}

fn checksum(word: &str) -> Result<Checksum, String> {
    match word {
        "ok" => Ok(Checksum::Right),
        "bad" => Ok(Checksum::Wrong),
        "zero" => Ok(Checksum::Zero),
        "partial" => Ok(Checksum::Partial),
        other => Err(format!("checksum {other}")),
    }
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok();
            pair.filter(|pair| pair.len() == 2)
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(|| format!("not hexadecimal: {text}"))
        })
        .collect()
}

fn host(base: Host, mac: Option<&str>, address: Option<&str>, port: u16) -> Result<Host, String> {
    let mut host = base.port(port);
    if let Some(mac) = mac {
        let bytes = hex(&mac.replace(':', ""))?;
        host.mac = bytes.try_into().map_err(|_| format!("MAC address {mac}"))?;
    }
    match address.map(str::parse) {
        None => {}
        Some(Ok(std::net::IpAddr::V4(v4))) => host.v4 = v4,
        Some(Ok(std::net::IpAddr::V6(v6))) => host.v6 = v6,
        Some(Err(_)) => return Err(format!("address {}", address.unwrap_or_default())),
    }
    Ok(host)
}
