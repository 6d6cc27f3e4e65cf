//! Whether the process that wrote a status still exists.
//!
//! A process is identified by its [`Life`], which no later process has, or, for a status without a
//! life, by its PID. The check works on Linux, for processes in the same PID namespace; a job in a
//! container with its own PIDs wrongly looks dead. So no program removes a job for this reason
//! alone.

use larder_control::Life;
use serde::Serialize;

/// Whether a job's process exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Liveness {
    Yes,
    No,
    /// The status has no PID, or the system does not report processes.
    Unknown,
}

/// Returns whether the process with this life exists, or, if the life is not known, a process with
/// this PID.
pub(crate) fn alive(pid: Option<u32>, life: Option<Life>) -> Liveness {
    if Life::this().is_none() {
        return Liveness::Unknown;
    }
    let is_there = match (life, pid) {
        (Some(life), _) => Life::of(life.pid()) == Some(life),
        (None, Some(pid)) => Life::of(pid).is_some(),
        (None, None) => return Liveness::Unknown,
    };
    if is_there {
        Liveness::Yes
    } else {
        Liveness::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_that_had_its_number_before_does_not() {
        let pid = Some(std::process::id());
        assert_eq!(alive(None, None), Liveness::Unknown);
        let Some(life) = Life::this() else {
            return;
        };
        assert_eq!(alive(pid, Some(life)), Liveness::Yes);
        assert_eq!(alive(pid, None), Liveness::Yes);
        let (pid, rest) = life
            .to_string()
            .split_once('-')
            .map(|(pid, rest)| (pid.to_owned(), rest.to_owned()))
            .unwrap();
        let (ticks, boot) = rest.split_once('-').unwrap();
        let earlier = format!("{pid}-{}-{boot}", ticks.parse::<u64>().unwrap() - 1);
        let other_boot = format!("{pid}-{ticks}-{:032x}", 7);
        for gone in [earlier, other_boot] {
            assert_eq!(alive(None, Some(gone.parse().unwrap())), Liveness::No);
        }
    }
}
