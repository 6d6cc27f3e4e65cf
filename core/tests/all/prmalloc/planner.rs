//! PR-2: the number of runs after which planning ends, and the planner's handling of steps, rounds and settings.

use std::cell::Cell;

use larder_core::prmalloc::{
    AllocStat, Interval, OpenStep, PlanError, Planner, PlannerConfig, PlannerStage, RoundEnd,
    Window,
};
use larder_model::prmalloc as upstream;
use larder_model::prmalloc::Fit;

use crate::prmalloc::books::{AnyPlans, room};

pub fn planner_with(config: PlannerConfig, stats: usize, records: usize) -> Planner {
    Planner::new(config, room(stats, records)).unwrap()
}

fn planner(config: PlannerConfig) -> Planner {
    planner_with(config, 1 << 14, 1 << 9)
}

/// A planner, ours or upstream's, whose steps run the rounds that are due.
trait AnyPlanner {
    fn start(&mut self);
    fn record(&mut self, stat: AllocStat);
    fn stop(&mut self);
    fn state(&self) -> PlannerStage;
    fn rounds(&self) -> i64;
}

/// Our planner, with the step under way.
struct Ours(Planner, Option<OpenStep>);

impl AnyPlanner for Ours {
    fn start(&mut self) {
        self.1 = Some(self.0.start());
    }

    fn record(&mut self, stat: AllocStat) {
        self.0.record(stat, self.0.steps());
    }

    fn stop(&mut self) {
        if let Some(round) = self.0.stop(self.1.take().unwrap()) {
            self.0.run(round).unwrap();
        }
    }

    fn state(&self) -> PlannerStage {
        self.0.state()
    }

    fn rounds(&self) -> i64 {
        self.0.progress().rounds
    }
}

impl AnyPlanner for upstream::Planner {
    fn start(&mut self) {
        if upstream::Planner::start(self) {
            self.run();
        }
    }

    fn record(&mut self, stat: AllocStat) {
        upstream::Planner::record(self, stat);
    }

    fn stop(&mut self) {
        if upstream::Planner::stop(self) {
            self.run();
        }
    }

    fn state(&self) -> PlannerStage {
        upstream::Planner::state(self)
    }

    fn rounds(&self) -> i64 {
        upstream::Planner::rounds(self)
    }
}

const fn window(start: i64, stable: i64, max: i64) -> Window {
    Window { start, stable, max }
}

const fn upstream_window(window: Window) -> upstream::Window {
    let Window { start, stable, max } = window;
    upstream::Window::Stable { start, stable, max }
}

fn cpu(window: upstream::Window) -> upstream::Planner {
    upstream::Planner::new(window, Fit::CPU, false)
}

fn both(window: Window) -> [Box<dyn AnyPlanner>; 2] {
    [
        Box::new(cpu(upstream_window(window))),
        Box::new(Ours(
            planner(PlannerConfig::new().with_window(window)),
            None,
        )),
    ]
}

fn step(planner: &mut dyn AnyPlanner, load: impl Fn(&mut dyn AnyPlanner, u64), run: u64) {
    planner.start();
    load(planner, run);
    planner.stop();
}

/// Runs `load` in steps, counted from 1, until the planner is done. Returns the last step and the number of rounds.
fn runs(planner: &mut dyn AnyPlanner, load: impl Fn(&mut dyn AnyPlanner, u64)) -> (u64, i64) {
    for run in 1..5000 {
        step(planner, &load, run);
        if planner.state() == PlannerStage::Done {
            return (run, planner.rounds());
        }
    }
    panic!("never done");
}

/// Records one large block, the same in each run.
fn repeating(planner: &mut dyn AnyPlanner, run: u64) {
    planner.record(life(run));
}

fn life(run: u64) -> AllocStat {
    AllocStat::new(10 * run, 10 * run + 5, 100_000)
}

fn nothing(_: &mut dyn AnyPlanner, _: u64) {}

/// Records one block more in each run, all of them alive at once.
fn growing(planner: &mut dyn AnyPlanner, run: u64) {
    for i in 0..run.saturating_sub(90) {
        let stat = AllocStat::new(1000 * run + i, 1000 * run + 500 + i, 100_000);
        planner.record(stat);
    }
}

#[test]
fn pr_2_a_perfectly_repeating_load_is_planned_after_112_runs() {
    for mut planner in both(Window::DEFAULT) {
        assert_eq!(runs(&mut *planner, repeating), (112, 12));
    }
}

#[test]
fn pr_2_a_load_without_large_blocks_is_planned_after_111_runs() {
    for mut planner in both(Window::DEFAULT) {
        assert_eq!(runs(&mut *planner, nothing), (111, 11));
    }
}

#[test]
fn pr_2_a_load_that_never_stabilises_is_planned_after_201_runs() {
    for mut planner in both(Window::DEFAULT) {
        assert_eq!(runs(&mut *planner, growing), (201, 101));
    }
}

#[test]
fn pr_2_start_0_stable_0_max_1_ends_at_run_2_and_3_2_at_run_7() {
    for mut planner in both(window(0, 0, 1)) {
        assert_eq!(runs(&mut *planner, repeating), (2, 2));
    }
    for mut planner in both(window(3, 2, 100)) {
        assert_eq!(runs(&mut *planner, repeating), (7, 4));
    }
}

#[test]
fn pr_2_the_older_form_fits_once_at_the_start_of_run_1101() {
    assert_eq!(runs(&mut cpu(upstream::Window::ONCE), repeating), (1101, 1));
    let mut planner = cpu(upstream::Window::Once { start: 2, stop: 5 });
    for run in 1..=5 {
        step(&mut planner, nothing, run);
        repeating(&mut planner, run);
        assert_eq!(planner.state() == PlannerStage::On, run >= 3);
    }
    // Runs 3, 4 and 5 were recorded. The caller runs the round, which makes the fit.
    assert!(planner.start());
    assert_eq!(planner.state(), PlannerStage::Rounding);
    assert_eq!(planner.pending().len(), 3);
    assert!(planner.run());
    assert!(!planner.stop());
}

#[test]
fn pr_2_the_gpu_form_fits_100_times() {
    let mut gpu = upstream::Planner::new(upstream::Window::EACH_START, Fit::GPU, false);
    assert_eq!(runs(&mut gpu, repeating), (111, 100));
}

#[test]
fn pr_2_the_gpu_form_keeps_blocks_and_only_the_last_steps_virtual_ones() {
    let window = upstream::Window::EachStart { start: 0, stop: 9 };
    let mut planner = upstream::Planner::new(window, Fit::GPU, false);
    let run = |planner: &mut upstream::Planner, stats: &[(u64, u64, u64)]| {
        step(planner, nothing, 0);
        for &(begin, end, bytes) in stats {
            planner.record(AllocStat::new(begin, end, bytes));
        }
    };
    run(&mut planner, &[(0, 10, 65_600), (20, 30, 40_064)]);
    run(&mut planner, &[(40, 50, 65_600)]);
    let virtuals = |planner: &upstream::Planner| {
        let bins = planner.plans().layout(Interval::KiB4).into_iter();
        bins.map(|(_, blocks, targets)| (blocks, targets.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(virtuals(&planner), [(0, 1), (1, 0)]);
    run(&mut planner, &[]);
    assert_eq!(virtuals(&planner), [(0, 0), (1, 0)]);
}

#[test]
fn statistics_are_on_from_the_start_of_the_step_until_its_round() {
    let window = window(1, 5, 9);
    let planner = planner(PlannerConfig::default().with_window(window));
    let step = planner.start();
    assert_eq!(planner.state(), PlannerStage::Off);
    assert!(planner.stop(step).is_none());
    let step = planner.start();
    assert_eq!(planner.state(), PlannerStage::On);
    let round = planner.stop(step).unwrap();
    assert_eq!(planner.state(), PlannerStage::Rounding);
    let other = planner.start();
    assert!(planner.stop(other).is_none(), "one round at a time");
    assert_eq!(planner.run(round), Ok(RoundEnd::Again));
    assert_eq!(planner.state(), PlannerStage::On);
}

#[test]
fn a_null_planner_does_nothing_and_has_no_plan() {
    let mut config = PlannerConfig::new();
    config.enabled = false;
    config.window = window(0, 0, 0);
    let mut planner = Ours(planner(config), None);
    for run in 0..5 {
        step(&mut planner, repeating, run);
    }
    let planner = planner.0;
    assert_eq!(planner.best(), None);
    assert_eq!((planner.steps(), planner.progress().rounds), (0, 0));
}

#[test]
fn with_nothing_recorded_the_plan_is_empty_and_4_kib_wins() {
    let best = planner(PlannerConfig::new()).best().unwrap();
    assert_eq!((best.interval, best.bytes), (Interval::KiB4, 0));
    let best = AnyPlans::best(cpu(upstream::Window::STABLE).plans());
    assert_eq!(best, (Interval::KiB4, 0));
}

#[test]
fn defect_11_reset_leaves_nothing_of_before() {
    let config = PlannerConfig::new().with_window(window(3, 2, 9));
    let mut ours = Ours(planner(config), None);
    let fresh = ours.0.progress();
    for run in 1..=5 {
        step(&mut ours, repeating, run);
    }
    // A recorded life is in no round yet, and the reset outdates a round that is due.
    let under_way = ours.0.start();
    repeating(&mut ours, 6);
    let round = ours.0.stop(under_way).unwrap();
    ours.0.reset();
    assert_eq!(ours.0.progress(), fresh);
    assert_eq!(ours.0.best().unwrap().bytes, 0);
    assert_eq!(ours.0.run(round), Err(PlanError::Outdated));
    assert_eq!(ours.0.progress(), fresh);
    let count = Cell::new(0);
    for run in 1..=7 {
        step(&mut ours, repeating, run);
        count.set(count.get() + u64::from(ours.0.state() != PlannerStage::Done));
    }
    assert_eq!(count.get(), 6, "the same counts as the first time");
}

#[test]
fn defect_7_frees_during_a_round_count_for_the_next_and_upstream_loses_them() {
    let ours = planner(PlannerConfig::default().with_window(window(0, 5, 9)));
    let round = ours.stop(ours.start()).unwrap();
    ours.run(round).unwrap();
    // This round is due but has not run yet.
    let round = ours.stop(ours.start()).unwrap();
    ours.record(life(1), 1);
    // The free is in the round, because the round has not copied the lives yet.
    ours.run(round).unwrap();
    assert_eq!(ours.with_plans(|plans| plans.stats().len()), Some(1));

    let mut upstream = cpu(upstream_window(window(0, 5, 9)));
    step(&mut upstream, nothing, 1);
    upstream.start();
    assert!(upstream.stop());
    upstream.record(life(1));
    assert_eq!(upstream.pending(), []);
    upstream.run();
    assert_eq!(upstream.plans().blocks(Interval::KiB4), []);
}

#[test]
fn defect_7_a_step_that_began_before_a_round_does_not_end_the_next_one() {
    let ours = planner(PlannerConfig::default().with_window(window(0, 5, 9)));
    let (first, second) = (ours.start(), ours.start());
    ours.run(ours.stop(first).unwrap()).unwrap();
    assert!(ours.stop(second).is_none());

    let mut upstream = cpu(upstream_window(window(0, 5, 9)));
    upstream.start();
    upstream.start();
    assert!(upstream.stop());
    upstream.run();
    assert!(upstream.stop(), "the second one's");
}

#[test]
fn defect_8_blocks_older_than_a_few_steps_stay_out_of_the_plan() {
    let mut config = PlannerConfig::default().with_window(window(0, 99, 99));
    config.max_age_steps = 2;
    let planner = planner(config);
    for _ in 0..5 {
        planner.run(planner.stop(planner.start()).unwrap()).unwrap();
    }
    let step = planner.start();
    // In step 6, a block from step 3 is too old, and one from step 4 is not.
    planner.record(AllocStat::new(1, 100, 40_000), 3);
    planner.record(AllocStat::new(2, 100, 40_000), 4);
    planner.run(planner.stop(step).unwrap()).unwrap();
    assert_eq!(planner.with_plans(|plans| plans.stats().len()), Some(1));
}

#[test]
fn defect_13_a_clock_that_steps_back_makes_a_life_of_one_moment() {
    let stat = AllocStat::new(10, 3, 40_000);
    assert_eq!((stat.begin, stat.end), (10, 10));
    let planner = planner(PlannerConfig::default().with_window(window(0, 0, 0)));
    let step = planner.start();
    planner.record(stat, 1);
    planner.record(stat, 1);
    planner.record(AllocStat::new(10, 12, 40_000), 1);
    planner.run(planner.stop(step).unwrap()).unwrap();
    // All three were alive at tick 10.
    assert_eq!(planner.best().unwrap().bytes, 3 * 40_960);
}

#[test]
fn a_full_table_fails_the_round_and_is_named() {
    let window = window(0, 9, 9);
    let lives = |sizes: &[u64], stats, records| {
        let planner = planner_with(PlannerConfig::new().with_window(window), stats, records);
        let step = planner.start();
        for (i, &bytes) in (0..).zip(sizes) {
            planner.record(AllocStat::new(i, i + 100, bytes), 1);
        }
        let error = planner.run(planner.stop(step).unwrap());
        assert_eq!(planner.progress().failed, error.err());
        assert_eq!(planner.best().is_none(), error.is_err());
        let done = planner.state() == PlannerStage::Done;
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
        let mut bad = Vec::new();
        let config = config.with_settings(lookup, |setting| bad.push(setting));
        (config, bad)
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
    let (config, bad) = read(all, PlannerConfig::default());
    assert!(!config.enabled && bad.is_empty());
    let window = Window {
        start: 5,
        stable: -1,
        max: i64::MAX,
    };
    assert_eq!(config.window, window);
    for (text, enabled) in [("1", true), ("tRUE", true), ("0", false), ("False", false)] {
        let lookup = |name: &str| (name == "ENABLE_MEMORY_OPTIMIZATION").then_some(text);
        let config = PlannerConfig::default();
        let config = config.with_settings(lookup, |setting| panic!("{setting}"));
        assert_eq!(config.enabled, enabled);
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
