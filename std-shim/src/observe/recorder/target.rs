//! Where a trace goes and from which size blocks are recorded, as the program or its user says.

use core::ffi::CStr;

use super::line::Line;
use super::os;

/// The longest path; systems take no longer ones.
const MAX_PATH_BYTES: usize = 4096;

/// A path, and room for the NUL that ends it.
pub(super) type Path = Line<{ MAX_PATH_BYTES + 1 }>;

/// The environment variable that names the file.
const FILE_VARIABLE: &CStr = c"LARDER_RECORD";
/// The environment variable that says from which size on.
const FROM_VARIABLE: &CStr = c"LARDER_RECORD_FROM";

/// Suffixes and the power of two each stands for, longest first so that `KiB` is not read
/// as `B`. They are those of the program `larder`.
const SUFFIXES: [(&[u8], u32); 5] = [
    (b"KiB", 10),
    (b"MiB", 20),
    (b"GiB", 30),
    (b"TiB", 40),
    (b"B", 0),
];

/// What a recorder was told when it was made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Look into the environment.
    Environment,
    /// Record to a file that the program names.
    Program {
        path: &'static CStr,
        from_bytes: u64,
    },
}

/// What to record, decided.
pub(super) struct Target {
    pub(super) path: Path,
    /// Smaller blocks are left out; at least 1.
    pub(super) from_bytes: u64,
}

/// What is wrong with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadOrder {
    /// The size is not one.
    From,
    /// The path is too long.
    Path,
}

impl Order {
    /// Decides; `None` if nothing shall be recorded.
    pub(super) fn target(self) -> Result<Option<Target>, BadOrder> {
        match self {
            Self::Program { path, from_bytes } => {
                target(path.to_bytes(), from_bytes, os::process()).map(Some)
            }
            Self::Environment if os::has_borrowed_rights() => Ok(None),
            Self::Environment => os::with_variable(FILE_VARIABLE, |path| {
                let Some(path) = path.filter(|path| !path.is_empty()) else {
                    return Ok(None);
                };
                let from_bytes = os::with_variable(FROM_VARIABLE, |from| match from {
                    None | Some(b"") => Some(1),
                    Some(from) => byte_count(from),
                });
                let from_bytes = from_bytes.ok_or(BadOrder::From)?;
                target(path, from_bytes, os::process()).map(Some)
            }),
        }
    }
}

/// Puts the number of the process in the place of each `%p`.
fn target(path: &[u8], from_bytes: u64, process: libc::pid_t) -> Result<Target, BadOrder> {
    let mut full = Path::new();
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        rest = match behind.split_first() {
            Some((b'p', behind)) if *first == b'%' => {
                full.number(u64::from(process.unsigned_abs()));
                behind
            }
            _ => {
                full.text(&[*first]);
                behind
            }
        };
    }
    if full.is_cut() {
        return Err(BadOrder::Path);
    }
    Ok(Target {
        path: full,
        from_bytes: from_bytes.max(1),
    })
}

/// Reads `65536` or `64KiB`.
fn byte_count(text: &[u8]) -> Option<u64> {
    let known = SUFFIXES
        .iter()
        .find_map(|&(suffix, shift)| Some((text.strip_suffix(suffix)?, shift)));
    let (digits, shift) = known.unwrap_or((text, 0));
    if digits.is_empty() {
        return None;
    }
    let count = digits.iter().try_fold(0_u64, |count, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        count.checked_mul(10)?.checked_add(digit)
    })?;
    count.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> Result<String, BadOrder> {
        let target = target(path.as_bytes(), 1, 4711)?;
        Ok(String::from_utf8(target.path.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn percent_p_in_a_path_is_the_process_and_any_other_percent_is_itself() {
        assert_eq!(path("a.trace").unwrap(), "a.trace");
        assert_eq!(path("%p/a.%p").unwrap(), "4711/a.4711");
        assert_eq!(path("100%.%%p%x%").unwrap(), "100%.%4711%x%");
    }

    #[test]
    fn a_path_of_the_longest_length_is_taken_and_a_longer_one_refused() {
        let longest = "x".repeat(MAX_PATH_BYTES);
        assert_eq!(path(&longest).unwrap(), longest);
        assert_eq!(path(&format!("{longest}x")), Err(BadOrder::Path));
        // The number is longer than the two characters it stands for.
        let expanded = format!("{}%p", "x".repeat(MAX_PATH_BYTES - 3));
        assert_eq!(path(&expanded), Err(BadOrder::Path));
    }

    #[test]
    fn byte_counts_are_plain_or_have_a_binary_suffix() {
        for (text, count) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4096B", Some(4096)),
            ("64KiB", Some(64 << 10)),
            ("3MiB", Some(3 << 20)),
            ("8GiB", Some(8 << 30)),
            ("1TiB", Some(1 << 40)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("16777216TiB", None),
            ("", None),
            ("KiB", None),
            ("-1", None),
            ("1 KiB", None),
            ("4k", None),
        ] {
            assert_eq!(byte_count(text.as_bytes()), count, "{text:?}");
        }
    }

    #[test]
    fn a_size_of_zero_records_every_block() {
        assert_eq!(
            target(b"a", 0, 1)
                .unwrap_or_else(|_| unreachable!())
                .from_bytes,
            1
        );
    }
}
