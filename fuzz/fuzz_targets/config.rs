//! Fuzzes the reader of control files: it never panics, reads nothing from a file with a syntax error,
//! leaves bad values out so that the old values stay, and reads written values back unchanged. Run with
//! `cargo +nightly fuzz run config`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../cuda/control/tests/all/config/property.rs"]
mod property;

fuzz_target!(|data: &[u8]| property::any_bytes(data));
