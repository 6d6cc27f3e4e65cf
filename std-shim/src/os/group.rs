//! The memory limits of the control groups of the process.

use core::ffi::CStr;
use core::fmt::Write;

use super::proc::{each_line, read};
use crate::text::Text;

/// Root directories of cgroup v2 and of v1's memory controller. A process in a cgroup namespace
/// finds its own group at the root.
const UNIFIED: &str = "/sys/fs/cgroup";
const MEMORY: &str = "/sys/fs/cgroup/memory";

/// Maximum length in bytes of a group's line, and of a file's path. They are limited because a
/// thread's stack may be small.
const LINE_BYTES: usize = 384;
const PATH_BYTES: usize = LINE_BYTES + 64;

/// Returns the lowest limit of the process's group and its ancestors, in bytes; `None` if there is
/// none, or it cannot be read. Reads one or two short files for each group.
pub(super) fn limit() -> Option<u64> {
    let mut lowest = None;
    each_line::<LINE_BYTES>(c"/proc/self/cgroup", |line| {
        let limit = str::from_utf8(line).ok().and_then(limit_of);
        lowest = limit.into_iter().chain(lowest).min();
        true
    });
    lowest
}

/// Returns the lowest limit of the group on a line of `/proc/self/cgroup`, and of its ancestors.
/// The line has a number, controllers, and the group's path.
fn limit_of(line: &str) -> Option<u64> {
    let (_, line) = line.split_once(':')?;
    let (controllers, path) = line.split_once(':')?;
    let (root, files): (_, &[_]) = match controllers {
        "" => (UNIFIED, &["memory.max", "memory.high"]),
        _ if controllers.split(',').any(|one| one == "memory") => {
            (MEMORY, &["memory.limit_in_bytes"])
        }
        _ => return None,
    };
    let mut group = path.trim_end_matches('/');
    let mut lowest = None;
    loop {
        let limits = files.iter().filter_map(|file| number(root, group, file));
        lowest = limits.chain(lowest).min();
        match group.rsplit_once('/') {
            Some((around, _)) => group = around,
            None => return lowest,
        }
    }
}

/// Returns the number in a file of a group; `None` if the file does not contain a limit.
fn number(root: &str, group: &str, file: &str) -> Option<u64> {
    let mut path = [0; PATH_BYTES];
    let mut text = Text::new(&mut path);
    write!(text, "{root}{group}/{file}\0").ok()?;
    let path = CStr::from_bytes_with_nul(text.written()).ok()?;
    let mut number = [0; 32];
    bound(read(path, &mut number)?)
}

/// Parses a limit. Returns `None` for `max`, and for the largest signed integer rounded down to
/// whole pages, which cgroup v1 uses for "no limit".
fn bound(text: &[u8]) -> Option<u64> {
    let number = str::from_utf8(text).ok()?.trim().parse().ok();
    number.filter(|bytes| *bytes < 1 << 62)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_a_limit_has_none_in_either_version() {
        assert_eq!(bound(b"max\n"), None);
        for page in [4 << 10, 64 << 10_i64] {
            let most = (i64::MAX / page * page).to_string();
            assert_eq!(bound(most.as_bytes()), None);
        }
        assert_eq!(bound(b"419430400\n"), Some(400 << 20));
    }
}
