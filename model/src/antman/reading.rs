//! The values that a job reads from a control file.

use std::collections::BTreeMap;

/// 2^64.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// A GPU's value in `gpuConfigInfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'t> {
    /// An object, with its `maxDeviceMem` as written.
    Limit(&'t str),
    /// Any other value.
    NotAnObject,
}

/// Parses a JSON number that is a non-negative integer below 2^64. It may have a decimal point or an exponent; above
/// 2^53, a number with either may be rounded. Returns `None` for anything else, which the reader skips.
pub fn number(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    // Rust also parses names such as `inf`.
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = text.parse().ok().filter(|_| is_number)?;
    let fits = (0.0..TOO_LARGE).contains(&number) && number.fract() == 0.0;
    fits.then_some(number as u64)
}

/// Parses the share in `perfControl`, truncated to a signed 32-bit integer: 2^32 becomes 0, which suspends the job.
pub fn perf_control(text: &str) -> Option<i32> {
    Some((number(text)? as u32).cast_signed())
}

/// Returns the accepted limits by GPU name. Names that do not exactly equal one of `known` are ignored. The second
/// value is true if the reader throws, which it does at the first entry that is not an object. The entries before that
/// one are accepted nevertheless.
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
