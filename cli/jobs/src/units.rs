//! Byte counts on the command line, such as `8GiB`.

use larder_core::ByteCount;
use larder_trace::MAX_BYTES;

/// Reads a byte count like [`ByteCount::parse`], from 1 to the maximum of a trace. An error says
/// what is wrong with the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    match ByteCount::parse(text) {
        None => Err(format!(
            "`{text}` is not a byte count; write plain bytes or a suffix, such as 8589934592, 512MiB or 1.5GiB"
        )),
        Some(ByteCount(0)) => Err("zero bytes are too few; give at least 1".to_owned()),
        Some(ByteCount(bytes)) if bytes <= MAX_BYTES => Ok(bytes),
        Some(_) => Err(format!(
            "`{text}` is too big; the largest count is {:#}",
            ByteCount(MAX_BYTES)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_count_is_refused() {
        for text in ["", "-1", "8GBB"] {
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
