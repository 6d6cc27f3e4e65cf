//! Byte counts as people write them: parsing `8GiB`, printing MiB.
//!
//! Not a general unit library: binary suffixes only, whole numbers only.

use larder_trace::MAX_BYTES;
use thiserror::Error;

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// Suffixes and the power of two each stands for, longest first so that `KiB`
/// is not read as `B`.
const SUFFIXES: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];

/// Why a text is not a byte count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BytesError {
    /// Not a whole number with a known suffix.
    #[error(
        "`{0}` is not a byte count; write plain bytes or a suffix, such as 8589934592, 512MiB or 8GiB"
    )]
    NotACount(String),
    /// Zero, which no size here may be.
    #[error("zero bytes are too few; give at least 1")]
    Zero,
    /// Above [`MAX_BYTES`].
    #[error("`{0}` is too big; the largest count is {MAX_BYTES} bytes")]
    TooBig(String),
}

/// Reads a byte count: plain bytes, or a whole number followed by `B`, `KiB`,
/// `MiB`, `GiB` or `TiB` (in any case).
///
/// # Errors
/// [`BytesError`] says what is wrong with the text. Never panics.
pub fn parse_bytes(text: &str) -> Result<u64, BytesError> {
    let trimmed = text.trim();
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|&(suffix, shift)| Some((strip_suffix(trimmed, suffix)?, shift)))
        .unwrap_or((trimmed, 0));
    let digits = digits.trim_end();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BytesError::NotACount(text.to_owned()));
    }
    let count = digits.parse::<u64>().ok();
    match count.and_then(|count| count.checked_mul(1 << shift)) {
        Some(0) => Err(BytesError::Zero),
        Some(bytes) if bytes <= MAX_BYTES => Ok(bytes),
        _ => Err(BytesError::TooBig(text.to_owned())),
    }
}

/// Bytes as MiB, for printing.
#[must_use]
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn strip_suffix<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let split = text.len().checked_sub(suffix.len())?;
    let (head, tail) = text.split_at_checked(split)?;
    tail.eq_ignore_ascii_case(suffix).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_bytes_and_binary_suffixes_are_read() {
        assert_eq!(parse_bytes("1"), Ok(1));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4096B"), Ok(4096));
        assert_eq!(parse_bytes("3KiB"), Ok(3 << 10));
        assert_eq!(parse_bytes("512mib"), Ok(512 << 20));
        assert_eq!(parse_bytes("8 GiB"), Ok(8 << 30));
        assert_eq!(parse_bytes("2TiB"), Ok(2 << 40));
    }

    #[test]
    fn what_is_no_count_is_refused() {
        for text in ["", "GiB", "x", "-1", "+1", "1.5GiB", "8GB", "1 2", "é"] {
            assert_eq!(
                parse_bytes(text),
                Err(BytesError::NotACount(text.to_owned())),
                "{text}"
            );
        }
        assert_eq!(parse_bytes("0"), Err(BytesError::Zero));
        assert_eq!(parse_bytes("0GiB"), Err(BytesError::Zero));
    }

    #[test]
    fn the_largest_count_is_accepted_and_one_more_is_not() {
        assert_eq!(parse_bytes("1152921504606846976"), Ok(MAX_BYTES));
        for text in [
            "1152921504606846977",
            "99999999999999999999",
            "18446744073709551615TiB",
        ] {
            assert_eq!(
                parse_bytes(text),
                Err(BytesError::TooBig(text.to_owned())),
                "{text}"
            );
        }
    }
}
