//! The global allocator of a program that names this crate: `extern crate suite_heap as _;`.
//!
//! A crate of its own, so that a test file changes by one line, even without `std`, and all heaps run the same text.

#[cfg(feature = "larder")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();

#[cfg(feature = "larder-memory")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::memory();

#[cfg(feature = "larder-speed")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::speed();
