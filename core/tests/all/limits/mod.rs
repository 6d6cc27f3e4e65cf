//! Budgets inside budgets: charges along a path, limits answered at once, and what pools may hold meanwhile.

mod edges;
mod random;
mod rule;
