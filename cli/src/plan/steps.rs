//! The steps of a trace as problems; a trace without steps is one problem.
//!
//! A problem holds the blocks allocated within one step; blocks freed later, or never, end with it.
//! Blocks that are live when the step begins are not part of it, and events between two steps are
//! not part of any problem. Ticks count the events of the step.

use std::collections::HashMap;

use larder_core::pack::Lifetime;

use super::Problem;
use larder_trace::{Event, Trace};

/// Returns one problem for each step that allocates, or one problem for a trace without step marks.
pub(crate) fn problems(trace: &Trace) -> Vec<Problem> {
    let mut problems = Vec::new();
    let marks = |event: &Event| matches!(event, Event::Step { .. });
    let marked = trace.events().iter().any(marks);
    let mut step = (!marked).then(StepUnderWay::default);
    for event in trace.events() {
        match (*event, &mut step) {
            (Event::Step { number }, step) => {
                let over = step.take();
                *step = (!trace.is_between_steps(number)).then(|| StepUnderWay {
                    number,
                    ..StepUnderWay::default()
                });
                problems.extend(over.and_then(|over| {
                    let name = format!("{} step {}", trace.name(), over.number);
                    over.problem(name)
                }));
            }
            (Event::Alloc { id, bytes }, Some(step)) => step.alloc(id, bytes),
            (Event::Free { id }, Some(step)) => step.free(id),
            (_, None) => {}
        }
    }
    if !marked {
        problems.extend(step.and_then(|whole| whole.problem(trace.name().to_owned())));
    }
    problems
}

/// The step being read.
#[derive(Default)]
struct StepUnderWay {
    number: u32,
    tick: u32,
    lifetimes: Vec<Lifetime>,
    ids: Vec<String>,
    /// Index in `lifetimes` of each live block of the step.
    live: HashMap<u32, usize>,
}

impl StepUnderWay {
    fn alloc(&mut self, id: u32, bytes: u64) {
        self.live.insert(id, self.lifetimes.len());
        self.ids.push(id.to_string());
        self.lifetimes
            .push(Lifetime::new(self.tick, u32::MAX, bytes));
        self.tick += 1;
    }

    fn free(&mut self, id: u32) {
        if let Some(index) = self.live.remove(&id) {
            self.lifetimes[index].end = self.tick;
        }
        self.tick += 1;
    }

    fn problem(mut self, name: String) -> Option<Problem> {
        for index in self.live.into_values() {
            self.lifetimes[index].end = self.tick;
        }
        (!self.lifetimes.is_empty()).then_some(Problem {
            name,
            lifetimes: self.lifetimes,
            ids: self.ids,
        })
    }
}
