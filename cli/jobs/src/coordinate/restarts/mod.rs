//! Explores every order of all possible actions of coordinators, jobs and users, down to single
//! reads and writes: jobs are killed and start again, coordinators end in the middle of a round and
//! others continue from the files, statuses are removed. The decisions and files are those of the
//! real [`Coordination`](super::rounds::Coordination).
//!
//! RESTART1. The bytes that existing processes hold, may take by the limits in force, or may take
//! by orders that they have read, never add up to more than the total.
//! RESTART2. From every world, once no more faults happen and all parties act, the whole total is
//! given out or all jobs have what they want, and no job is left without a share.
//!
//! Each deliberate defect ([`ProtocolChange`]) must break RESTART1; most are former defects of the
//! coordination.

mod model;
mod moves;
mod world;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use model::{ProtocolChange, Scenario, ScenarioModel, fingerprint};
use moves::{Move, moves};
use world::{Chances, PlannedProcess, RoundPhase, Transition, World};

/// Counts of the worlds explored.
#[derive(Debug)]
struct Walked {
    worlds: usize,
    known: usize,
}

/// A world that breaks an invariant, and the path to it in the fewest moves.
#[derive(Debug)]
struct BrokenWorld {
    words: String,
    steps: Vec<Transition>,
}

/// Explores all worlds of a scenario, nearest first.
fn explore(scenario: &Scenario, twin: ProtocolChange) -> Result<Walked, BrokenWorld> {
    let mut model = ScenarioModel::new(scenario.clone(), twin);
    let moves = moves(&model);
    let mut ends = HashSet::new();
    // The previous world of each world, and the move from it.
    let mut ways: Vec<(u32, u16)> = vec![(0, 0)];
    let mut seen: HashMap<u128, Vec<Chances>> = HashMap::new();
    let mut nearest = vec![(0, model.beginning())];
    while !nearest.is_empty() {
        let mut further = Vec::new();
        for (number, world) in nearest {
            let mut passed = Vec::new();
            for (index, one) in moves.iter().enumerate() {
                let Some(next) = one.after(&world, &mut passed, &mut model) else {
                    continue;
                };
                if !is_new(&mut seen, &next) {
                    continue;
                }
                let reached = ways.len() as u32;
                ways.push((number, index as u16));
                check(&next, &model)
                    .and_then(
                        |()| match scenario.locks && twin == ProtocolChange::Faithful {
                            true => ends_well(&next, &mut model, &mut ends),
                            // Only one of two processes of the same name gets memory.
                            false => Ok(()),
                        },
                    )
                    .map_err(|words| BrokenWorld {
                        words,
                        steps: way(&ways, &moves, &mut model),
                    })?;
                further.push((reached, next));
            }
        }
        nearest = further;
    }
    Ok(Walked {
        worlds: ways.len(),
        known: model.known(),
    })
}

/// Records a world. Returns false if it was reached before with at least as many faults left.
fn is_new(seen: &mut HashMap<u128, Vec<Chances>>, world: &World) -> bool {
    let bare = World {
        chances: Chances::default(),
        ..*world
    };
    let before = seen.entry(fingerprint(&bare)).or_default();
    if before.iter().any(|chances| chances.has(&world.chances)) {
        return false;
    }
    before.push(world.chances);
    true
}

/// Returns the steps to the world that was reached last.
fn way(ways: &[(u32, u16)], moves: &[Move], model: &mut ScenarioModel) -> Vec<Transition> {
    let (mut reached, mut steps) = (ways.len() - 1, Vec::new());
    while reached != 0 {
        let (from, index) = ways[reached];
        steps.extend(moves[usize::from(index)].steps.iter().rev());
        reached = from as usize;
    }
    let mut world = model.beginning();
    let happens = |step: &Transition| match world.after(*step, model) {
        Some(next) => {
            world = next;
            true
        }
        None => false,
    };
    steps.reverse();
    steps.retain(happens);
    steps
}

/// Checks that the world keeps RESTART1.
fn check(world: &World, model: &ScenarioModel) -> Result<(), String> {
    let sum: u8 = world
        .processes
        .iter()
        .map(|process| process.may_hold())
        .sum();
    if sum > model.scenario.total {
        return Err(format!("{sum} of {}: {:?}", model.scenario.total, world));
    }
    Ok(())
}

/// Checks that the world keeps RESTART2; `known` are worlds that are known to keep it.
fn ends_well(
    world: &World,
    model: &mut ScenarioModel,
    known: &mut HashSet<u128>,
) -> Result<(), String> {
    let mut world = *world;
    world.chances = Chances::default();
    let mut passed = Vec::new();
    for _ in 0..40 {
        let mark = fingerprint(&world);
        if known.contains(&mark) {
            known.extend(passed);
            return Ok(());
        }
        passed.push(mark);
        let before = world;
        fairly(&mut world, model);
        if world == before {
            let there = world.processes.iter().filter(|process| process.is_there);
            let wanted: u8 = there.clone().map(|process| process.wants).sum();
            let total = model.scenario.total;
            let least = total / there.clone().count() as u8;
            let held: u8 = there.clone().map(|process| process.held).sum();
            let is_fair = there
                .clone()
                .all(|process| process.held >= least.min(process.wants));
            if held == total.min(wanted) && is_fair {
                known.extend(passed);
                return Ok(());
            }
            break;
        }
    }
    Err(format!("not all is given out: {world:?}"))
}

/// Lets all processes take each step once, and then the coordinator finish its round.
fn fairly(world: &mut World, model: &mut ScenarioModel) {
    let (jobs, plans) = (model.jobs(), model.scenario.plans.len());
    let mut go = |step| {
        if let Some(next) = world.after(step, model) {
            *world = next;
        }
        world.round
    };
    for number in 0..plans {
        for step in [
            Transition::Start,
            Transition::Read,
            Transition::Obey,
            Transition::Give,
            Transition::Take,
            Transition::Say,
        ] {
            go(step(number));
        }
    }
    loop {
        for job in 0..jobs {
            go(Transition::Look(job));
        }
        go(Transition::Decide);
        if go(Transition::Write) == RoundPhase::Looks {
            return;
        }
    }
}

/// Returns a scenario of jobs with equal priority that want `wants` of `total`.
fn jobs(total: u8, wants: &[u8], [kills, crashes, removals]: [u8; 3]) -> Scenario {
    let plans = wants.iter().enumerate();
    Scenario {
        total,
        plans: plans
            .map(|(name, wants)| PlannedProcess {
                name,
                wants: *wants,
                ..PlannedProcess::default()
            })
            .collect(),
        chances: Chances {
            kills,
            crashes,
            removals,
            changes: 0,
        },
        locks: true,
        is_merged: true,
        obeys_late: true,
        takes_late: false,
    }
}

/// Returns the scenario with single steps, and memory that may be taken late.
fn apart(scenario: Scenario) -> Scenario {
    Scenario {
        is_merged: false,
        takes_late: true,
        ..scenario
    }
}

fn walk(scenario: &Scenario) {
    let start = Instant::now();
    match explore(scenario, ProtocolChange::Faithful) {
        Ok(Walked { worlds, known }) => {
            let took = start.elapsed();
            println!("{worlds} worlds, {known} of what is known, {took:.1?}: {scenario:?}");
            assert!(worlds > 100);
        }
        Err(BrokenWorld { words, steps }) => panic!("{words}\nafter {steps:?}\nin {scenario:?}"),
    }
}

#[test]
fn three_jobs_fit_whatever_goes_wrong_once() {
    for chances in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        walk(&jobs(3, &[2, 2, 1], chances));
    }
}

#[test]
fn two_jobs_fit_whatever_goes_wrong_and_then_something_else() {
    walk(&jobs(2, &[2, 1], [1, 1, 1]));
    walk(&jobs(2, &[2, 2], [1, 1, 0]));
}

#[test]
fn two_jobs_fit_step_by_step() {
    for chances in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        walk(&apart(jobs(2, &[2, 2], chances)));
    }
}

#[test]
fn memory_moves_to_the_more_important_and_to_who_wants_more_now() {
    let mut moving = jobs(3, &[2, 2], [0, 1, 1]);
    moving.plans[1].priority = 1;
    walk(&moving);
    moving.plans[1].changes_to = 1;
    moving.plans[0].changes_to = 3;
    moving.chances = Chances {
        crashes: 1,
        changes: 2,
        ..Chances::default()
    };
    walk(&moving);
}

/// Returns a scenario of two processes with the same name, and one with another name.
fn namesakes(locks: bool, chances: [u8; 3]) -> Scenario {
    let mut scenario = jobs(2, &[1, 1, 1], chances);
    for (plan, name) in scenario.plans.iter_mut().zip([0, 0, 1]) {
        plan.name = name;
    }
    scenario.locks = locks;
    scenario
}

#[test]
fn another_process_takes_over_a_name_after_the_first_or_beside_it() {
    walk(&namesakes(true, [1, 0, 1]));
    walk(&namesakes(true, [1, 1, 0]));
    // These are scenarios of systems without locks.
    walk(&namesakes(false, [0, 1, 0]));
    walk(&namesakes(false, [1, 0, 0]));
}

#[test]
fn many_jobs_and_faults_in_the_long_form() {
    if std::env::var_os("LARDER_ROUNDS").is_none_or(|word| word != "all") {
        return;
    }
    for chances in [[1, 1, 0], [1, 0, 1], [0, 1, 1]] {
        walk(&jobs(3, &[2, 2, 1], chances));
        walk(&apart(jobs(2, &[2, 2], chances)));
        walk(&namesakes(false, chances));
    }
    walk(&jobs(2, &[2, 2, 1], [1, 1, 1]));
    walk(&jobs(3, &[2, 2], [2, 2, 1]));
    walk(&apart(jobs(3, &[2, 2], [1, 1, 1])));
}

#[test]
fn the_broken_twins_are_found_out() {
    let two = jobs(2, &[2, 2], [1, 1, 1]);
    let together = namesakes(false, [0, 0, 0]);
    for (twin, scenario) in [
        (ProtocolChange::ObeysFormerOrders, &two),
        (ProtocolChange::ObeysTogether, &together),
        (ProtocolChange::PassesOverMissing, &two),
        (ProtocolChange::KnowsLastLimitOnly, &two),
        (ProtocolChange::LooksGone, &two),
    ] {
        match explore(scenario, twin) {
            Ok(walked) => panic!("{twin:?} passed: {walked:?}"),
            Err(BrokenWorld { words, steps }) => {
                println!("{twin:?} after {}: {steps:?}: {words}", steps.len());
            }
        }
    }
}
