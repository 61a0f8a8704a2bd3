//! The invariants of the receive path over random traffic and random tunables.
//!
//! INV-6 for sequences of events that no worker would produce is in `napi`; that a packet fits the
//! guest's buffers is the business of `device`.

mod support;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use support::invariants::{Flow, Record, Recorder, Setup};
use support::packet::{
    A, ACK, AE, B, Built, CWR, Checksum, ECE, FIN, Ip, PSH, Packet, RST, SYN, URG,
};
use vhost_user_gro::gro::{Conflict, FlushReason, GroConfig, GroResult, GroTypes, HashMode};
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::wire::RxMeta;

/// Flows of a scenario: more than fit into one bucket.
const FLOWS: u8 = 12;

/// Everything that decides what is delivered.
#[derive(Clone, Debug)]
struct Scenario {
    setup: Setup,
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
    (gro, napi, types, vec(step(), 1..120)).prop_map(|(gro, napi, types, steps)| {
        let setup = Setup {
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
        };
        Scenario { setup, steps }
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

    /// Only the addresses of a fragment can be trusted to tell its flow.
    fn flow(&self, odd: Odd) -> Flow {
        let is_fragment = match self.ip {
            Ip::V4 => odd == Odd::Fragment,
            Ip::V6 => odd == Odd::FragmentHeader,
        };
        let ports = [vec![self.protocol], self.port.to_be_bytes().to_vec()].concat();
        let mut hosts = vec![u8::from(self.ip == Ip::V6)];
        hosts.extend(self.vlan.iter().flat_map(|id| id.to_be_bytes()));
        Flow {
            hosts,
            ports: (!is_fragment).then_some(ports),
        }
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

/// Runs a scenario to its end: until nothing is held because the timer fired often enough.
fn run(scenario: &Scenario) -> Result<Record, TestCaseError> {
    let mut recorder = Recorder::new(scenario.setup);
    let mut senders: Vec<Sender> = (0..FLOWS).map(Sender::new).collect();
    for step in &scenario.steps {
        let done = match step {
            Step::Frame { flow, len, odd } => {
                let sender = &mut senders[usize::from(*flow)];
                // Packets of the host that this guest cannot take are segmented by the worker, and
                // those with one segment are none.
                let odd = match odd {
                    Odd::HostMerged if !scenario.takes_tcp(sender) || *len < 91 => Odd::Nothing,
                    odd => *odd,
                };
                let built = sender.next(*len, odd);
                let verdict = recorder.frame(built, Some(sender.flow(odd)));
                prop_assert_ne!(&verdict, &Ok(GroResult::Dropped));
                verdict.map(drop)
            }
            Step::Garbage(bytes) => {
                let verdict = recorder.frame(garbage(bytes), None);
                let is_dropped = verdict == Ok(GroResult::Dropped);
                prop_assert_eq!(is_dropped, bytes.len() < 14);
                verdict.map(drop)
            }
            Step::PollEnd => recorder.end(false),
            Step::BudgetEnd => recorder.end(true),
            Step::Pass(nanos) => recorder.pass(Duration::from_nanos(*nanos)),
        };
        done.map_err(TestCaseError::fail)?;
    }
    recorder.finish().map_err(TestCaseError::fail)
}

impl Scenario {
    fn takes_tcp(&self, sender: &Sender) -> bool {
        let takes_version = match sender.ip {
            Ip::V4 => self.setup.types.tcp4,
            Ip::V6 => self.setup.types.tcp6,
        };
        sender.protocol == 6 && self.setup.types.csum && takes_version
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

/// What fails is written down with its seed, and tried first from then on.
fn config() -> ProptestConfig {
    const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/properties.regressions");
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn invariants_hold_for_any_traffic(scenario in scenario()) {
        let record = run(&scenario)?;
        record.check().map_err(TestCaseError::fail)?;
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
