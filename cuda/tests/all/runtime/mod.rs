//! The runtime: one allocator for each node and each device, made once. Tests that use only host memory need no
//! driver.

mod conformance;
mod cpu;
mod environment;
mod faults;
mod gpu;
mod guards;
mod kinds;
mod machine;
mod pinned;
mod rig;
mod routes;
mod upstream_cases;
mod visitors;
