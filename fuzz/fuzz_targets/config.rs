//! Any bytes as a control file: no panic, nothing of a file with a syntax error, the old value where a
//! value is bad, and a written value reads back the same. Run by `cargo +nightly fuzz run config`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../cuda/control/tests/all/config/property.rs"]
mod property;

fuzz_target!(|data: &[u8]| property::any_bytes(data));
