//! Whether the process that wrote a status still exists.
//!
//! A process number alone is not enough, since the system reuses numbers: a process that started after the
//! status was written is another one. A zombie, which ended and was not waited for by its parent, counts as
//! dead: its device memory is free again.
//!
//! This works on Linux, for processes in the same PID namespace; a job in a container has numbers of its own
//! and wrongly looks dead. So no program removes a job for this reason alone.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The error of a process's start time: the machine's start is known in whole seconds.
const SLACK: Duration = Duration::from_secs(2);

/// What is known of a job's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Alive {
    Yes,
    No,
    /// The status has no process number, or the system does not tell.
    Unknown,
}

/// Whether the process `pid` exists and already existed at `wrote_unix_ms`, in milliseconds since 1970.
pub(crate) fn alive(pid: Option<u32>, wrote_unix_ms: Option<u64>) -> Alive {
    let Some(pid) = pid else {
        return Alive::Unknown;
    };
    if fs::metadata("/proc/self/stat").is_err() {
        return Alive::Unknown;
    }
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Alive::No;
    };
    match (Stat::read(&stat), wrote_unix_ms) {
        (Some(stat), _) if stat.ended => Alive::No,
        (Some(stat), Some(wrote)) if stat.began_after(wrote) => Alive::No,
        (Some(_), _) => Alive::Yes,
        (None, _) => Alive::Unknown,
    }
}

/// The parts of a line of `/proc/<pid>/stat` that are needed.
struct Stat {
    ended: bool,
    /// When the process started, in ticks after the machine's start.
    began_ticks: u64,
}

impl Stat {
    fn read(line: &str) -> Option<Self> {
        // The name, in brackets, may have any characters.
        let (_, rest) = line.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        Some(Self {
            ended: matches!(state, "Z" | "X" | "x"),
            began_ticks: fields.nth(18)?.parse().ok()?,
        })
    }

    fn began_after(&self, wrote_unix_ms: u64) -> bool {
        let Some(start) = machine_start() else {
            return false;
        };
        // Linux tells these times in hundredths of a second, on every machine.
        let began = start + Duration::from_millis(self.began_ticks.saturating_mul(10));
        let wrote = UNIX_EPOCH + Duration::from_millis(wrote_unix_ms);
        began > wrote + SLACK
    }
}

fn machine_start() -> Option<SystemTime> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(UNIX_EPOCH + Duration::from_secs(line.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_the_name_whatever_that_is() {
        let line = format!("7 (a ) Z (b) S {} 500 x", ["1"; 18].join(" "));
        let stat = Stat::read(&line).unwrap();
        assert!(!stat.ended);
        assert_eq!(stat.began_ticks, 500);
        assert!(Stat::read("7 (a) Z").is_none());
        assert!(Stat::read("").is_none());
    }

    #[test]
    fn this_process_lives_and_did_not_write_before_it_began() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = u64::try_from(now.as_millis()).unwrap();
        let pid = Some(std::process::id());
        assert_eq!(alive(None, Some(now)), Alive::Unknown);
        if fs::metadata("/proc/self/stat").is_ok() {
            assert_eq!(alive(pid, Some(now)), Alive::Yes);
            assert_eq!(alive(pid, None), Alive::Yes);
            // Its number belonged to another process then.
            assert_eq!(alive(pid, Some(now - 1_000_000_000)), Alive::No);
        }
    }

    #[test]
    fn a_process_that_ended_is_dead_even_before_its_parent_has_asked() {
        if fs::metadata("/proc/self/stat").is_err() {
            return;
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Some(child.id());
        while alive(pid, None) != Alive::No {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(alive(pid, None), Alive::No);
    }
}
