//! The tensor pool of a device: upstream's GPU tests, the conformance cases that need a driver, and the order of the
//! stream. The IDs are those of `docs/CONFORMANCE.md`.

mod errors;
mod order;
mod plans;
pub(crate) mod rig;
mod upstream_cases;
