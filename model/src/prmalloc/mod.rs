//! DeepRec's PRMalloc as it is, without its defects: planner and pool, for one thread.
//!
//! For conformance tests, and as a row to compare with. It uses vectors and maps where the core uses fixed tables.
//! Size classes are the core's, which are upstream's; sizes are without upstream's header. `docs/CONFORMANCE.md`
//! lists upstream's defects and says which of them this has.
//!
//! And what tests of all pools share: [`InUse`] carries out steps, [`cases`] are upstream's own.

mod plan;
mod planner;
mod pool;
mod rig;
mod served;

pub use plan::{Bin, Block, Fit, Plan, Plans};
pub use planner::{Planner, Window};
pub use pool::{Form, TensorPool};
pub use rig::{AnyPool, CountedBackend, InUse, cases, until_planned};
