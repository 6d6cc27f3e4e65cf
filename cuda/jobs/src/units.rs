//! Byte counts as people write them, such as `8GiB`.
//!
//! Whole numbers only. `G` and `GiB` are 2^30, `GB` is 10^9.

use larder_trace::MAX_BYTES;

/// Suffixes and the bytes each stands for, longest first so that `kib` is not read as `b`.
const SUFFIXES: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

/// Reads a byte count: plain bytes, or a whole number followed by `B`, by `K`, `M`, `G` or `T`, alone or with
/// `iB` for powers of two, or with `B` for powers of ten, in any case. An error says what is wrong with the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let split = |(suffix, unit)| Some((lower.strip_suffix(suffix)?.trim_end(), unit));
    let (digits, unit): (&str, u64) = SUFFIXES.into_iter().find_map(split).unwrap_or(("", 1));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "`{text}` is not a byte count; write plain bytes or a suffix, such as 8589934592, 512MiB or 8GiB"
        ));
    }
    let count = digits.parse::<u64>().ok();
    match count.and_then(|count| count.checked_mul(unit)) {
        Some(0) => Err("zero bytes are too few; give at least 1".to_owned()),
        Some(bytes) if bytes <= MAX_BYTES => Ok(bytes),
        _ => Err(format!(
            "`{text}` is too big; the largest count is {MAX_BYTES} bytes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_bytes_and_suffixes_are_read() {
        assert_eq!(parse_bytes("1"), Ok(1));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4096B"), Ok(4096));
        assert_eq!(parse_bytes("3KiB"), Ok(3 << 10));
        assert_eq!(parse_bytes("512mib"), Ok(512 << 20));
        assert_eq!(parse_bytes("8 GiB"), Ok(8 << 30));
        assert_eq!(parse_bytes("2TiB"), Ok(2 << 40));
        assert_eq!(parse_bytes("5G"), Ok(5 << 30));
        assert_eq!(parse_bytes("5GB"), Ok(5_000_000_000));
        assert_eq!(parse_bytes("7 mb"), Ok(7_000_000));
        assert_eq!(parse_bytes("1t"), Ok(1 << 40));
    }

    #[test]
    fn what_is_no_count_is_refused() {
        for text in [
            "", "GiB", "x", "-1", "+1", "1.5GiB", "8GBB", "8iB", "1 2", "é",
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.starts_with(&format!("`{text}` is not a byte count")));
        }
        for text in ["0", "0GiB"] {
            assert!(parse_bytes(text).unwrap_err().contains("give at least 1"));
        }
    }

    #[test]
    fn the_largest_count_is_accepted_and_one_more_is_not() {
        assert_eq!(parse_bytes("1152921504606846976"), Ok(MAX_BYTES));
        for text in [
            "1152921504606846977",
            "99999999999999999999",
            "18446744073709551615TiB",
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.starts_with(&format!("`{text}` is too big")));
        }
    }
}
