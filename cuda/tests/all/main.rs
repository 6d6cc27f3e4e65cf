//! Tests of larder-cuda, linked as one program. To run one module: `cargo test -p larder-cuda --test all vmem::`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod addresses;
mod allocator;
mod block_pools;
mod buffers;
mod calls;
mod common;
mod decorators;
mod endings;
mod errors;
mod fallbacks;
mod faults;
mod faults_allocator;
mod faults_everything;
mod fixed;
mod foreign_captures;
mod jobs;
mod layout;
mod limits;
mod loans;
mod long_run;
mod moving;
mod owed;
mod pinned_buffers;
mod programs;
mod recalls;
mod reserved;
mod runtime;
mod scripts;
#[cfg(target_os = "linux")]
mod sharing;
mod sleep;
mod steps;
mod streams;
mod streams_gone;
mod sub_allocators;
mod synced;
mod tensor_pool;
mod threads;
mod vmem;
mod windows;
