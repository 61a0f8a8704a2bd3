//! The invariants INV-1 to INV-10, held against whatever a receive context did with any frames at
//! any times.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use etherparse::{
    Ipv6ExtensionSlice, Ipv6Slice, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice,
};
use vhost_user_gro::gro::{DropReason, GroConfig, GroResult, GroStats, GroTypes, HashMode};
use vhost_user_gro::gso;
use vhost_user_gro::napi::{NapiConfig, NapiState, OLD};
use vhost_user_gro::time::Instant;

use super::check;
use super::context::{Context, Delivered};
use super::packet::Built;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Most extension headers that are walked over (rule IP6-3).
const MAX_EXTENSIONS: usize = 8;

/// Everything beside the frames that decides what is delivered.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub gro: GroConfig,
    pub napi: NapiConfig,
    pub types: GroTypes,
}

/// What frames must have in common to be kept in their order (rule FLOW-1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// VLAN identities and addresses.
    pub hosts: Vec<u8>,
    /// Protocol and ports; `None` where they cannot be known, as in a fragment.
    pub ports: Option<Vec<u8>>,
}

impl Flow {
    /// The flow of a frame in the eyes of `etherparse`. `None` for one that concerns no flow, or
    /// is so damaged that this is open.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(bytes).ok()?;
        let mut hosts = vlan_identities(&packet, bytes)?;
        let is_certain = match packet.net.as_ref()? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                if !matches!(header.protocol().0, TCP | UDP) {
                    return None;
                }
                hosts.extend([header.source(), header.destination()].concat());
                !header.is_fragmenting_payload()
            }
            NetSlice::Ipv6(ip) => {
                hosts.extend([ip.header().source(), ip.header().destination()].concat());
                has_transport_in_reach(ip)
            }
            _ => return None,
        };
        if !is_certain {
            return Some(Self { hosts, ports: None });
        }
        let (protocol, header) = match packet.transport.as_ref()? {
            TransportSlice::Tcp(tcp) => (TCP, tcp.header_slice()),
            TransportSlice::Udp(udp) => (UDP, udp.header_slice()),
            _ => return None,
        };
        let ports = [&[protocol], &header[..4]].concat();
        Some(Self {
            hosts,
            ports: Some(ports),
        })
    }
}

/// TPID and VLAN ID of each tag; `None` where rules VLAN-1 and VLAN-3 see no tags, or too many.
fn vlan_identities(packet: &SlicedPacket<'_>, bytes: &[u8]) -> Option<Vec<u8>> {
    if packet.link_exts.len() > 2 {
        return None;
    }
    let mut identities = Vec::new();
    for (nth, extension) in packet.link_exts.iter().enumerate() {
        let LinkExtSlice::Vlan(tag) = extension else {
            return None;
        };
        let tpid = &bytes[12 + 4 * nth..14 + 4 * nth];
        if !matches!(tpid, [0x81, 0x00] | [0x88, 0xa8]) {
            return None;
        }
        identities.extend(tpid);
        identities.extend(tag.vlan_identifier().value().to_be_bytes());
    }
    Some(identities)
}

/// False behind a fragment or authentication header or too many others (rules IP6-3, IP6-4).
fn has_transport_in_reach(ip: &Ipv6Slice<'_>) -> bool {
    let extensions = || ip.extensions().clone().into_iter();
    let is_barrier = |extension: Ipv6ExtensionSlice<'_>| {
        matches!(
            extension,
            Ipv6ExtensionSlice::Fragment(_) | Ipv6ExtensionSlice::Authentication(_)
        )
    };
    !extensions().any(is_barrier) && extensions().count() <= MAX_EXTENSIONS
}

/// A frame that came in.
pub struct Arrival {
    event: usize,
    time: Instant,
    /// `None` for one whose order does not matter.
    flow: Option<Flow>,
    built: Built,
    verdict: GroResult,
}

/// A poll that ended.
struct PollEnd {
    event: usize,
    time: Instant,
    is_full_budget: bool,
}

/// A receive context that remembers what happens to it, and checks after each event what must hold
/// at any time (INV-5, INV-6).
pub struct Recorder {
    setup: Setup,
    context: Context,
    now: Instant,
    arrivals: Vec<Arrival>,
    ends: Vec<PollEnd>,
    flows: BTreeSet<Flow>,
}

impl Recorder {
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            context: Context::new(setup.gro, setup.napi, setup.types),
            now: Instant::from_nanos(1_000_000_000),
            arrivals: Vec::new(),
            ends: Vec::new(),
            flows: BTreeSet::new(),
        }
    }

    /// A frame comes in.
    pub fn frame(&mut self, built: Built, flow: Option<Flow>) -> Result<GroResult, String> {
        let event = self.context.event();
        let verdict = self
            .context
            .frame(self.now, built.bytes.clone(), built.meta);
        let is_held = matches!(verdict, GroResult::Held | GroResult::Merged);
        let has_ports = flow.as_ref().is_some_and(|flow| flow.ports.is_some());
        if is_held && !has_ports {
            return Err(format!("a frame of no certain flow: {verdict:?}"));
        }
        self.flows.extend(flow.clone());
        self.arrivals.push(Arrival {
            event,
            time: self.now,
            flow,
            built,
            verdict,
        });
        self.check_state()?;
        Ok(verdict)
    }

    /// A poll ends before its budget, or with it.
    pub fn end(&mut self, is_full_budget: bool) -> Result<(), String> {
        self.ends.push(PollEnd {
            event: self.context.event(),
            time: self.now,
            is_full_budget,
        });
        if is_full_budget {
            self.context.budget_end(self.now);
        } else {
            self.context.poll_end(self.now, 1);
        }
        self.check_state()
    }

    /// Time goes on, and the timer fires at each of its times. While a poll goes on it is ignored.
    pub fn pass(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now + time;
        while !self.context.is_owned() {
            let Some(due) = self.context.napi().timer().filter(|due| *due <= until) else {
                break;
            };
            self.ends.push(PollEnd {
                event: self.context.event(),
                time: due,
                is_full_budget: false,
            });
            if !self.context.timer(due) {
                return Err("the timer is due and does nothing".into());
            }
        }
        self.now = until;
        self.check_state()
    }

    /// The queue is stopped, and goes on.
    pub fn stop(&mut self) -> Result<(), String> {
        self.context.stop();
        if self.context.engine().has_held() || self.context.engine().ready_len() > 0 {
            return Err("something is left behind in a stopped queue".into());
        }
        self.check_state()
    }

    /// Readiness ends as well; from here on only the timer is left.
    pub fn finish(mut self) -> Result<Record, String> {
        self.end(false)?;
        self.pass(Duration::from_secs(3600))?;
        let held = self.context.engine().held();
        if held != 0 || self.context.napi().state() != NapiState::Idle {
            let state = self.context.napi().state();
            return Err(format!("{held} packets held at rest, in state {state:?}"));
        }
        Ok(Record {
            setup: self.setup,
            stats: *self.context.engine().stats(),
            delivered: self.context.delivered,
            arrivals: self.arrivals,
            ends: self.ends,
        })
    }

    /// INV-5 and INV-6.
    fn check_state(&self) -> Result<(), String> {
        let engine = self.context.engine();
        let limit = match self.setup.gro.hash_mode {
            HashMode::Zero => 8,
            HashMode::Flow | HashMode::Given => 64,
        };
        if engine.held() > limit.min(self.flows.len()) {
            let flows = self.flows.len();
            return Err(format!("{} held of {flows} flows", engine.held()));
        }
        if self.context.is_owned() {
            return Ok(());
        }
        if engine.ready_len() != 0 {
            return Err("packets wait for nobody".into());
        }
        let Some(created) = engine.earliest() else {
            return Ok(());
        };
        let deadline = created + self.setup.napi.gro_flush_timeout;
        let timer = self.context.napi().timer();
        if timer.is_none_or(|due| due > deadline) {
            return Err(format!("held until {deadline:?}, timer at {timer:?}"));
        }
        Ok(())
    }
}

/// Everything that happened, from the first frame until nothing was held any more.
pub struct Record {
    setup: Setup,
    arrivals: Vec<Arrival>,
    ends: Vec<PollEnd>,
    pub delivered: Vec<Delivered>,
    pub stats: GroStats,
}

impl Record {
    pub fn check(&self) -> Result<(), String> {
        self.check_conservation()?;
        self.check_order()?;
        self.check_time()?;
        self.check_packets()
    }

    /// INV-3: each frame is in exactly one packet, or was dropped and counted.
    fn check_conservation(&self) -> Result<(), String> {
        let mut times = vec![0; self.arrivals.len()];
        let delivered = self.delivered.iter().flat_map(|packet| &packet.from);
        delivered.for_each(|&i| times[i] += 1);
        let is_dropped = |arrival: &&Arrival| arrival.verdict == GroResult::Dropped;
        for (i, arrival) in self.arrivals.iter().enumerate() {
            if times[i] != usize::from(!is_dropped(&arrival)) {
                return Err(format!("arrival {i} was delivered {} times", times[i]));
            }
        }
        let dropped = self.arrivals.iter().filter(is_dropped).count();
        let reasons = DropReason::ALL.iter();
        let counted: u64 = reasons.map(|reason| self.stats.dropped(*reason)).sum();
        if usize::try_from(counted) != Ok(dropped) {
            return Err(format!("{dropped} dropped, {counted} counted"));
        }
        Ok(())
    }

    /// INV-1: frames of one flow are delivered in the order of their arrival, fragments in order
    /// with everything between their two hosts.
    fn check_order(&self) -> Result<(), String> {
        // The latest arrivals delivered so far: of each flow, of the frames of no certain flow
        // between two hosts, and of all between them.
        let mut of_flow = BTreeMap::new();
        let mut of_none = BTreeMap::new();
        let mut of_hosts = BTreeMap::new();
        for &i in self.delivered.iter().flat_map(|packet| &packet.from) {
            let Some(flow) = &self.arrivals[i].flow else {
                continue;
            };
            let hosts = &flow.hosts;
            let latest = match flow.ports {
                Some(_) => of_flow.get(flow).max(of_none.get(hosts)),
                None => of_hosts.get(hosts),
            };
            if let Some(&later) = latest.filter(|latest| **latest > i) {
                return Err(format!("arrival {later} overtook {i}"));
            }
            let all = of_hosts.entry(hosts).or_insert(i);
            *all = i.max(*all);
            let own = match flow.ports {
                Some(_) => of_flow.entry(flow).or_insert(i),
                None => of_none.entry(hosts).or_insert(i),
            };
            *own = i.max(*own);
        }
        Ok(())
    }

    /// INV-2: no poll that should have taken a packet along ends without it, and what is in the
    /// list leaves with the next poll end.
    fn check_time(&self) -> Result<(), String> {
        for packet in &self.delivered {
            let first = &self.arrivals[packet.from[0]];
            let is_meanwhile = |end: &&PollEnd| first.event < end.event && end.event < packet.at;
            for end in self.ends.iter().filter(is_meanwhile) {
                let age = end.time - first.time;
                let limit = if end.is_full_budget {
                    OLD
                } else {
                    self.setup.napi.gro_flush_timeout
                };
                if age >= limit {
                    return Err(format!("held for {age:?} at event {}", end.event));
                }
            }
            let next_end = self.ends.iter().find(|end| end.event >= packet.at);
            if next_end.is_some_and(|end| packet.handed_over > end.event) {
                return Err(format!("in the list since event {}", packet.at));
            }
        }
        Ok(())
    }

    /// INV-4 and INV-7 to INV-10 for each packet, and the limits that were set.
    fn check_packets(&self) -> Result<(), String> {
        for packet in &self.delivered {
            let from = packet.from.iter().map(|&i| &self.arrivals[i].built);
            let from: Vec<&Built> = from.collect();
            if packet.needs_segmentation {
                check_cut_by_worker(packet)?;
                continue;
            }
            let was_held = self.arrivals[packet.from[0]].verdict == GroResult::Held;
            check::check(packet, &from, self.setup.types, was_held)
                .and_then(|()| self.check_limits(packet, &from))
                .map_err(|fault| format!("arrivals {:?}: {fault}", packet.from))?;
        }
        Ok(())
    }

    fn check_limits(&self, packet: &Delivered, from: &[&Built]) -> Result<(), String> {
        let [first, _, ..] = from else {
            return Ok(());
        };
        let size = packet.bytes.len() - 14;
        if u32::try_from(size).is_ok_and(|size| size > self.setup.gro.gro_max_size) {
            return Err(format!("{size} bytes"));
        }
        if first.protocol == TCP && packet.segs > self.setup.gro.gro_max_segs {
            return Err(format!("{} segments", packet.segs));
        }
        Ok(())
    }
}

/// A packet that the host merged and the guest does not take can be cut, into all of its payload.
fn check_cut_by_worker(packet: &Delivered) -> Result<(), String> {
    let mut scratch = vec![0; packet.bytes.len()];
    let mut payload = Vec::new();
    let headers = usize::from(packet.vnet.hdr_len);
    let slices = std::iter::once(&packet.bytes[..]);
    let segs = gso::segment(slices, &packet.vnet, &mut scratch, |segment| {
        payload.extend_from_slice(&segment[headers..]);
        ControlFlow::Continue(())
    });
    if segs != Ok(packet.segs) || payload != packet.bytes[headers..] {
        return Err(format!("cut into {segs:?}, not {}", packet.segs));
    }
    Ok(())
}
