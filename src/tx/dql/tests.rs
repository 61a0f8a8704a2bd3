//! The limit against the vector of the rules, and against a model with counters that never wrap.

use proptest::prelude::*;

use super::*;

fn at_ms(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// An empty queue whose counters stand at `origin`.
fn dql_at(origin: u32, config: &TxConfig) -> Dql {
    Dql {
        queued: origin,
        completed: origin,
        prev_queued: origin,
        ..Dql::new(config)
    }
}

/// What happens, and limit and available bytes after it.
enum Step {
    Enqueue(u32, u32, i64),
    /// Bytes, and at which millisecond.
    Complete(u32, u64, u32, i64),
}
use Step::{Complete, Enqueue};

/// Source: the vector below rule DQL-6.
const VECTOR: [Step; 17] = [
    Enqueue(1514, 0, -1514),
    Complete(1514, 1, 1514, 1514),
    Enqueue(1514, 1514, 0),
    Enqueue(3028, 1514, -3028),
    Complete(4542, 2, 6056, 6056),
    Enqueue(6056, 6056, 0),
    Enqueue(3000, 6056, -3000),
    Complete(6056, 3, 6056, 3056),
    Complete(3000, 4, 9056, 9056),
    Enqueue(20_000, 9056, -10_944),
    Complete(5000, 5, 9056, -5944),
    Complete(5000, 6, 9056, -944),
    Complete(10_000, 7, 15_000, 15_000),
    Enqueue(30_000, 15_000, -15_000),
    Complete(2000, 8, 15_000, -13_000),
    Complete(2000, 500, 15_000, -11_000),
    Complete(2000, 1200, 0, -24_000),
];

#[test]
fn dql_3_the_limit_is_that_of_the_rules_wherever_the_counters_stand() {
    // The last ones wrap in the middle of it, and where a difference changes its sign.
    for origin in [
        0,
        1,
        u32::MAX - 2000,
        u32::MAX - 20_000,
        i32::MAX as u32 - 5000,
    ] {
        let mut dql = dql_at(origin, &TxConfig::default());
        for (nth, step) in VECTOR.iter().enumerate() {
            let expected = match *step {
                Enqueue(bytes, limit, available) => {
                    dql.enqueue(bytes);
                    (limit, available)
                }
                Complete(bytes, millis, limit, available) => {
                    dql.complete(bytes, at_ms(millis));
                    (limit, available)
                }
            };
            let found = (dql.limit(), dql.available());
            assert_eq!(found, expected, "step {nth} from {origin}");
        }
        // Its last line: nothing is left to be lowered.
        dql.complete(2000, at_ms(2300));
        assert_eq!((dql.limit(), dql.available()), (0, -22_000));
    }
}

#[test]
fn dql_1_an_object_has_its_bound() {
    let mut dql = Dql::new(&TxConfig::default());
    dql.enqueue(u32::MAX);
    assert_eq!(dql.in_flight(), OBJECT_MAX);
}

#[test]
fn dql_3_no_more_completes_than_is_on_its_way() {
    let mut dql = Dql::new(&TxConfig::default());
    dql.complete(1000, at_ms(1));
    assert_eq!(dql, Dql::new(&TxConfig::default()));
    dql.enqueue(1000);
    dql.complete(5000, at_ms(2));
    assert_eq!((dql.in_flight(), dql.limit()), (0, 1000));
}

#[test]
fn dql_3_the_limit_stays_within_its_bounds() {
    let config = TxConfig {
        dql_min: 3000,
        dql_max: 10_000,
        ..TxConfig::default()
    };
    let mut dql = Dql::new(&config);
    assert_eq!(dql.limit(), 3000);
    for nth in 0..5 {
        dql.enqueue(50_000);
        dql.complete(50_000, at_ms(nth));
    }
    assert_eq!(dql.limit(), 10_000);
    dql.enqueue(50_000);
    for nth in 0..20 {
        dql.complete(10, at_ms(10 + nth * 1001));
    }
    assert_eq!(dql.limit(), 3000);
}

#[test]
fn dql_3_what_is_to_spare_for_shorter_than_the_hold_time_is_kept() {
    for (hold, expected) in [(1000, 15_000), (100, 0)] {
        let config = TxConfig {
            dql_hold: Duration::from_millis(hold),
            ..TxConfig::default()
        };
        let mut dql = Dql::new(&config);
        for (bytes, millis) in [(15_000, 7), (30_000, 8)] {
            dql.enqueue(bytes);
            dql.complete(bytes.min(15_000), at_ms(millis));
        }
        for nth in 1..4 {
            dql.complete(1000, at_ms(8 + nth * 200));
        }
        assert_eq!(dql.limit(), expected, "held for {hold} ms");
    }
}

#[test]
fn dql_4_the_first_frame_goes_and_no_bulk_forms() {
    let dql = Dql::new(&TxConfig::default());
    assert_eq!((dql.limit(), dql.available(), dql.in_flight()), (0, 0, 0));
    let mut bulk = crate::tx::Bulk::new(&TxConfig::default(), dql.available(), 64);
    assert_eq!(bulk.end(), None);
    bulk.add(60, false);
    assert_eq!(bulk.end(), Some(crate::tx::BulkEnd::Bytes));
}

#[test]
fn dql_5_a_reset_queue_is_a_new_one() {
    let config = TxConfig {
        dql_min: 100,
        ..TxConfig::default()
    };
    let mut dql = dql_at(77, &config);
    dql.enqueue(5000);
    dql.complete(3000, at_ms(1));
    dql.reset(at_ms(2));
    let anew = Dql {
        slack_start: at_ms(2),
        ..Dql::new(&config)
    };
    assert_eq!(dql, anew);
}

/// The rule as it stands in the text, with counters that have no end.
struct Model {
    queued: i128,
    completed: i128,
    limit: i128,
    last: i128,
    prev: (i128, i128, i128),
    lowest_slack: i128,
    slack_start: u64,
}

impl Model {
    fn new(min: u32) -> Self {
        Self {
            queued: 0,
            completed: 0,
            limit: min.into(),
            last: 0,
            prev: (0, 0, 0),
            lowest_slack: u32::MAX.into(),
            slack_start: 0,
        }
    }

    fn complete(&mut self, n: i128, now: u64, config: &TxConfig) {
        let (prev_over, prev_queued, prev_last) = self.prev;
        let done = self.completed + n;
        let mut over = (self.queued - self.completed - self.limit).max(0);
        let inflight = self.queued - done;
        let prev_inflight = prev_queued - self.completed;
        let all_prev = done >= prev_queued;
        let mut limit = self.limit;
        if (over > 0 && inflight == 0) || (prev_over > 0 && all_prev) {
            limit += (done - prev_queued).max(0) + prev_over;
            (self.slack_start, self.lowest_slack) = (now, u32::MAX.into());
        } else if inflight > 0 && prev_inflight > 0 && !all_prev {
            let last = if prev_over > 0 {
                (prev_last - prev_over).max(0)
            } else {
                0
            };
            let slack = (self.limit + prev_over - 2 * n).max(0).max(last);
            self.lowest_slack = self.lowest_slack.min(slack);
            let hold = u64::try_from(config.dql_hold.as_nanos()).unwrap();
            if now > self.slack_start + hold {
                limit = (limit - self.lowest_slack).max(0);
                (self.slack_start, self.lowest_slack) = (now, u32::MAX.into());
            }
        }
        limit = limit.clamp(config.dql_min.into(), config.dql_max.into());
        if limit != self.limit {
            self.limit = limit;
            over = 0;
        }
        self.prev = (over, self.queued, self.last);
        self.completed = done;
    }
}

/// Part of what is on its way that completes, in eighths; nanoseconds that pass; and frames that
/// are given in between, as long as the queue does not stand still.
type Round = (u32, u64, Vec<u32>);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let len = prop_oneof![8 => 1..70_000u32, 1 => 1..=OBJECT_MAX];
    let round = (
        0..9u32,
        0..2_000_000_000u64,
        prop::collection::vec(len, 0..6),
    );
    prop::collection::vec(round, 0..60)
}

proptest! {
    #[test]
    fn dql_3_the_limit_is_that_of_a_model_without_wrapping(
        rounds in rounds(),
        origin in prop_oneof![Just(0), Just(u32::MAX - 100_000), any::<u32>()],
        bounds in (0..20_000u32, prop_oneof![Just(1_879_048_192u32), 20_000..400_000u32]),
    ) {
        let config = TxConfig { dql_min: bounds.0, dql_max: bounds.1, ..TxConfig::default() };
        let mut dql = dql_at(origin, &config);
        let mut model = Model::new(config.dql_min);
        let mut now = 0;
        for (part, passed, frames) in rounds {
            for len in frames {
                if dql.available() < 0 {
                    break;
                }
                dql.enqueue(len);
                model.queued += i128::from(len);
                model.last = len.into();
            }
            now += passed;
            let bytes = u64::from(dql.in_flight()) * u64::from(part) / 8;
            let bytes = u32::try_from(bytes).unwrap();
            dql.complete(bytes, Instant::from_nanos(now));
            if bytes > 0 {
                model.complete(bytes.into(), now, &config);
            }
            prop_assert_eq!(i128::from(dql.limit()), model.limit);
            let available = model.limit + model.completed - model.queued;
            prop_assert_eq!(i128::from(dql.available()), available);
            prop_assert_eq!(i128::from(dql.in_flight()), model.queued - model.completed);
        }
    }
}
