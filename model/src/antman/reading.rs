//! The values that a job reads from a control file.

use std::collections::BTreeMap;

/// 2^64.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// The value of a GPU's name in `gpuConfigInfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'t> {
    /// An object, with its `maxDeviceMem` as written.
    Limit(&'t str),
    /// Something else.
    NotAnObject,
}

/// Parses a whole number from 0 on, as JSON writes it, also with a point: of any size, so above 2^53 the result may
/// differ from the text. Returns `None` for anything else, which is skipped.
pub fn number(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    // Rust also parses names of numbers.
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = text.parse().ok().filter(|_| is_number)?;
    let fits = (0.0..TOO_LARGE).contains(&number) && number.fract() == 0.0;
    fits.then_some(number as u64)
}

/// Parses the share in `perfControl`, cut to 32 signed bits: 2^32 suspends the job.
pub fn perf_control(text: &str) -> Option<i32> {
    Some((number(text)? as u32).cast_signed())
}

/// Returns the limits that are accepted, by name: the names of GPUs are compared with `known` exactly, and unknown
/// ones ignored. The second value is true if the reader throws, at the first entry that is no object; the entries
/// before it were accepted.
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
