//! Paged allocators: memory that moves inside one range of addresses.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod random;
