//! Fuzzes the reader of status files: it never panics, and a status that it read can be written and read back
//! unchanged. Run with `cargo +nightly fuzz run status`.
#![no_main]

use larder_control::StatusFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(status) = StatusFile::parse(data) else {
        return;
    };
    let text = status.to_text();
    if text.len() > StatusFile::MAX_BYTES {
        return;
    }
    assert_eq!(StatusFile::parse(&text), Ok(status), "{text}");
});
