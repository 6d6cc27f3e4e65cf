//! AntMan's sleep formula and suspensions. Upstream's own version, with its operation manager, is in the model. Times
//! are in microseconds.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use larder_control::{
    Clock, DutyCycle, ManualClock, PerfControl, PerfOutOfRange, ResourceManagement, SleepPlan,
    SystemClock, Waited,
};
use larder_model::Random;
use larder_model::antman::{OpManager, Pauses, Plan};

type Managed = Arc<ResourceManagement<Arc<ManualClock>>>;

fn perf(percent: u64) -> PerfControl {
    PerfControl::new(percent).unwrap()
}

fn us(time: u64) -> Duration {
    Duration::from_micros(time)
}

fn sleep(time: u64) -> SleepPlan {
    SleepPlan::Sleep(us(time))
}

fn managed(percent: u64) -> (Arc<ManualClock>, Managed) {
    let clock = Arc::new(ManualClock::new());
    let management = Arc::new(ResourceManagement::new(Arc::clone(&clock)));
    management.set_perf(perf(percent));
    (clock, management)
}

fn as_upstream(plan: SleepPlan) -> Plan {
    match plan {
        SleepPlan::Nothing => Plan::Nothing,
        SleepPlan::Sleep(time) => Plan::Sleep(time.as_micros() as u64),
        SleepPlan::Suspend => Plan::Suspend,
    }
}

/// Changes the share when the clock reaches a time.
fn turn_at(clock: &ManualClock, management: &Managed, time: u64, percent: u64) {
    let management = Arc::clone(management);
    clock.at(us(time), move || management.set_perf(perf(percent)));
}

#[test]
fn a_share_is_0_to_100_percent() {
    assert_eq!(PerfControl::new(0), Ok(PerfControl::SUSPENDED));
    assert_eq!(PerfControl::new(100), Ok(PerfControl::FULL));
    assert_eq!(PerfControl::new(101), Err(PerfOutOfRange { percent: 101 }));
    let wraps_to_0 = PerfControl::new(1 << 32);
    assert_eq!(wraps_to_0, Err(PerfOutOfRange { percent: 1 << 32 }));
}

#[test]
fn am_6_the_formula_of_a_first_throttled_run() {
    let table = [
        // share, run, plan
        (100, 100_000, SleepPlan::Nothing),
        (99, 100_000, sleep(960)),      // 101010 - 100000 - 50
        (50, 100_000, sleep(99_950)),   // 200000 - 100000 - 50
        (30, 100_000, sleep(233_283)),  // 333333 - 100000 - 50
        (1, 100_000, sleep(9_899_950)), // 10000000 - 100000 - 50
        (0, 100_000, SleepPlan::Suspend),
        (50, 49, SleepPlan::Nothing),
        (50, 50, SleepPlan::Nothing), // 100 is not above 50 + 50
        (50, 51, sleep(1)),           // 102 is above it by 1
        (1, 0, sleep(50)),            // the busy time is at least 1: 100 - 0 - 50
        (99, 0, SleepPlan::Nothing),
    ];
    for (percent, run, plan) in table {
        let (_, management) = managed(percent);
        assert_eq!(
            management.after_run(us(run)),
            plan,
            "{percent} % after {run} us"
        );
        let upstream = Pauses::default().after_run(percent, run);
        assert_eq!(as_upstream(plan), upstream, "{percent} % after {run} us");
    }
}

#[test]
fn am_6_fractions_of_a_microsecond_are_cut_off() {
    let (_, management) = managed(50);
    let run = Duration::from_nanos(100_000_999);
    assert_eq!(management.after_run(run), sleep(99_950));
}

#[test]
fn am_6_a_run_of_any_length_is_planned() {
    let (_, management) = managed(1);
    assert_eq!(management.after_run(Duration::MAX), sleep(u64::MAX));
}

#[test]
fn am_6_where_nothing_is_inserted_the_plan_is_upstreams() {
    for seed in 0..5000 {
        let mut random = Random::new(seed);
        let percent = random.next_u64() % 101;
        let run = random.next_u64() >> (random.next_u64() % 64);
        let (_, management) = managed(percent);
        let mut upstream = Pauses::default();
        // The runs follow each other, so upstream's slot is whole and nothing of it was inserted.
        for run in [run, run / 2, run] {
            let plan = as_upstream(management.after_run(us(run)));
            assert_eq!(plan, upstream.after_run(percent, run), "seed {seed}");
        }
    }
}

#[test]
fn am_6_upstream_what_was_inserted_is_not_busy() {
    let mut pauses = Pauses::default();
    assert_eq!(pauses.after_run(50, 100_000), Plan::Sleep(99_950));
    // 60 ms of the slot were inserted: of 160 ms, 100 ms were busy.
    pauses.left = 39_950;
    assert_eq!(pauses.after_run(50, 160_000), Plan::Sleep(39_950));
    // More was inserted than the run took: the busy time counts as 1 us, and 2 is not above 10 + 50.
    pauses.left = 0;
    assert_eq!(pauses.after_run(50, 10), Plan::Nothing);
    // More is left than was planned, so nothing was inserted.
    pauses.left = 7;
    assert_eq!(pauses.after_run(50, 100_000), Plan::Sleep(99_950));
}

#[test]
fn am_6_a_suspension_ends_when_the_share_changes() {
    let (clock, management) = managed(0);
    turn_at(&clock, &management, 5_000_000, 30);
    assert_eq!(management.finish_run(us(100_000)), Waited::Done);
    assert_eq!(clock.now(), us(5_000_000));
    // The suspended run does not pause again, and the next run is planned anew.
    assert_eq!(management.finish_run(us(100_000)), Waited::Done);
    assert_eq!(clock.now(), us(5_233_283));
}

#[test]
fn am_6_full_share_and_a_suspension_leave_nothing_for_later_runs() {
    for percent in [100, 0] {
        let (clock, management) = managed(50);
        assert_eq!(management.after_run(us(100_000)), sleep(99_950));
        management.set_perf(perf(percent));
        turn_at(&clock, &management, 7, 50);
        assert_eq!(management.finish_run(us(100_000)), Waited::Done);
        management.set_perf(perf(50));
        assert_eq!(management.after_run(us(100_000)), sleep(99_950));
    }
}

#[test]
fn am_6_upstream_keeps_the_slot_at_full_share_unless_it_adjusts_a_limit() {
    let mut pauses = Pauses::default();
    let _ = pauses.after_run(50, 100_000);
    assert_eq!(pauses.after_run(100, 100_000), Plan::Nothing);
    assert_eq!(pauses.left, 99_950);
    pauses.has_adjusted = true;
    assert_eq!(pauses.after_run(100, 100_000), Plan::Nothing);
    assert_eq!(pauses.left, 0);
}

#[test]
fn am_6_upstream_keeps_the_slot_over_a_suspension() {
    let mut pauses = Pauses::default();
    let _ = pauses.after_run(50, 100_000);
    assert_eq!(pauses.after_run(0, 100_000), Plan::Suspend);
    assert_eq!(pauses.left, 99_950);
}

#[test]
fn a_share_that_changes_ends_a_sleep_at_its_new_length() {
    let table = [
        // the share after 10 ms, and when the run continues
        (100, 10_000),
        (99, 10_000), // 960 us have passed
        (80, 24_950), // 125000 - 100000 - 50
        (25, 299_950),
    ];
    for (percent, end) in table {
        let (clock, management) = managed(50);
        turn_at(&clock, &management, 10_000, percent);
        assert_eq!(management.finish_run(us(100_000)), Waited::Done);
        assert_eq!(clock.now(), us(end), "{percent} %");
    }
}

#[test]
fn a_sleep_may_turn_into_a_suspension() {
    let (clock, management) = managed(50);
    turn_at(&clock, &management, 10_000, 0);
    turn_at(&clock, &management, 700_000, 50);
    assert_eq!(management.finish_run(us(100_000)), Waited::Done);
    assert_eq!(clock.now(), us(700_000));
}

#[test]
fn a_wait_ends_at_its_timeout_and_can_be_taken_up_again() {
    let (clock, management) = managed(0);
    let longest = Duration::from_secs(1);
    assert_eq!(
        management.finish_run_within(us(100), longest),
        Waited::TimedOut
    );
    assert_eq!(clock.now(), longest);
    turn_at(&clock, &management, 1_500_000, 10);
    assert_eq!(management.wait_on(longest), Waited::Done);
    assert_eq!(clock.now(), us(1_500_000));

    // Just below, at and just above 99.95 ms.
    let table = [
        (99_949, Waited::TimedOut),
        (99_950, Waited::Done),
        (99_951, Waited::Done),
    ];
    for (longest, ended) in table {
        let (_, management) = managed(50);
        assert_eq!(
            management.finish_run_within(us(100_000), us(longest)),
            ended
        );
    }
}

#[test]
fn cancelling_ends_sleeps_and_suspensions_for_good() {
    for percent in [0, 50] {
        let (clock, management) = managed(percent);
        let cancelled = Arc::clone(&management);
        clock.at(us(3), move || cancelled.cancel());
        assert_eq!(management.finish_run(us(100_000)), Waited::Cancelled);
        assert_eq!(clock.now(), us(3));
        management.set_perf(perf(0));
        assert_eq!(management.finish_run(us(100_000)), Waited::Cancelled);
        assert_eq!(management.perf(), PerfControl::FULL);
    }
}

#[test]
fn a_duty_cycle_that_is_dropped_lets_everybody_go() {
    let duty_cycle = DutyCycle::new();
    let reader = duty_cycle.reader();
    duty_cycle.set(perf(0));
    assert!(reader.perf().is_suspended());
    drop(duty_cycle);
    assert!(reader.is_cancelled());
    assert_eq!(reader.perf(), PerfControl::FULL);
}

#[test]
fn another_thread_ends_a_suspension_in_real_time() {
    let management = Arc::new(ResourceManagement::new(SystemClock::new()));
    for percent in [100, 99] {
        management.set_perf(perf(0));
        let job = Arc::clone(&management);
        let job = thread::spawn(move || job.finish_run(us(1)));
        management.set_perf(perf(percent));
        assert_eq!(job.join().unwrap(), Waited::Done);
    }
    management.set_perf(perf(0));
    let job = Arc::clone(&management);
    let job = thread::spawn(move || job.finish_run(us(1)));
    management.cancel();
    assert_eq!(job.join().unwrap(), Waited::Cancelled);
}

/// Plays runs of 100 ms of busy time at 50 %, with a manager that knows `ops` operations. Returns the inserted and the
/// slept time of each run.
fn upstream_runs(ops: u64, runs: usize) -> Vec<(u64, u64)> {
    let mut pauses = Pauses::default();
    let mut known = ops;
    let run = |_| {
        let mut inserted = 0;
        if let Some(mut manager) = OpManager::start(pauses.left, known) {
            inserted = (0..ops).map(|_| manager.op()).sum();
            pauses.left = manager.left();
            known = manager.known_ops();
        }
        match pauses.after_run(50, 100_000 + inserted) {
            Plan::Sleep(slept) => (inserted, slept),
            _ => (inserted, 0),
        }
    };
    (0..runs).map(run).collect()
}

#[test]
fn am_10_upstream_alternates_when_all_of_a_slot_is_inserted() {
    let runs = upstream_runs(1, 6);
    let pair = [(0, 99_950), (99_950, 0)];
    assert_eq!(runs, [pair, pair, pair].concat());
}

#[test]
fn am_10_upstream_settles_near_40_ms_inserted_and_60_slept() {
    let &(inserted, slept) = upstream_runs(100, 60).last().unwrap();
    assert!((38_000..42_000).contains(&inserted), "{inserted}");
    assert!((58_000..62_000).contains(&slept), "{slept}");
    assert_eq!(inserted + slept, 99_950);
}

#[test]
fn am_10_upstreams_shares_decay() {
    for (ops, permille) in [(1, 1000), (2, 750), (10, 651), (100, 633)] {
        let mut manager = OpManager::start(1_000_000, ops).unwrap();
        let inserted: u64 = (0..ops).map(|_| manager.op()).sum();
        assert_eq!(inserted / 1000, permille, "{ops} operations");
        assert_eq!(manager.left(), 1_000_000 - inserted);
    }
}

#[test]
fn am_10_upstream_inserts_nothing_unknown_and_sticks_below_one_microsecond_a_share() {
    assert!(OpManager::start(0, 3).is_none());
    let mut first = OpManager::start(1000, 0).unwrap();
    assert_eq!((first.op(), first.op()), (0, 0));
    assert_eq!((first.left(), first.known_ops()), (1000, 2));
    // The largest number of operations is kept.
    let mut fewer = OpManager::start(9, 10).unwrap();
    assert_eq!(fewer.op(), 0);
    assert_eq!((fewer.left(), fewer.known_ops()), (9, 10));
}
