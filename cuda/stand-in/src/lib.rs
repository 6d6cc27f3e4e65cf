//! A CUDA driver over host memory: a shared object that exports the driver's functions, for
//! machines without a GPU and for tests that want more control than hardware gives.
//!
//! The stand-in behaves as the CUDA Driver API documents, and checks uses that hardware leaves
//! unchecked. There is no device: kernels run as registered functions of the host, and times say
//! nothing about a GPU.
//!
//! # How it works
//! * **One lock** (`driver`) guards everything. Every exported function (`exports`) goes through
//!   `entry::call`, which counts the call, refuses it if a test requires that, and otherwise makes
//!   it.
//! * **Work is queued** (`queue`): copies, fills, kernels, host functions, event records. Each
//!   operation records those that it must wait for: the previous one in its stream, the events its
//!   stream waited for, and those that the legacy default stream adds. In the *eager* schedule an
//!   operation runs as soon as these are done, in the call that queued it. In the *deferred*
//!   schedule it stays queued until a call forces it to run, in an order drawn from a seed: every
//!   order that the dependencies allow can happen, so a missing wait gives wrong results under some
//!   seed.
//! * **Addresses** (`space`): device memory lies in a window of addresses that the host cannot
//!   touch. The host memory that holds the bytes lies a fixed distance away. Physical memory of the
//!   virtual memory calls lies in memory files, so one handle mapped at two addresses shows the
//!   same bytes. Host memory that the driver knows keeps its own address. Several processes may
//!   count their devices' memory together, in a file. Unmapping removes memory even if queued work
//!   uses it; that work then fails (`larder_stand_in_mapping_waits`).
//! * **Handles** of streams and events are reused, the newest vacant one first (`table`).
//! * **Kernels** (`module`): a module is PTX text, from which the kernels' names and parameters are
//!   read; a launch runs a registered function of the host, which requests the memory it uses.
//! * **Stream-ordered memory** (`pool`) is alive between the queued allocation and the queued free,
//!   not between the calls.
//! * **Graphs** (`capture`, `graph`): captured work is kept instead of queued, and queued anew at
//!   each launch.
//! * **Checks**: every access of queued work is looked up when it runs. Missing memory fails the
//!   context as on a device (`CUDA_ERROR_ILLEGAL_ADDRESS`). Two accesses that no event, stream or
//!   wait of the host orders are a race, found by vector clocks (`clock`) in any schedule. Both are
//!   recorded as findings.
//!
//! A child made by `fork` alone cannot use the driver of its parent, as in CUDA: every call there
//! returns `CUDA_ERROR_NOT_INITIALIZED`, and the control interface does nothing. A child whose
//! parent never used the driver has a driver of its own.
//!
//! # Control
//! Functions named `larder_stand_in_…` (`exports::control`) set the amount of memory, count calls,
//! make a call fail, choose the schedule, and list existing objects and findings. Their types are
//! in `larder_cuda_abi::stand_in`.

#[allow(unreachable_pub, reason = "the file is the core's")]
mod byte_count;
mod calls;
mod capture;
mod clock;
mod config;
mod context;
mod driver;
mod entry;
mod exports;
mod ffi;
mod findings;
mod forget_streams;
mod graph;
mod module;
mod pool;
mod ptx;
mod queue;
mod random;
mod space;
mod table;
mod thread;
