//! [`Move`]: several steps taken as one.
//!
//! Three jobs have too many worlds if each step is taken by itself. So steps that no other party
//! sees are merged with the next visible one: memory is taken when a limit is obeyed, and released
//! when the status is written; a process starts when it writes its first status. A coordinator
//! reads a file just before the decision, or just before another party changes the file; its writes
//! follow the decision immediately, up to the point where it ends; and an order is read when it is
//! obeyed, or just before it is replaced. Each of these rules moves a step past steps of others
//! that neither see it nor are seen by it; the steps of each process keep their order, and so the
//! sums stay the same.

use super::model::{ProtocolChange, ScenarioModel};
use super::world::{Transition, World};

/// Several steps taken as one.
pub(super) struct Move {
    pub(super) steps: Vec<Transition>,
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
        model: &mut ScenarioModel,
    ) -> Option<World> {
        passed.truncate(self.shared);
        let is_round = self.steps.len() > 1 && self.steps.contains(&Transition::Decide);
        for step in &self.steps[self.shared..] {
            let last = passed.last().copied().unwrap_or(Some(*world));
            passed.push(last.and_then(|last| match last.after(*step, model) {
                None if is_round && matches!(step, Transition::Look(_) | Transition::Write) => {
                    Some(last)
                }
                next => next,
            }));
        }
        let next = (*passed.last()?)?;
        // In a round, only an order that is replaced is read before its replacement.
        let is_replaced = |step: &Transition| match *step {
            Transition::Read(of) => {
                let job = model.scenario.plans[of].name;
                next.files[job].control != world.files[job].control
            }
            _ => true,
        };
        (!is_round || self.steps.iter().all(is_replaced)).then_some(next)
    }
}

/// Returns all moves: single steps, or some of them merged.
pub(super) fn moves(model: &ScenarioModel) -> Vec<Move> {
    let alone = || model.steps().into_iter().map(|step| vec![step]).collect();
    let all: Vec<Vec<Transition>> = match model.scenario.is_merged {
        true => merged(model),
        false => alone(),
    };
    let mut moves: Vec<Move> = Vec::new();
    for steps in all {
        let before = moves
            .last()
            .map_or(&[] as &[Transition], |before| &before.steps);
        let pairs = steps.iter().zip(before);
        let shared = pairs.take_while(|(step, before)| step == before).count();
        moves.push(Move { steps, shared });
    }
    moves
}

/// Merges the steps that no other party sees with visible ones.
fn merged(model: &ScenarioModel) -> Vec<Vec<Transition>> {
    let mut moves = Vec::new();
    let (jobs, scenario) = (model.jobs(), &model.scenario);
    for (of, plan) in scenario.plans.iter().enumerate() {
        moves.extend([vec![Transition::Kill(of)], vec![Transition::Change(of)]]);
        let read: &[Transition] = match scenario.obeys_late {
            true => &[Transition::Read(of), Transition::Obey(of)],
            false => &[Transition::Read(of)],
        };
        moves.push(read.to_vec());
        if scenario.obeys_late {
            moves.push(vec![Transition::Obey(of)]);
        }
        if scenario.takes_late {
            moves.push(vec![Transition::Take(of)]);
        }
        if model.twin.obeys_any() {
            moves.push([&[Transition::Start(of)], read].concat());
        }
        for seen in [&[] as &[Transition], &[Transition::Look(plan.name)]] {
            let say = [Transition::Say(of)];
            moves.push([seen, &say].concat());
            moves.push([seen, &[Transition::Give(of)], &say].concat());
            moves.push([seen, &[Transition::Start(of)], &say].concat());
        }
    }
    for job in 0..jobs {
        for step in [Transition::Remove(job), Transition::Forget(job)] {
            moves.extend([vec![step], vec![Transition::Look(job), step]]);
        }
    }
    if model.twin == ProtocolChange::LooksGone {
        moves.push(vec![Transition::Hide]);
    }
    let mut reads = vec![vec![]];
    if scenario.obeys_late {
        for of in 0..scenario.plans.len() {
            for before in reads.clone() {
                reads.push([vec![Transition::Read(of)], before].concat());
            }
        }
    }
    let decides: Vec<_> = (0..jobs)
        .map(Transition::Look)
        .chain([Transition::Decide])
        .collect();
    for read in reads {
        let round = [read, decides.clone()].concat();
        moves.push([round.clone(), vec![Transition::Write; jobs]].concat());
        for written in (0..=jobs).rev() {
            moves.push(
                [
                    round.clone(),
                    vec![Transition::Write; written],
                    vec![Transition::Crash],
                ]
                .concat(),
            );
        }
    }
    moves
}
