//! Parts that the tests of the process heap share: random numbers, blocks that check their
//! contents, and the process's memory.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test uses its part"
)]

mod held;
mod shuffle;

pub use held::{Held, churn};
pub use shuffle::shuffle;

use std::process::Command;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// Returns whether tests run in their long form: with `LARDER_ROUNDS=all` (`./check.sh long`).
pub fn is_long() -> bool {
    let is_all = |name: &&str| std::env::var_os(name).is_some_and(|word| word == "all");
    ["LARDER_ROUNDS", CHILDS_ROUNDS].iter().any(is_all)
}

/// `LARDER_ROUNDS` has this name in a child, whose heap would report the original as unknown.
const CHILDS_ROUNDS: &str = "HEAP_TEST_ROUNDS";

/// A command that starts this program again.
pub fn this_program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if is_long() {
        command
            .env_remove("LARDER_ROUNDS")
            .env(CHILDS_ROUNDS, "all");
    }
    command
}

/// Returns the number of repetitions of a test: `all` in the long form, an eighth of it otherwise.
pub fn rounds(all: usize) -> usize {
    if is_long() { all } else { all.div_ceil(8) }
}

/// A small random number generator (xorshift); the seed of a failure reproduces it.
pub struct Random(u64);

impl Random {
    /// Spreads the seed, so that the numbers of neighboring seeds differ from the start.
    pub fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }

    /// Returns a size of at most 2 MiB; most are small.
    pub fn size(&mut self) -> usize {
        match self.next(40) {
            0 => self.next(2 * MIB) + 1,
            1..4 => self.next(128 * KIB) + 1,
            4..12 => self.next(4000) + 1,
            _ => self.next(200) + 1,
        }
    }
}

/// Returns whether all bytes are `fill`: the first is, and each equals the previous one.
pub fn is_filled(bytes: &[u8], fill: u8) -> bool {
    let Some((&first, rest)) = bytes.split_first() else {
        return true;
    };
    first == fill && rest == &bytes[..rest.len()]
}

#[cfg(target_os = "linux")]
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse::<u64>().unwrap() * 1024
}
