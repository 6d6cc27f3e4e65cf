//! The file of a trace and the minimum size of recorded blocks, from the program or its user.

use core::ffi::CStr;

use larder_core::ByteCount;

use super::line::Line;
use super::os;

/// Maximum length of a path in bytes; no system accepts a longer one.
const MAX_PATH_BYTES: usize = 4096;

/// A path, and room for the NUL that ends it.
pub(super) type Path = Line<{ MAX_PATH_BYTES + 1 }>;

/// The environment variable that names the file.
const FILE_VARIABLE: &CStr = c"LARDER_RECORD";
/// The environment variable with the minimum size.
const FROM_VARIABLE: &CStr = c"LARDER_RECORD_FROM";

/// The request of a recorder, as constructed.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecorderOrder {
    /// Read the environment.
    Environment,
    /// Record to a file that the program names.
    Program {
        path: &'static CStr,
        from_bytes: u64,
    },
}

/// A resolved request.
pub(super) struct Target {
    pub(super) path: Path,
    /// Minimum size of recorded blocks in bytes; at least 1.
    pub(super) from_bytes: u64,
}

/// An error in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadOrder {
    /// The size is not a number of bytes.
    From,
    /// The path is too long.
    Path,
}

impl RecorderOrder {
    /// Resolves the request. Returns `None` if nothing is to be recorded.
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
                    Some(from) => Some(ByteCount::parse(str::from_utf8(from).ok()?)?.0),
                });
                let from_bytes = from_bytes.ok_or(BadOrder::From)?;
                target(path, from_bytes, os::process()).map(Some)
            }),
        }
    }
}

/// Replaces each `%p` of the path by the process id.
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
        // The number is longer than the two characters that it replaces.
        let expanded = format!("{}%p", "x".repeat(MAX_PATH_BYTES - 3));
        assert_eq!(path(&expanded), Err(BadOrder::Path));
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
