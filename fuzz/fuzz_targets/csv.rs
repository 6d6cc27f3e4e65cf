//! Fuzzes the reader of planning problems in CSV: it never panics, and no lifetime ends before it begins. Run with
//! `cargo +nightly fuzz run csv`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../cli/src/plan/csv.rs"]
mod csv_file;

fuzz_target!(|data: &[u8]| {
    check(data);
    // With a valid header, which the fuzzer then need not find.
    check(&[b"id,lower,upper,size,alignment,offset\n".as_slice(), data].concat());
});

fn check(data: &[u8]) {
    let Ok((_, lifetimes)) = csv_file::read(data) else {
        return;
    };
    for lifetime in lifetimes {
        assert!(lifetime.begin <= lifetime.end, "{lifetime:?}");
    }
}
