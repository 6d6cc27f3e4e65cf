//! [`Move`]: steps that are taken as one.
//!
//! Three jobs have too many worlds for single steps. So steps that no other party sees are merged
//! with the next visible one: memory is taken when a limit is obeyed, and given back when the
//! status is written; a process starts when it writes its first status. A coordinator reads a file
//! just before the decision, or just before another party changes the file; its writes follow the
//! decision at once, up to the point where it ends; and an order is read when it is obeyed, or just
//! before it is replaced. Each of these moves a step past steps of others that neither see it nor
//! are seen by it; the processes' own steps keep their order, and with it their sums.

use super::model::{Model, Twin};
use super::world::{Step, World};

/// Steps that are taken as one.
pub(super) struct Move {
    pub(super) steps: Vec<Step>,
    /// The number of steps shared with the previous move.
    shared: usize,
}

impl Move {
    /// Returns the world after the move; `None` if it is not possible, or another move leads to the
    /// same world. `passed` are the worlds after each step of the previous move.
    pub(super) fn after(
        &self,
        world: &World,
        passed: &mut Vec<Option<World>>,
        model: &mut Model,
    ) -> Option<World> {
        passed.truncate(self.shared);
        let is_round = self.steps.len() > 1 && self.steps.contains(&Step::Decide);
        for step in &self.steps[self.shared..] {
            let last = passed.last().copied().unwrap_or(Some(*world));
            passed.push(last.and_then(|last| match last.after(*step, model) {
                None if is_round && matches!(step, Step::Look(_) | Step::Write) => Some(last),
                next => next,
            }));
        }
        let next = (*passed.last()?)?;
        // In a round only an order that is replaced is read before.
        let is_replaced = |step: &Step| match *step {
            Step::Read(of) => {
                let job = model.scenario.plans[of].name;
                next.files[job].control != world.files[job].control
            }
            _ => true,
        };
        (!is_round || self.steps.iter().all(is_replaced)).then_some(next)
    }
}

/// Returns all moves: each step by itself, or some together.
pub(super) fn moves(model: &Model) -> Vec<Move> {
    let alone = || model.steps().into_iter().map(|step| vec![step]).collect();
    let all: Vec<Vec<Step>> = match model.scenario.is_merged {
        true => merged(model),
        false => alone(),
    };
    let mut moves: Vec<Move> = Vec::new();
    for steps in all {
        let before = moves.last().map_or(&[] as &[Step], |before| &before.steps);
        let pairs = steps.iter().zip(before);
        let shared = pairs.take_while(|(step, before)| step == before).count();
        moves.push(Move { steps, shared });
    }
    moves
}

/// Merges the steps that no other party sees with visible ones.
fn merged(model: &Model) -> Vec<Vec<Step>> {
    let mut moves = Vec::new();
    let (jobs, scenario) = (model.jobs(), &model.scenario);
    for (of, plan) in scenario.plans.iter().enumerate() {
        moves.extend([vec![Step::Kill(of)], vec![Step::Change(of)]]);
        let read: &[Step] = match scenario.obeys_late {
            true => &[Step::Read(of), Step::Obey(of)],
            false => &[Step::Read(of)],
        };
        moves.push(read.to_vec());
        if scenario.obeys_late {
            moves.push(vec![Step::Obey(of)]);
        }
        if scenario.takes_late {
            moves.push(vec![Step::Take(of)]);
        }
        if model.twin.obeys_any() {
            moves.push([&[Step::Start(of)], read].concat());
        }
        for seen in [&[] as &[Step], &[Step::Look(plan.name)]] {
            let say = [Step::Say(of)];
            moves.push([seen, &say].concat());
            moves.push([seen, &[Step::Give(of)], &say].concat());
            moves.push([seen, &[Step::Start(of)], &say].concat());
        }
    }
    for job in 0..jobs {
        for step in [Step::Remove(job), Step::Forget(job)] {
            moves.extend([vec![step], vec![Step::Look(job), step]]);
        }
    }
    if model.twin == Twin::LooksGone {
        moves.push(vec![Step::Hide]);
    }
    let mut reads = vec![vec![]];
    if scenario.obeys_late {
        for of in 0..scenario.plans.len() {
            for before in reads.clone() {
                reads.push([vec![Step::Read(of)], before].concat());
            }
        }
    }
    let decides: Vec<_> = (0..jobs).map(Step::Look).chain([Step::Decide]).collect();
    for read in reads {
        let round = [read, decides.clone()].concat();
        moves.push([round.clone(), vec![Step::Write; jobs]].concat());
        for written in (0..=jobs).rev() {
            moves.push([round.clone(), vec![Step::Write; written], vec![Step::Crash]].concat());
        }
    }
    moves
}
