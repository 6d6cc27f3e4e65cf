//! Any bytes as a planning problem in CSV: no panic, and each lifetime ends where it begins or later. Run by
//! `cargo +nightly fuzz run csv`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../cli/src/plan/csv.rs"]
mod csv_file;

fuzz_target!(|data: &[u8]| {
    check(data);
    // So that the header need not be found.
    check(&[b"id,lower,upper,size,alignment,offset\n".as_slice(), data].concat());
});

fn check(data: &[u8]) {
    let Ok(lifetimes) = csv_file::read(data) else {
        return;
    };
    for lifetime in lifetimes {
        assert!(lifetime.begin <= lifetime.end, "{lifetime:?}");
    }
}
