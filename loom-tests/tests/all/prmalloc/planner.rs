//! Models `Planner` (L2): of all threads that stop a step, exactly one gets the round.

use larder_core::prmalloc::{AllocStat, Interval, PlanError, Planner, PlannerStage, RoundEnd};
use loom::sync::Arc;
use loom::thread;

use crate::prmalloc::world::{SIZE, explore, planner};

#[test]
fn l2_of_two_threads_that_stop_one_gets_the_round() {
    explore(|| {
        let planner = Arc::new(planner(9));
        let (mine, theirs) = (planner.start(), planner.start());
        let other = Arc::clone(&planner);
        let thread = thread::spawn(move || other.stop(theirs));
        let mine = planner.stop(mine);
        let theirs = thread.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "one round a stop");
        assert_eq!(planner.run(mine.or(theirs).unwrap()), Ok(RoundEnd::Again));
    });
}

#[test]
fn l2_a_step_that_began_before_a_round_does_not_get_the_next_one() {
    explore(|| {
        let planner = Arc::new(planner(9));
        let (mine, theirs) = (planner.start(), planner.start());
        let other = Arc::clone(&planner);
        let run = |planner: &Planner, step| {
            planner
                .stop(step)
                .is_some_and(|round| planner.run(round).is_ok())
        };
        let thread = thread::spawn(move || run(&other, theirs));
        let mine = run(&planner, mine);
        assert!(mine != thread.join().unwrap());
        assert_eq!(planner.progress().rounds, 1);
        assert_eq!(planner.state(), PlannerStage::On);
    });
}

#[test]
fn l2_a_free_beside_a_round_is_in_that_or_in_the_next() {
    explore(|| {
        let planner = Arc::new(planner(9));
        let step = planner.start();
        let other = Arc::clone(&planner);
        let thread = thread::spawn(move || other.record(AllocStat::new(1, 2, SIZE), 1));
        planner.run(planner.stop(step).unwrap()).unwrap();
        thread.join().unwrap();
        let step = planner.start();
        planner.run(planner.stop(step).unwrap()).unwrap();
        let bytes = planner.with_plans(|plans| plans.memory_bytes(Interval::KiB4));
        assert_eq!(bytes, Some(40_960));
    });
}

#[test]
fn l2_a_reset_beside_a_round_leaves_nothing_of_it() {
    explore(|| {
        let planner = Arc::new(planner(0));
        let step = planner.start();
        planner.record(AllocStat::new(1, 2, SIZE), 1);
        let round = planner.stop(step).unwrap();
        let other = Arc::clone(&planner);
        let thread = thread::spawn(move || other.run(round));
        planner.reset();
        let ended = thread.join().unwrap();
        assert!(matches!(
            ended,
            Ok(RoundEnd::Finished(())) | Err(PlanError::Outdated)
        ));
        assert_eq!((planner.state(), planner.steps()), (PlannerStage::Off, 0));
        assert_eq!(planner.best().unwrap().bytes, 0);
        assert_eq!(planner.progress().rounds, 0);
    });
}
