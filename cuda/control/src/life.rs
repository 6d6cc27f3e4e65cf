//! [`Life`]: one run of a program. It keeps the next run with the same name from obeying the orders of this
//! run.
//!
//! A PID alone is not enough, since the system reuses it. Together with the process's start in ticks after
//! the machine's start, and the random boot ID, it identifies one process uniquely, whatever the clock says.
//!
//! This works on Linux, among processes that see each other's PIDs. A process in a container with its own PID
//! namespace looks dead from outside.

use core::fmt;
use core::str::FromStr;
use std::fs;
use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ParseError;

/// One process, from its start to its end. Its text has the PID, the tick of the start and the boot ID, as in
/// `4711-8412345-0f8fad5bd9cb469fa16570867728950e`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Life {
    pid: u32,
    start_ticks: u64,
    boot: u128,
}

impl Life {
    /// Returns the life of the process that now has this PID; `None` if there is none, if it has ended but
    /// has not been waited for, or if the system does not report it. Reads a file in `/proc`, and another one
    /// the first time.
    ///
    /// ```
    /// use larder_control::Life;
    ///
    /// // The number of no process: the largest is below 2^22.
    /// assert_eq!(Life::of(u32::MAX), None);
    /// ```
    pub fn of(pid: u32) -> Option<Self> {
        static BOOT: OnceLock<Option<u128>> = OnceLock::new();
        let boot = (*BOOT.get_or_init(boot))?;
        // Read as bytes, since the process's name may end in the middle of a character.
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Some(Self {
            pid,
            start_ticks: start_ticks(&String::from_utf8_lossy(&stat))?,
            boot,
        })
    }

    /// Returns the life of this process; `None` if the system does not report it.
    pub fn this() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Returns the PID of the process.
    pub const fn pid(self) -> u32 {
        self.pid
    }
}

/// Returns whether the process with this PID belongs to a user; `None` if there is no such process, or the
/// system does not report it.
pub fn is_of_user(pid: u32, user: u32) -> Option<bool> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // The real, effective, saved and file-system user.
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(
        users
            .split_ascii_whitespace()
            .any(|own| own.parse() == Ok(user)),
    )
}

/// Returns the ID of this boot.
fn boot() -> Option<u128> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// Returns the start of a process, from its line of `/proc/<pid>/stat`; `None` if it has ended.
fn start_ticks(stat: &str) -> Option<u64> {
    // The name, in parentheses, may have any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    // The first thread may have ended before the others.
    let has_ended = matches!(state, "Z" | "X" | "x") && threads <= 1;
    (!has_ended).then_some(fields.nth(1)?.parse().ok()?)
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pid,
            start_ticks,
            boot,
        } = self;
        write!(f, "{pid}-{start_ticks}-{boot:032x}")
    }
}

impl FromStr for Life {
    type Err = ParseError;

    /// Parses exactly the text that [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parse = || {
            let mut parts = text.splitn(3, '-');
            Some(Self {
                pid: parts.next()?.parse().ok()?,
                start_ticks: parts.next()?.parse().ok()?,
                boot: u128::from_str_radix(parts.next()?, 16).ok()?,
            })
        };
        parse()
            .filter(|life: &Self| life.to_string() == text)
            .ok_or(ParseError::Life)
    }
}

impl Serialize for Life {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Life {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a line with this state, number of threads and start.
    fn stat(state: &str, threads: u64, start: u64) -> String {
        let between = ["1"; 16].join(" ");
        format!("7 (a ) Z (b) {state} {between} {threads} 0 {start} 9 9")
    }

    #[test]
    fn a_stat_line_is_read_behind_the_name_whatever_that_is() {
        assert_eq!(start_ticks(&stat("S", 3, 500)), Some(500));
        assert_eq!(start_ticks(&stat("Z", 1, 500)), None);
        // The first thread has ended, and another one keeps the memory.
        assert_eq!(start_ticks(&stat("Z", 2, 500)), Some(500));
        let cut = [
            b"7 (entrainement-n\xc3".as_slice(),
            &stat("S", 3, 500).into_bytes()[6..],
        ]
        .concat();
        assert_eq!(start_ticks(&String::from_utf8_lossy(&cut)), Some(500));
        assert_eq!(start_ticks("7 (a) S"), None);
        assert_eq!(start_ticks(""), None);
    }

    #[test]
    fn a_life_is_one_process_and_its_text_is_read_back() {
        let Some(life) = Life::this() else {
            return;
        };
        assert_eq!(Life::this(), Some(life));
        assert_eq!(life.pid(), std::process::id());
        assert_eq!(life.to_string().parse(), Ok(life));
        let json = serde_json::to_string(&life).unwrap();
        assert_eq!(serde_json::from_str::<Life>(&json).unwrap(), life);
        let text = life.to_string();
        for wrong in [
            "",
            "1",
            "1-2",
            "1-2-3",
            "1-2-g",
            &format!("+{text}"),
            &text.to_uppercase(),
        ] {
            let is_same = *wrong == text;
            assert!(is_same || wrong.parse::<Life>().is_err(), "{wrong}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_whose_name_ends_in_the_middle_of_a_letter_lives() {
        // The process has the name of its first thread, but the number of any thread is accepted.
        let named = std::thread::Builder::new().name("entrainement-n\u{e9}".to_owned());
        let found = named.spawn(|| {
            let own = fs::read_link("/proc/thread-self").unwrap();
            let own: u32 = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
            assert!(String::from_utf8(fs::read(format!("/proc/{own}/stat")).unwrap()).is_err());
            Life::of(own)
        });
        assert!(found.unwrap().join().unwrap().is_some());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_its_users_and_nobody_elses() {
        use std::os::unix::fs::MetadataExt;
        let own = fs::metadata("/proc/self").unwrap().uid();
        let pid = std::process::id();
        assert_eq!(is_of_user(pid, own), Some(true));
        assert_eq!(is_of_user(pid, own + 1), Some(false));
        assert_eq!(is_of_user(u32::MAX, own), None);
    }

    #[test]
    fn a_process_that_ended_has_no_life_even_before_its_parent_has_asked() {
        if Life::this().is_none() {
            return;
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while Life::of(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(Life::of(child.id()), None);
    }
}
