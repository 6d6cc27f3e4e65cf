//! A model of DeepRec's PRMalloc without most of its defects: planner and pool, for one thread.
//!
//! It serves conformance tests and comparisons. It uses vectors and maps where the core uses fixed tables. Its size
//! classes are the core's, which are upstream's; sizes are without upstream's header. `docs/CONFORMANCE.md` lists
//! upstream's defects and says which of them the model has.
//!
//! The tests of all pools share [`InUse`], which runs steps, and [`cases`], upstream's own tests.

mod plan;
mod planner;
mod pool;
mod rig;
mod served;

pub use plan::{Bin, Block, Fit, Plan, Plans};
pub use planner::{Planner, Window};
pub use pool::{Form, TensorPool};
pub use rig::{AnyPool, CountedBackend, InUse, cases, until_planned};
