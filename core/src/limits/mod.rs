//! Limits that move while a program runs: nested budgets, whose limits are lowered with an immediate answer.
//!
//! `answer` the answer to a new limit · `budget` the terms · `tree` the budgets and their rule · `check` its
//! invariants. All of it only counts bytes: pools, locks and callbacks belong to the front ends. The records of the
//! tree are on the heap, so it requires the feature `alloc`.

mod answer;
mod budget;
#[cfg(feature = "alloc")]
mod check;
#[cfg(feature = "alloc")]
mod tree;

pub use answer::LimitAnswer;
pub use budget::{
    BudgetConfig, BudgetError, BudgetId, BudgetRefusal, BudgetUse, LimitEvent, LimitEventKind,
};
#[cfg(feature = "alloc")]
pub use tree::LimitTree;
