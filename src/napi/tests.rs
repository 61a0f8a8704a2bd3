//! The poll model with invented time.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const T: Duration = Duration::from_micros(20);

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn napi(gro_flush_timeout: Duration, napi_defer_hard_irqs: u32) -> Napi {
    Napi::new(NapiConfig {
        gro_flush_timeout,
        napi_defer_hard_irqs,
        ..NapiConfig::default()
    })
}

/// Schedules and starts a poll.
fn poll(napi: &mut Napi) -> Poll {
    assert!(napi.schedule());
    napi.begin_poll().expect("was scheduled")
}

/// One whole poll at `now`: what was to be flushed, and what comes next.
fn turn(
    napi: &mut Napi,
    now: Instant,
    work: u32,
    held: Option<Instant>,
) -> (FlushPlan, NapiAction) {
    let poll = poll(napi);
    let completion = napi.complete(poll, work, held.is_some());
    let plan = completion.plan();
    let left = match plan {
        FlushPlan::All => None,
        FlushPlan::Expired(age) | FlushPlan::Old(age) => held.filter(|&held| now - held < age),
    };
    (plan, napi.finish(completion, now, left))
}

fn wait(unmask: bool, timer: Option<Instant>) -> NapiAction {
    NapiAction::Wait { unmask, timer }
}

#[test]
fn scheduling_owns_the_context_once_and_masks_the_source() {
    let mut napi = napi(T, 1);
    assert!(!napi.is_masked());
    assert!(napi.schedule());
    assert!(napi.is_masked());
    assert_eq!(napi.state(), NapiState::Scheduled);
    assert!(!napi.schedule(), "already owned");
}

#[test]
fn only_a_scheduled_context_can_be_polled() {
    let mut napi = napi(T, 1);
    assert!(napi.begin_poll().is_none());
    assert!(napi.schedule());
    let poll = napi.begin_poll().expect("was scheduled");
    assert_eq!(napi.state(), NapiState::Polling);
    assert!(napi.begin_poll().is_none(), "is being polled");
    let completion = napi.complete(poll, 1, false);
    assert_eq!(napi.state(), NapiState::Completing);
    assert!(napi.begin_poll().is_none(), "is being completed");
    let _ = napi.finish(completion, at(0), None);
}

#[test]
fn a_full_budget_keeps_the_context_and_flushes_what_is_old() {
    let mut napi = napi(T, 1);
    let (plan, action) = turn(&mut napi, at(100), 64, Some(at(0)));
    assert_eq!(plan, FlushPlan::Old(Duration::from_millis(1)));
    assert_eq!(action, NapiAction::Repoll);
    assert_eq!(napi.state(), NapiState::Scheduled);
    assert!(napi.is_masked());
}

#[test]
fn one_frame_less_than_the_budget_ends_the_poll() {
    let mut napi = napi(Duration::ZERO, 0);
    let (plan, action) = turn(&mut napi, at(100), 63, Some(at(100)));
    assert_eq!(plan, FlushPlan::All);
    assert_eq!(action, wait(true, None));
}

#[test]
fn without_timeout_and_deferral_nothing_outlives_the_poll() {
    let mut napi = napi(Duration::ZERO, 0);
    assert_eq!(
        turn(&mut napi, at(0), 3, Some(at(0))),
        (FlushPlan::All, wait(true, None))
    );
    assert_eq!(napi.state(), NapiState::Idle);
}

#[test]
fn deferral_without_timeout_has_no_effect() {
    let mut napi = napi(Duration::ZERO, 5);
    for now in [0, 10, 20] {
        assert_eq!(
            turn(&mut napi, at(now), 3, Some(at(now))),
            (FlushPlan::All, wait(true, None))
        );
    }
}

#[test]
fn a_timeout_without_deferral_unmasks_and_holds() {
    let mut napi = napi(T, 0);
    assert_eq!(
        turn(&mut napi, at(100), 3, Some(at(95))),
        (FlushPlan::Expired(T), wait(true, Some(at(115))))
    );
    assert_eq!(napi.state(), NapiState::Idle, "with its timer armed");
    assert!(napi.timer_fired(at(115)));
    assert_eq!(napi.state(), NapiState::Scheduled);
}

#[test]
fn a_timeout_with_nothing_held_and_no_deferral_arms_no_timer() {
    let mut napi = napi(T, 0);
    assert_eq!(
        turn(&mut napi, at(100), 3, None),
        (FlushPlan::All, wait(true, None))
    );
}

#[test]
fn a_poll_without_frames_and_without_deferral_flushes_everything() {
    let mut napi = napi(T, 0);
    let _ = turn(&mut napi, at(0), 1, Some(at(0)));
    assert_eq!(
        turn(&mut napi, at(5), 0, Some(at(0))),
        (FlushPlan::All, wait(true, None))
    );
    assert_eq!(
        napi.timer(),
        None,
        "the timer of the poll before is disarmed"
    );
}

#[test]
fn the_timer_stands_at_the_deadline_of_the_oldest_entry_and_merging_does_not_move_it() {
    let mut napi = napi(T, 1);
    for now in [100, 105, 110] {
        assert_eq!(
            turn(&mut napi, at(now), 2, Some(at(100))),
            (FlushPlan::Expired(T), wait(false, Some(at(120))))
        );
    }
}

#[test]
fn a_deferral_with_nothing_held_waits_one_timeout_from_now() {
    let mut napi = napi(T, 1);
    assert_eq!(
        turn(&mut napi, at(100), 2, None),
        (FlushPlan::Expired(T), wait(false, Some(at(120))))
    );
    assert_eq!(napi.state(), NapiState::Deferred);
}

#[test]
fn deferral_keeps_the_source_masked_for_its_number_of_empty_polls() {
    let mut napi = napi(T, 3);
    // The poll with work uses up the first of the three.
    assert_eq!(turn(&mut napi, at(0), 1, None).1, wait(false, Some(at(20))));
    for now in [20, 40] {
        assert!(napi.timer_fired(at(now)));
        let poll = napi.begin_poll().expect("the timer scheduled it");
        let completion = napi.complete(poll, 0, false);
        assert_eq!(
            napi.finish(completion, at(now), None),
            wait(false, Some(at(now + 20)))
        );
    }
    assert!(napi.timer_fired(at(60)));
    let poll = napi.begin_poll().expect("the timer scheduled it");
    let completion = napi.complete(poll, 0, true);
    assert_eq!(completion.plan(), FlushPlan::All);
    assert_eq!(napi.finish(completion, at(60), None), wait(true, None));
    assert_eq!(napi.state(), NapiState::Idle);
}

#[test]
fn work_restarts_the_deferral() {
    let mut napi = napi(T, 1);
    let _ = turn(&mut napi, at(0), 1, None);
    assert_eq!(
        turn(&mut napi, at(20), 1, None).1,
        wait(false, Some(at(40)))
    );
    assert_eq!(turn(&mut napi, at(40), 0, None).1, wait(true, None));
}

#[test]
fn an_event_while_polling_is_not_lost() {
    let mut napi = napi(T, 0);
    let poll = poll(&mut napi);
    assert!(!napi.schedule());
    let completion = napi.complete(poll, 1, true);
    assert_eq!(completion.plan(), FlushPlan::Expired(T));
    assert_eq!(
        napi.finish(completion, at(0), Some(at(0))),
        NapiAction::Repoll
    );
    assert_eq!(napi.state(), NapiState::Scheduled);
    let poll = napi.begin_poll().expect("is scheduled again");
    let completion = napi.complete(poll, 0, false);
    assert_eq!(
        napi.finish(completion, at(1), None),
        wait(true, None),
        "once"
    );
}

#[test]
fn an_event_while_completing_is_not_lost() {
    let mut napi = napi(Duration::ZERO, 0);
    let poll = poll(&mut napi);
    let completion = napi.complete(poll, 1, false);
    assert!(!napi.schedule());
    assert_eq!(napi.finish(completion, at(0), None), NapiAction::Repoll);
}

#[test]
fn an_event_missed_in_a_full_poll_waits_for_its_end() {
    let mut napi = napi(Duration::ZERO, 0);
    let first = poll(&mut napi);
    assert!(!napi.schedule());
    let completion = napi.complete(first, 64, false);
    assert_eq!(napi.finish(completion, at(0), None), NapiAction::Repoll);
    let second = napi.begin_poll().expect("still owned");
    let completion = napi.complete(second, 0, false);
    assert_eq!(napi.finish(completion, at(1), None), NapiAction::Repoll);
}

#[test]
fn a_timer_does_not_disturb_an_owned_context() {
    let mut napi = napi(T, 0);
    let _ = turn(&mut napi, at(0), 1, Some(at(0)));
    let poll = poll(&mut napi);
    assert!(!napi.timer_fired(at(20)));
    assert_eq!(napi.state(), NapiState::Polling);
    let completion = napi.complete(poll, 1, true);
    assert_eq!(
        napi.finish(completion, at(21), Some(at(21))),
        wait(true, Some(at(41))),
        "not counted as missed, and armed anew"
    );
}

#[test]
fn a_timer_before_its_time_does_nothing() {
    let mut napi = napi(T, 0);
    assert!(!napi.timer_fired(at(1000)), "none is armed");
    let _ = turn(&mut napi, at(0), 1, Some(at(0)));
    assert!(!napi.timer_fired(at(19)));
    assert_eq!(napi.timer(), Some(at(20)));
    assert!(napi.timer_fired(at(20)));
    assert!(!napi.timer_fired(at(20)), "it fires once");
}

#[test]
fn a_default_context_holds_for_its_timeout_and_defers_nothing() {
    let mut napi = Napi::new(NapiConfig::default());
    assert_eq!(napi.budget(), 64);
    assert_eq!(
        turn(&mut napi, at(0), 1, Some(at(0))),
        (FlushPlan::Expired(T), wait(true, Some(at(20))))
    );
}

#[test]
fn a_reset_context_is_idle_without_a_timer() {
    let mut napi = napi(T, 1);
    let _ = turn(&mut napi, at(0), 1, Some(at(0)));
    napi.reset();
    assert_eq!(napi.state(), NapiState::Idle);
    assert_eq!(napi.timer(), None);
    assert!(!napi.is_masked());
}

/// Something that happens to a context and its flow table.
#[derive(Clone, Debug)]
enum Event {
    Readiness,
    /// A poll of `work` frames, of which each of `held` becomes an entry; `during` says how many
    /// events come in while it runs.
    Poll {
        work: u32,
        held: u32,
        during: u32,
    },
    /// Time goes on to the timer if one is armed.
    Timer,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Readiness),
        (0..=8u32, 0..=8u32, 0..=2u32).prop_map(|(work, held, during)| Event::Poll {
            work,
            held: held.min(work),
            during,
        }),
        Just(Event::Timer),
        (0..2_000_000u64).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Invariants INV-2 and INV-6 over any sequence of events, with a flow table that is a list
    /// of arrival times.
    #[test]
    fn what_is_held_is_owned_or_has_a_timer(
        timeout in prop_oneof![Just(0u64), 1..100_000u64],
        defer in 0..4u32,
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let timeout = Duration::from_nanos(timeout);
        let mut napi = Napi::new(NapiConfig {
            budget: 8,
            gro_flush_timeout: timeout,
            napi_defer_hard_irqs: defer,
            ..NapiConfig::default()
        });
        let mut now = Instant::ZERO;
        let mut held: Vec<Instant> = Vec::new();
        let mut missed = false;
        for event in events {
            match event {
                Event::Readiness => missed |= !napi.schedule(),
                Event::Pass(nanos) => now = now + Duration::from_nanos(nanos),
                Event::Timer => {
                    now = now.max(napi.timer().unwrap_or(now));
                    napi.timer_fired(now);
                }
                Event::Poll { work, held: entries, during } => {
                    let Some(poll) = napi.begin_poll() else { continue };
                    held.extend((0..entries).map(|_| now));
                    for _ in 0..during {
                        prop_assert!(!napi.schedule());
                        missed = true;
                    }
                    let completion = napi.complete(poll, work, !held.is_empty());
                    match completion.plan() {
                        FlushPlan::All => held.clear(),
                        FlushPlan::Expired(age) | FlushPlan::Old(age) => {
                            held.retain(|&born| now - born < age);
                        }
                    }
                    let action = napi.finish(completion, now, held.first().copied());
                    match action {
                        NapiAction::Repoll => {
                            prop_assert!(missed || work == 8);
                            missed &= work == 8;
                            prop_assert_eq!(napi.state(), NapiState::Scheduled);
                        }
                        NapiAction::Wait { unmask, timer } => {
                            prop_assert!(!missed && work < 8);
                            prop_assert_eq!(timer, napi.timer());
                            prop_assert_eq!(unmask, napi.state() == NapiState::Idle);
                        }
                    }
                }
            }
            let owned = !matches!(napi.state(), NapiState::Idle | NapiState::Deferred);
            if !owned {
                if let Some(&oldest) = held.first() {
                    let due = napi.timer();
                    prop_assert!(due.is_some_and(|due| due <= oldest + timeout));
                }
                // A masked source without a timer would never be looked at again.
                prop_assert!(!napi.is_masked() || napi.timer().is_some());
            }
        }
    }
}
