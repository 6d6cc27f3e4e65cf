//! What a job takes from the values of a control file.

use std::collections::BTreeMap;

/// 2^64.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// What stands behind a GPU's name in `gpuConfigInfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'t> {
    /// An object, with its `maxDeviceMem` as it is written.
    Limit(&'t str),
    /// Something else.
    NotAnObject,
}

/// A whole number from 0 on, as JSON writes it, with a point too: whatever its size, so above 2^53
/// it may be another than what is written. `None`, and passed over, if it is anything else.
pub fn number(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    // Rust's numbers have names too.
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = text.parse().ok().filter(|_| is_number)?;
    let fits = (0.0..TOO_LARGE).contains(&number) && number.fract() == 0.0;
    fits.then_some(number as u64)
}

/// The share that `perfControl` means, cut to 32 bits, signed: 2^32 suspends the job.
pub fn perf_control(text: &str) -> Option<i32> {
    Some((number(text)? as u32).cast_signed())
}

/// The limits that are taken, by name: GPUs are compared with `known` letter for letter, and others
/// named in vain. The second value is true if the reader throws, at the first entry that is no
/// object; what stands before it was taken.
pub fn limits(known: &[&str], entries: &[(&str, Entry<'_>)]) -> (BTreeMap<String, u64>, bool) {
    let mut taken = BTreeMap::new();
    for (name, entry) in entries {
        let Entry::Limit(text) = entry else {
            return (taken, true);
        };
        if let Some(bytes) = number(text).filter(|_| known.contains(name)) {
            taken.insert((*name).to_owned(), bytes);
        }
    }
    (taken, false)
}
