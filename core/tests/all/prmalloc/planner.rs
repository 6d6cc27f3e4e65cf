//! PR-2: after how many runs the planning is over; and what the planner does with steps, rounds and
//! settings.

use std::cell::Cell;

use larder_core::lifetime::prmalloc::{
    AllocStat, PlanError, Planner, PlannerConfig, PlannerTables, RoundEnd, State, Window,
};

use crate::prmalloc::books::tables;

pub fn planner_with(config: PlannerConfig, stats: usize, records: usize) -> Planner<'static> {
    let tables = PlannerTables {
        pending: vec![AllocStat::VACANT; stats].leak(),
        plans: tables(stats, records),
    };
    Planner::new(config, tables)
}

fn planner(config: PlannerConfig) -> Planner<'static> {
    planner_with(config, 1 << 14, 1 << 9)
}

/// Runs `load` in steps, counted from 1, until the planner is done. Gives the step and the rounds.
fn runs(config: PlannerConfig, load: impl Fn(&Planner<'_>, u64)) -> (u64, i64) {
    let planner = planner(config);
    for run in 1..5000 {
        let collector = planner.collect();
        load(&planner, run);
        drop(collector);
        if planner.state() == State::Done {
            return (run, planner.progress().rounds);
        }
    }
    panic!("never done");
}

/// One large block, the same in each run.
fn repeating(planner: &Planner<'_>, run: u64) {
    planner.record(
        AllocStat::new(10 * run, 10 * run + 5, 100_000),
        planner.steps(),
    );
}

fn nothing(_: &Planner<'_>, _: u64) {}

/// One block more in each run, all alive at once.
fn growing(planner: &Planner<'_>, run: u64) {
    for i in 0..run.saturating_sub(90) {
        let stat = AllocStat::new(1000 * run + i, 1000 * run + 500 + i, 100_000);
        planner.record(stat, planner.steps());
    }
}

const BOTH: fn() -> [PlannerConfig; 2] = || [PlannerConfig::prmalloc(), PlannerConfig::default()];

#[test]
fn pr_2_a_perfectly_repeating_load_is_planned_after_112_runs() {
    for config in BOTH() {
        assert_eq!(runs(config, repeating), (112, 12));
    }
}

#[test]
fn pr_2_a_load_without_large_blocks_is_planned_after_111_runs() {
    for config in BOTH() {
        assert_eq!(runs(config, nothing), (111, 11));
    }
}

#[test]
fn pr_2_a_load_that_never_stabilises_is_planned_after_201_runs() {
    for config in BOTH() {
        assert_eq!(runs(config, growing), (201, 101));
    }
}

#[test]
fn pr_2_start_0_stable_0_max_1_ends_at_run_2_and_3_2_at_run_7() {
    let window = |start, stable, max| Window::Stable { start, stable, max };
    for config in BOTH() {
        assert_eq!(runs(config.with_window(window(0, 0, 1)), repeating), (2, 2));
        assert_eq!(
            runs(config.with_window(window(3, 2, 100)), repeating),
            (7, 4)
        );
    }
}

#[test]
fn pr_2_the_older_form_fits_once_at_the_start_of_run_1101() {
    let config = PlannerConfig::prmalloc().with_window(Window::ONCE);
    assert_eq!(runs(config, repeating), (1101, 1));
    let short = config.with_window(Window::Once { start: 2, stop: 5 });
    let planner = planner(short);
    for run in 1..=5 {
        drop(planner.collect());
        repeating(&planner, run);
        assert_eq!(planner.state() == State::On, run >= 3);
    }
    let (step, round) = planner.start();
    // Runs 3, 4 and 5 were recorded; the fit is the round's, the caller's to run.
    assert_eq!(planner.state(), State::Rounding);
    assert_eq!(planner.run(round.unwrap()), Ok(RoundEnd::Finished(())));
    assert_eq!(planner.with_plans(|plans| plans.stats().len()), Some(3));
    assert!(planner.stop(step).is_none());
}

#[test]
fn pr_2_the_gpu_form_fits_100_times() {
    assert_eq!(runs(PlannerConfig::prmalloc_gpu(), repeating), (111, 100));
}

#[test]
fn pr_2_the_gpu_form_keeps_blocks_and_only_the_last_steps_virtual_ones() {
    let window = Window::EachStart { start: 0, stop: 9 };
    let planner = planner(PlannerConfig::prmalloc_gpu().with_window(window));
    let run = |stats: &[(u64, u64, u64)]| {
        drop(planner.collect());
        for &(begin, end, bytes) in stats {
            planner.record(AllocStat::new(begin, end, bytes), 1);
        }
    };
    run(&[(0, 10, 65_600), (20, 30, 40_064)]);
    run(&[(40, 50, 65_600)]);
    let virtuals = || {
        let of = |bins: larder_core::lifetime::prmalloc::BinPlan| (bins.blocks, bins.virtuals);
        let all = planner.with_plans(|plans| {
            plans
                .policy(larder_core::lifetime::prmalloc::Interval::KiB4)
                .bins()
                .map(of)
                .collect::<Vec<_>>()
        });
        all.unwrap()
    };
    assert_eq!(virtuals(), [(0, 1), (1, 0)]);
    run(&[]);
    assert_eq!(virtuals(), [(0, 0), (1, 0)]);
}

#[test]
fn statistics_are_on_from_the_start_of_the_step_until_its_round() {
    let window = Window::Stable {
        start: 1,
        stable: 5,
        max: 9,
    };
    let planner = planner(PlannerConfig::default().with_window(window));
    let (step, _) = planner.start();
    assert_eq!(planner.state(), State::Off);
    assert!(planner.stop(step).is_none());
    let (step, round) = planner.start();
    assert!(round.is_none());
    assert_eq!(planner.state(), State::On);
    let round = planner.stop(step).unwrap();
    assert_eq!(planner.state(), State::Rounding);
    let (other, _) = planner.start();
    assert!(planner.stop(other).is_none(), "one round at a time");
    assert_eq!(planner.run(round), Ok(RoundEnd::Again));
    assert_eq!(planner.state(), State::On);
}

#[test]
fn a_null_planner_does_nothing_and_has_no_plan() {
    let mut config = PlannerConfig::prmalloc();
    config.enabled = false;
    config.window = Window::Stable {
        start: 0,
        stable: 0,
        max: 0,
    };
    let planner = planner(config);
    for run in 0..5 {
        let collector = planner.collect();
        repeating(&planner, run);
        drop(collector);
    }
    assert_eq!(planner.best(), None);
    assert_eq!((planner.steps(), planner.progress().rounds), (0, 0));
    assert!(!planner.restart());
}

#[test]
fn with_nothing_recorded_the_plan_is_empty_and_4_kib_wins() {
    let best = planner(PlannerConfig::prmalloc()).best().unwrap();
    assert_eq!((best.interval.bytes(), best.bytes), (4096, 0));
}

#[test]
fn defect_11_reset_leaves_nothing_of_before() {
    let config = PlannerConfig::prmalloc().with_window(Window::Stable {
        start: 3,
        stable: 2,
        max: 9,
    });
    let planner = planner(config);
    let fresh = planner.progress();
    for run in 1..=5 {
        let collector = planner.collect();
        repeating(&planner, run);
        drop(collector);
    }
    // One life is recorded and in no round yet; a round is due and will be outdated.
    let (step, _) = planner.start();
    repeating(&planner, 6);
    let round = planner.stop(step).unwrap();
    planner.reset();
    assert_eq!(planner.progress(), fresh);
    assert_eq!(planner.best().unwrap().bytes, 0);
    assert_eq!(planner.run(round), Err(PlanError::Outdated));
    assert_eq!(planner.progress(), fresh);
    let count = Cell::new(0);
    for run in 1..=7 {
        let collector = planner.collect();
        repeating(&planner, run);
        drop(collector);
        count.set(count.get() + u64::from(planner.state() != State::Done));
    }
    assert_eq!(count.get(), 6, "the same counts as the first time");
}

#[test]
fn defect_7_frees_during_a_round_count_for_the_next_and_upstream_loses_them() {
    let window = Window::Stable {
        start: 0,
        stable: 5,
        max: 9,
    };
    for (config, expected) in [
        (PlannerConfig::default(), 1),
        (PlannerConfig::prmalloc(), 0),
    ] {
        let planner = planner(config.with_window(window));
        let (step, _) = planner.start();
        let round = planner.stop(step).unwrap();
        // Due and not yet run.
        planner.run(round).unwrap();
        let (step, _) = planner.start();
        let round = planner.stop(step).unwrap();
        repeating(&planner, 1);
        // Comes too late for the round only if that had copied already; here it is in it.
        planner.run(round).unwrap();
        assert_eq!(
            planner.with_plans(|plans| plans.stats().len()),
            Some(expected)
        );
    }
}

#[test]
fn defect_7_a_step_that_began_before_a_round_does_not_end_the_next_one() {
    let window = Window::Stable {
        start: 0,
        stable: 5,
        max: 9,
    };
    for (config, ends) in [
        (PlannerConfig::default(), false),
        (PlannerConfig::prmalloc(), true),
    ] {
        let planner = planner(config.with_window(window));
        let (first, _) = planner.start();
        let (second, _) = planner.start();
        planner.run(planner.stop(first).unwrap()).unwrap();
        assert_eq!(planner.stop(second).is_some(), ends);
    }
}

#[test]
fn defect_8_blocks_older_than_a_few_steps_stay_out_of_the_plan() {
    let mut config = PlannerConfig::default().with_window(Window::Stable {
        start: 0,
        stable: 99,
        max: 99,
    });
    config.max_age_steps = 2;
    let planner = planner(config);
    for _ in 0..5 {
        drop(planner.collect());
    }
    let (step, _) = planner.start();
    // Now is step 6: born in 3, too old; born in 4, not.
    planner.record(AllocStat::new(1, 100, 40_000), 3);
    planner.record(AllocStat::new(2, 100, 40_000), 4);
    planner.run(planner.stop(step).unwrap()).unwrap();
    assert_eq!(planner.with_plans(|plans| plans.stats().len()), Some(1));
}

#[test]
fn defect_13_a_clock_that_steps_back_makes_a_life_of_one_moment() {
    let stat = AllocStat::new(10, 3, 40_000);
    assert_eq!((stat.begin, stat.end), (10, 10));
    let planner = planner(PlannerConfig::default().with_window(Window::Stable {
        start: 0,
        stable: 0,
        max: 0,
    }));
    let collector = planner.collect();
    planner.record(stat, 1);
    planner.record(stat, 1);
    planner.record(AllocStat::new(10, 12, 40_000), 1);
    drop(collector);
    // Both lived at 10 and needed memory then.
    assert_eq!(planner.best().unwrap().bytes, 3 * 40_960);
}

#[test]
fn a_full_table_fails_the_round_and_is_named() {
    let window = Window::Stable {
        start: 0,
        stable: 9,
        max: 9,
    };
    let lives = |sizes: &[u64], stats, records| {
        let planner = planner_with(
            PlannerConfig::prmalloc().with_window(window),
            stats,
            records,
        );
        let (step, _) = planner.start();
        for (i, &bytes) in (0..).zip(sizes) {
            planner.record(AllocStat::new(i, i + 100, bytes), 1);
        }
        let error = planner.run(planner.stop(step).unwrap());
        assert_eq!(planner.progress().failed, error.err());
        assert_eq!(planner.best().is_none(), error.is_err());
        let done = planner.state() == State::Done;
        assert_eq!(done, error.is_err());
        planner.reset();
        assert!(planner.best().is_some());
        error
    };
    let full = lives(&[40_000; 4], 3, 8);
    assert_eq!(full, Err(PlanError::StatsFull { lost: 1 }));
    assert_eq!(lives(&[40_000; 3], 3, 3), Ok(RoundEnd::Again));
    assert_eq!(lives(&[40_000; 4], 4, 3), Err(PlanError::BlocksFull));
    assert_eq!(lives(&[40_000, 80_000], 4, 1), Err(PlanError::BinsFull));
    assert_eq!(
        lives(&[40_000], 0, 1),
        Err(PlanError::StatsFull { lost: 1 })
    );
}

#[test]
fn the_settings_of_the_environment_are_read_by_their_rules() {
    let read = |pairs: &'static [(&str, &str)], config: PlannerConfig| {
        let lookup = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
        config.with_settings(lookup)
    };
    let (config, bad) = read(&[], PlannerConfig::default());
    assert_eq!((config, bad.len()), (PlannerConfig::default(), 0));
    let all: &[_] = &[
        ("ENABLE_MEMORY_OPTIMIZATION", "FALSE"),
        ("START_STATISTIC_STEP", "5"),
        ("STABLE_STATISTIC_STEP", "-1"),
        ("MAX_STATISTIC_STEP", "9223372036854775807"),
        ("STOP_STATISTIC_STEP", "50"),
    ];
    let (config, bad) = read(all, PlannerConfig::prmalloc());
    assert!(!config.enabled && bad.is_empty());
    let window = Window::Stable {
        start: 5,
        stable: -1,
        max: i64::MAX,
    };
    assert_eq!(config.window, window);
    let (config, _) = read(all, PlannerConfig::prmalloc_gpu());
    assert_eq!(config.window, Window::EachStart { start: 5, stop: 50 });
    let (config, _) = read(all, PlannerConfig::prmalloc().with_window(Window::ONCE));
    assert_eq!(config.window, Window::Once { start: 5, stop: 50 });
    for (text, enabled) in [("1", true), ("tRUE", true), ("0", false), ("False", false)] {
        let lookup = |name: &str| (name == "ENABLE_MEMORY_OPTIMIZATION").then_some(text);
        let (config, bad) = PlannerConfig::default().with_settings(lookup);
        assert_eq!((config.enabled, bad.len()), (enabled, 0));
    }
    let wrong: &[_] = &[
        ("ENABLE_MEMORY_OPTIMIZATION", "yes"),
        ("START_STATISTIC_STEP", "1e3"),
        ("STABLE_STATISTIC_STEP", ""),
        ("MAX_STATISTIC_STEP", "9223372036854775808"),
        ("STOP_STATISTIC_STEP", "0x10"),
    ];
    let (config, bad) = read(wrong, PlannerConfig::default());
    assert_eq!(config, PlannerConfig::default());
    let names: Vec<_> = bad.iter().map(|bad| (bad.name, bad.text)).collect();
    assert_eq!(names, wrong);
    let text = bad[1].to_string();
    assert!(
        text.contains("START_STATISTIC_STEP") && text.contains("1e3") && text.contains("number"),
        "{text}"
    );
}
