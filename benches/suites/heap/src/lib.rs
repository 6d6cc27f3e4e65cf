//! The global allocator of a program that names this crate: `extern crate suite_heap as _;`.
//!
//! It is a separate crate, so that a test file changes by one line, even without `std`, and all
//! heaps run the same tests.

#[cfg(feature = "larder")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();

#[cfg(feature = "larder-memory")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::memory();

#[cfg(feature = "larder-speed")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::speed();
