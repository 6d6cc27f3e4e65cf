//! Available host memory. A system that overcommits refuses no allocation, but kills a process that writes to
//! memory that the system does not have. So the available memory is read before large writes.

/// Reads a file of the system. Returns `None` if there is none.
#[cfg(target_os = "linux")]
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Other systems have no such files.
#[cfg(not(target_os = "linux"))]
fn read(_: &str) -> Option<String> {
    None
}

/// Returns the bytes that the process may still allocate: the system's available bytes, or the bytes that the
/// limits of cgroup v2 leave, if fewer. Returns `None` if the system does not report them. Reads a few small
/// files.
pub(super) fn available_bytes() -> Option<u64> {
    available_by(read)
}

fn available_by(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let system = read("/proc/meminfo").and_then(|said| number_of(&said, "MemAvailable:"));
    let system = system.map(|kib| kib.saturating_mul(1024));
    let groups = read("/proc/self/cgroup").and_then(|said| {
        let group = said.lines().find_map(|line| line.strip_prefix("0::"))?;
        // The limit of a cgroup applies to all cgroups inside it.
        let ends = group.match_indices('/').map(|(end, _)| end);
        let groups = ends.chain([group.len()]).map(|end| &group[..end]);
        groups.filter_map(|group| left_in(group, &read)).min()
    });
    system.into_iter().chain(groups).min()
}

/// Returns the bytes that the limit of a cgroup leaves; `None` if the cgroup has no limit. Cached files count
/// as free.
fn left_in(group: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let file = |name: &str| read(&format!("/sys/fs/cgroup{group}/{name}"));
    let limit: u64 = file("memory.max")?.trim().parse().ok()?;
    let used: u64 = file("memory.current")?.trim().parse().ok()?;
    let counted = file("memory.stat").unwrap_or_default();
    let cached = ["active_file", "inactive_file"].map(|name| number_of(&counted, name));
    let cached: u64 = cached.into_iter().flatten().sum();
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// Returns the number that follows a name at the start of a line.
fn number_of(said: &str, name: &str) -> Option<u64> {
    let mut lines = said.lines().map(str::split_whitespace);
    lines.find_map(|mut words| match words.next() == Some(name) {
        true => words.next()?.parse().ok(),
        false => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the available bytes if these are the only files.
    fn available(files: &[(&str, &str)]) -> Option<u64> {
        available_by(|path| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    const MEMINFO: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:       24684084 kB\nMemFree:          100 kB\nMemAvailable:     5000 kB\n",
    );

    #[test]
    fn what_the_system_has_available_is_what_there_is() {
        assert_eq!(available(&[MEMINFO]), Some(5000 << 10));
        let first_version = ("/proc/self/cgroup", "4:memory:/a\n0::/\n");
        assert_eq!(available(&[MEMINFO, first_version]), Some(5000 << 10));
        assert_eq!(available(&[]), None);
    }

    #[test]
    fn the_tightest_limit_of_a_control_group_binds_and_cached_files_make_room() {
        let group = ("/proc/self/cgroup", "4:memory:/x\n0::/jobs/mine\n");
        let inner = [
            ("/sys/fs/cgroup/jobs/mine/memory.max", "max\n"),
            ("/sys/fs/cgroup/jobs/mine/memory.current", "900000\n"),
        ];
        let unlimited = [MEMINFO, group, inner[0], inner[1]];
        assert_eq!(available(&unlimited), Some(5000 << 10));
        let outer = [
            ("/sys/fs/cgroup/jobs/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/jobs/memory.current", "900000\n"),
            (
                "/sys/fs/cgroup/jobs/memory.stat",
                "anon 700000\nfile 200000\ninactive_file 150000\nactive_file 50000\n",
            ),
        ];
        let limited = [&unlimited[..], &outer[..]].concat();
        assert_eq!(available(&limited), Some(300_000));
        assert_eq!(available(&limited[..6]), Some(100_000));
        let whole = [
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "1000\n"),
            ("/sys/fs/cgroup/memory.current", "2000\n"),
        ];
        assert_eq!(available(&whole), Some(0));
    }
}
