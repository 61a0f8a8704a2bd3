//! The invariants of the receive path over random traffic and random tunables.
//!
//! INV-6 for sequences of events that no worker would produce is in `napi`; that a packet fits the
//! guest's buffers is the business of `device`.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseResult, TestRunner};
use support::check;
use support::context::{Context, Delivered};
use support::packet::{
    A, ACK, AE, B, Built, CWR, Checksum, ECE, FIN, Ip, PSH, Packet, RST, SYN, URG,
};
use vhost_user_gro::gro::{
    Conflict, DropReason, FlushReason, GroConfig, GroResult, GroStats, GroTypes, HashMode,
};
use vhost_user_gro::napi::{NapiConfig, NapiState, OLD};
use vhost_user_gro::time::Instant;
use vhost_user_gro::wire::RxMeta;

/// Flows of a scenario: more than fit into one bucket.
const FLOWS: u8 = 12;

/// Everything that decides what is delivered.
#[derive(Clone, Debug)]
struct Scenario {
    gro: GroConfig,
    napi: NapiConfig,
    types: GroTypes,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The next frame of a flow; the oddity is where it departs from a plain stream.
    Frame {
        flow: u8,
        len: usize,
        odd: Odd,
    },
    /// Bytes that are no sound frame.
    Garbage(Vec<u8>),
    PollEnd,
    BudgetEnd,
    /// Time goes on, and the timer fires if it comes due.
    Pass(u64),
}

/// One way in which a frame departs from those around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Nothing,
    Flags(u16),
    /// From here on.
    Acknowledges,
    /// From here on.
    Timestamp,
    /// From here on.
    Window,
    MoreOptions,
    UrgentPointer,
    DataOffset,
    Gap,
    Duplicate,
    Ttl,
    Tos,
    /// From here on.
    MayFragment,
    SameId,
    SkippedId,
    IpOptions,
    ReservedBit,
    Fragment,
    FlowLabel,
    Extension,
    FragmentHeader,
    IpChecksum,
    Checksum(Checksum),
    Length(i32),
    Padding,
    HostMerged,
    Mark,
    Mac,
    VlanPriority,
}

impl Odd {
    const ALL: &[Self] = &[
        Self::Flags(ACK | PSH),
        Self::Flags(ACK | FIN),
        Self::Flags(ACK | SYN),
        Self::Flags(ACK | RST),
        Self::Flags(ACK | URG),
        Self::Flags(ACK | CWR),
        Self::Flags(ACK | ECE),
        Self::Flags(ACK | AE),
        Self::Flags(0),
        Self::Acknowledges,
        Self::Timestamp,
        Self::Window,
        Self::MoreOptions,
        Self::UrgentPointer,
        Self::DataOffset,
        Self::Gap,
        Self::Duplicate,
        Self::Ttl,
        Self::Tos,
        Self::MayFragment,
        Self::SameId,
        Self::SkippedId,
        Self::IpOptions,
        Self::ReservedBit,
        Self::Fragment,
        Self::FlowLabel,
        Self::Extension,
        Self::FragmentHeader,
        Self::IpChecksum,
        Self::Checksum(Checksum::Wrong),
        Self::Checksum(Checksum::Zero),
        Self::Checksum(Checksum::Partial),
        Self::Length(-4),
        Self::Length(4),
        Self::Padding,
        Self::HostMerged,
        Self::Mark,
        Self::Mac,
        Self::VlanPriority,
    ];
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        12 => Just(100_usize),
        6 => Just(1448),
        4 => select(vec![0_usize, 1, 2, 99, 101, 536]),
        1 => select(vec![8948_usize, 30_000]),
    ];
    let odd = prop_oneof![5 => Just(Odd::Nothing), 1 => select(Odd::ALL)];
    // Few flows, so that frames of one meet.
    let flow = prop_oneof![4 => 0..3_u8, 1 => 0..FLOWS];
    prop_oneof![
        40 => (flow, len, odd).prop_map(|(flow, len, odd)| Step::Frame { flow, len, odd }),
        1 => vec(any::<u8>(), 0..80).prop_map(Step::Garbage),
        2 => Just(Step::PollEnd),
        1 => Just(Step::BudgetEnd),
        4 => prop_oneof![0..30_000_u64, 0..2_000_000_u64].prop_map(Step::Pass),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let gro = (
        select(vec![1_u32, 8, 64]),
        prop_oneof![3 => Just(65535_u32), 1 => 1500..65535_u32],
        prop_oneof![3 => Just(65535_u32), 1 => 2..10_u32],
        select(vec![HashMode::Flow, HashMode::Zero]),
        any::<bool>(),
    );
    let napi = (select(vec![0_u64, 1, 20_000, 200_000, 3_000_000]), 0..3_u32);
    let accepts = || prop_oneof![5 => Just(true), 1 => Just(false)];
    let types = (
        accepts(),
        accepts(),
        accepts(),
        accepts(),
        accepts(),
        accepts(),
    );
    (gro, napi, types, vec(step(), 1..120)).prop_map(|(gro, napi, types, steps)| Scenario {
        gro: GroConfig {
            gro_normal_batch: gro.0,
            gro_max_size: gro.1,
            gro_max_segs: gro.2,
            hash_mode: gro.3,
            udp_gro: gro.4,
            ..GroConfig::default()
        },
        napi: NapiConfig {
            gro_flush_timeout: Duration::from_nanos(napi.0),
            napi_defer_hard_irqs: napi.1,
            ..NapiConfig::default()
        },
        types: GroTypes {
            csum: types.0,
            tcp4: types.1,
            tcp6: types.2,
            ecn: types.3,
            udp4: types.4,
            udp6: types.5,
        },
        steps,
    })
}

/// One direction of a flow as its sender sees it.
struct Sender {
    ip: Ip,
    protocol: u8,
    vlan: Option<u16>,
    port: u16,
    seq: u32,
    ack: u32,
    id: u16,
    timestamp: u8,
    window: u16,
    df: bool,
    /// 0 for a sender with one identification for all packets.
    id_step: u16,
}

impl Sender {
    /// All combinations of IP version, protocol and a tag or none; a sequence number that wraps
    /// after a few frames.
    fn new(flow: u8) -> Self {
        Self {
            ip: if flow & 1 == 0 { Ip::V4 } else { Ip::V6 },
            protocol: if flow % 4 < 2 { 6 } else { 17 },
            vlan: (flow % 3 == 2).then_some(100),
            port: 40000 + u16::from(flow),
            seq: 0xffff_ff00,
            ack: 1,
            id: 0xfffe,
            timestamp: 0,
            window: 65535,
            df: true,
            id_step: u16::from(flow % 4 != 2),
        }
    }

    fn next(&mut self, len: usize, odd: Odd) -> Built {
        match odd {
            Odd::Acknowledges => self.ack += 1000,
            Odd::Timestamp => self.timestamp += 1,
            Odd::Window => self.window -= 1,
            Odd::MayFragment => self.df = !self.df,
            Odd::Gap => self.seq = self.seq.wrapping_add(7),
            Odd::SkippedId => self.id = self.id.wrapping_add(1),
            Odd::SameId => self.id = self.id.wrapping_sub(1),
            _ => {}
        }
        let built = self.packet(len, odd).build();
        self.id = self.id.wrapping_add(self.id_step);
        if odd != Odd::Duplicate {
            let len = u32::try_from(len).expect("a test frame is small");
            self.seq = self.seq.wrapping_add(len);
        }
        built
    }

    fn packet(&self, len: usize, odd: Odd) -> Packet {
        let timestamps = vec![1, 1, 8, 10, 0, 0, 0, self.timestamp, 0, 0, 0, 9];
        let priority = if odd == Odd::VlanPriority { 0x6000 } else { 0 };
        let tags = self.vlan.map(|id| (0x8100, priority | id));
        let mut from = A.port(self.port);
        if odd == Odd::Mac {
            from.mac[5] = 9;
        }
        let plain = Packet::new(from, B, self.ip, self.protocol)
            .vlan(tags.into_iter().collect())
            .seq(self.seq)
            .ack(self.ack)
            .id(self.id)
            .df(self.df)
            .window(self.window)
            .options(timestamps.clone())
            .payload(len);
        match odd {
            Odd::Flags(flags) => plain.flags(flags),
            Odd::MoreOptions => plain.options([timestamps, vec![1, 1, 1, 1]].concat()),
            Odd::UrgentPointer => plain.urgent(5),
            Odd::DataOffset => plain.data_offset(Some(4)),
            Odd::Ttl => plain.ttl(63),
            Odd::Tos => plain.tos(3),
            Odd::IpOptions => plain.ip_options(vec![1; 4]),
            Odd::ReservedBit => plain.reserved_bit(true),
            Odd::Fragment => plain.mf(true),
            Odd::FlowLabel => plain.flow_label(77),
            Odd::Extension => plain.extensions(vec![(60, vec![1, 4, 0, 0, 0, 0])]),
            Odd::FragmentHeader => plain.extensions(vec![(44, vec![0, 1, 0, 0, 0, 1])]),
            Odd::IpChecksum => plain.ip_csum(Checksum::Wrong),
            Odd::Checksum(csum) => plain.csum(csum),
            Odd::Length(delta) => plain.total_length_delta(delta),
            Odd::Padding => plain.padding(6),
            Odd::HostMerged => plain.partial_csum().host_gso_size(Some(90)),
            Odd::Mark => plain.merge_mark(1),
            _ => plain,
        }
    }
}

/// A frame that came in.
struct Arrival {
    event: usize,
    time: Instant,
    /// `None` for garbage.
    flow: Option<u8>,
    /// Whether only its addresses can be trusted to tell its flow.
    is_fragment: bool,
    built: Built,
    verdict: GroResult,
}

/// A poll that ended.
struct PollEnd {
    event: usize,
    time: Instant,
    is_full_budget: bool,
}

/// What happened in a scenario.
struct Record {
    arrivals: Vec<Arrival>,
    ends: Vec<PollEnd>,
    delivered: Vec<Delivered>,
    stats: GroStats,
}

/// Runs a scenario to its end: until nothing is held because the timer fired often enough.
fn run(scenario: &Scenario) -> Result<Record, TestCaseError> {
    let mut context = Context::new(scenario.gro, scenario.napi, scenario.types);
    let mut senders: Vec<Sender> = (0..FLOWS).map(Sender::new).collect();
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut arrivals = Vec::new();
    let mut ends = Vec::new();
    let mut seen = BTreeSet::new();
    for step in &scenario.steps {
        let event = context.event();
        match step {
            Step::Frame { flow, len, odd } => {
                let sender = &mut senders[usize::from(*flow)];
                // Packets of the host that this guest cannot take are segmented by the worker, and
                // those with one segment are none.
                let odd = match odd {
                    Odd::HostMerged if !scenario.takes_tcp(sender) || *len < 91 => Odd::Nothing,
                    odd => *odd,
                };
                let built = sender.next(*len, odd);
                let verdict = context.frame(now, built.bytes.clone(), built.meta);
                prop_assert_ne!(verdict, GroResult::Dropped);
                seen.insert(*flow);
                arrivals.push(Arrival {
                    event,
                    time: now,
                    flow: Some(*flow),
                    is_fragment: is_fragment(sender, odd),
                    built,
                    verdict,
                });
            }
            Step::Garbage(bytes) => {
                let verdict = context.frame(now, bytes.clone(), RxMeta::default());
                prop_assert_eq!(verdict == GroResult::Dropped, bytes.len() < 14);
                arrivals.push(Arrival {
                    event,
                    time: now,
                    flow: None,
                    is_fragment: false,
                    built: garbage(bytes),
                    verdict,
                });
            }
            Step::PollEnd | Step::BudgetEnd => {
                let is_full_budget = matches!(step, Step::BudgetEnd);
                if is_full_budget {
                    context.budget_end(now);
                } else {
                    context.poll_end(now, 1);
                }
                ends.push(PollEnd {
                    event,
                    time: now,
                    is_full_budget,
                });
            }
            Step::Pass(nanos) => {
                let until = now + Duration::from_nanos(*nanos);
                fire_timers(&mut context, until, &mut ends)?;
                now = until;
            }
        }
        check_state(&context, scenario, seen.len())?;
    }
    // Readiness ends as well; from here on only the timer is left.
    let end = PollEnd {
        event: context.event(),
        time: now,
        is_full_budget: false,
    };
    context.poll_end(now, 1);
    ends.push(end);
    check_state(&context, scenario, seen.len())?;
    fire_timers(&mut context, now + Duration::from_secs(3600), &mut ends)?;
    prop_assert_eq!(context.engine().held(), 0);
    prop_assert_eq!(context.napi().state(), NapiState::Idle);
    Ok(Record {
        arrivals,
        ends,
        stats: *context.engine().stats(),
        delivered: context.delivered,
    })
}

impl Scenario {
    fn takes_tcp(&self, sender: &Sender) -> bool {
        let takes_version = match sender.ip {
            Ip::V4 => self.types.tcp4,
            Ip::V6 => self.types.tcp6,
        };
        sender.protocol == 6 && self.types.csum && takes_version
    }
}

fn is_fragment(sender: &Sender, odd: Odd) -> bool {
    match sender.ip {
        Ip::V4 => odd == Odd::Fragment,
        Ip::V6 => odd == Odd::FragmentHeader,
    }
}

fn garbage(bytes: &[u8]) -> Built {
    Built {
        bytes: bytes.to_vec(),
        meta: RxMeta::default(),
        l4: 0,
        payload: 0,
        payload_len: 0,
        csum: Checksum::Wrong,
        protocol: 0,
    }
}

/// Lets the timer fire at each of its times up to `until`. While a poll goes on it is ignored.
fn fire_timers(context: &mut Context, until: Instant, ends: &mut Vec<PollEnd>) -> TestCaseResult {
    while !context.is_owned() {
        let Some(due) = context.napi().timer().filter(|due| *due <= until) else {
            break;
        };
        let event = context.event();
        prop_assert!(context.timer(due));
        ends.push(PollEnd {
            event,
            time: due,
            is_full_budget: false,
        });
    }
    Ok(())
}

/// INV-5 and INV-6, which hold at any time.
fn check_state(context: &Context, scenario: &Scenario, flows: usize) -> TestCaseResult {
    let engine = context.engine();
    let limit = if scenario.gro.hash_mode == HashMode::Zero {
        8
    } else {
        64
    };
    prop_assert!(engine.held() <= limit);
    prop_assert!(engine.held() <= flows, "two entries of one flow");
    if context.is_owned() {
        return Ok(());
    }
    prop_assert_eq!(engine.ready_len(), 0);
    if let Some(created) = engine.earliest() {
        let deadline = created + scenario.napi.gro_flush_timeout;
        prop_assert!(context.napi().timer().is_some_and(|due| due <= deadline));
    }
    Ok(())
}

/// The frames of each delivered packet, as indexes of arrivals. INV-3: each arrival is in exactly
/// one packet or was dropped and counted.
fn origins(record: &Record) -> Result<Vec<Vec<usize>>, TestCaseError> {
    let frames: Vec<Built> = record.arrivals.iter().map(|a| a.built.clone()).collect();
    let origins: Result<Vec<_>, _> = check::attribute(&record.delivered, &frames)
        .into_iter()
        .collect();
    let origins = origins.map_err(TestCaseError::fail)?;
    let delivered: BTreeSet<usize> = origins.iter().flatten().copied().collect();
    let mut dropped = 0;
    for (i, arrival) in record.arrivals.iter().enumerate() {
        let is_dropped = arrival.verdict == GroResult::Dropped;
        prop_assert_eq!(delivered.contains(&i), !is_dropped, "arrival {}", i);
        dropped += u64::from(is_dropped);
    }
    let counted = DropReason::ALL
        .iter()
        .map(|reason| record.stats.dropped(*reason));
    prop_assert_eq!(counted.sum::<u64>(), dropped);
    Ok(origins)
}

/// INV-1: frames of one flow are delivered in the order of their arrival, fragments in order with
/// everything between their two hosts.
fn check_order(record: &Record, origins: &[Vec<usize>]) -> TestCaseResult {
    let order: Vec<usize> = origins.iter().flatten().copied().collect();
    for (place, &later) in order.iter().enumerate() {
        for &earlier in &order[..place] {
            let (first, second) = (&record.arrivals[earlier], &record.arrivals[later]);
            prop_assert!(
                earlier < later || !are_ordered(first, second),
                "arrival {} overtook {}",
                earlier,
                later
            );
        }
    }
    Ok(())
}

fn are_ordered(a: &Arrival, b: &Arrival) -> bool {
    let (Some(flow_a), Some(flow_b)) = (a.flow, b.flow) else {
        return false;
    };
    let hosts = |flow: u8| {
        let sender = Sender::new(flow);
        (sender.ip, sender.vlan)
    };
    let same_hosts = hosts(flow_a) == hosts(flow_b);
    flow_a == flow_b || (same_hosts && (a.is_fragment || b.is_fragment))
}

/// INV-2: no poll that should have taken a packet along ends without it, and what is in the list
/// leaves with the next poll end.
fn check_time(record: &Record, scenario: &Scenario, origins: &[Vec<usize>]) -> TestCaseResult {
    for (packet, from) in record.delivered.iter().zip(origins) {
        let first = &record.arrivals[from[0]];
        let held_through = record.ends.iter();
        let held_through =
            held_through.filter(|end| first.event < end.event && end.event < packet.at);
        for end in held_through {
            let age = end.time - first.time;
            let limit = if end.is_full_budget {
                OLD
            } else {
                scenario.napi.gro_flush_timeout
            };
            prop_assert!(age < limit, "held for {:?} at event {}", age, end.event);
        }
        let next_end = record.ends.iter().find(|end| end.event >= packet.at);
        prop_assert!(next_end.is_none_or(|end| packet.handed_over <= end.event));
    }
    Ok(())
}

/// INV-4 and INV-7 to INV-10 for each packet, and the limits that were set.
fn check_packets(record: &Record, scenario: &Scenario, origins: &[Vec<usize>]) -> TestCaseResult {
    for (packet, from) in record.delivered.iter().zip(origins) {
        let frames: Vec<&Built> = from.iter().map(|&i| &record.arrivals[i].built).collect();
        let was_held = record.arrivals[from[0]].verdict == GroResult::Held;
        check::check(packet, &frames, scenario.types, was_held)
            .map_err(|fault| TestCaseError::fail(format!("arrivals {from:?}: {fault}")))?;
        if let [first, _, ..] = frames.as_slice() {
            let size = packet.bytes.len() - 14;
            prop_assert!(u32::try_from(size).is_ok_and(|size| size <= scenario.gro.gro_max_size));
            prop_assert!(first.protocol == 17 || packet.segs <= scenario.gro.gro_max_segs);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn invariants_hold_for_any_traffic(scenario in scenario()) {
        let record = run(&scenario)?;
        let origins = origins(&record)?;
        check_order(&record, &origins)?;
        check_time(&record, &scenario, &origins)?;
        check_packets(&record, &scenario, &origins)?;
        // INV-11: nothing depends on addresses in memory or the time of day.
        prop_assert_eq!(run(&scenario)?.delivered, record.delivered);
    }
}

/// Properties of traffic that never merges prove nothing: the scenarios reach every reason for
/// which a packet ends.
#[test]
fn scenarios_reach_every_reason() {
    let unreachable = [
        // No pool, and no queue that stops.
        FlushReason::Pool,
        FlushReason::Teardown,
        // Buffers that change under the engine.
        FlushReason::Conflict(Conflict::Headers),
    ];
    let mut missing: Vec<FlushReason> = FlushReason::all()
        .filter(|reason| !unreachable.contains(reason))
        .collect();
    let mut runner = TestRunner::deterministic();
    let mut scenarios = 0;
    while !missing.is_empty() && scenarios < 3000 {
        let scenario = scenario()
            .new_tree(&mut runner)
            .expect("nothing is rejected")
            .current();
        let record = run(&scenario).expect("the other tests say why not");
        missing.retain(|reason| record.stats.completed(*reason) == 0);
        scenarios += 1;
    }
    assert!(missing.is_empty(), "not reached: {missing:?}");
}
