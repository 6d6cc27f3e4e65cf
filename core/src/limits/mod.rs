//! Limits that move while a program runs: budgets inside budgets, which are lowered with an immediate answer.
//!
//! `answer` the answer to a new limit · `budget` the terms · `tree` the budgets and their rule · `check` its
//! invariants. All of it is numbers: pools, locks and callbacks belong to the front ends. The tree has its records on
//! the heap, and requires the feature `alloc`.

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
