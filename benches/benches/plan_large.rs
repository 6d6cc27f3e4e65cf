//! Time and memory of the first packing of 60,000 lifetimes.
//!
//! `cargo bench -p larder-benches --bench plan_large`

use std::time::Duration;

use larder_cli::plan::{Effort, Problem, solve};
use larder_core::pack::Lifetime;
use larder_model::Random;

const LIFETIMES: u32 = 60_000;

/// Returns the lifetimes of a training step. One of each layer lives until the backward pass, and the others are
/// short.
fn step(random: &mut Random) -> Vec<Lifetime> {
    let layers = LIFETIMES / 4;
    let mut lifetimes = Vec::new();
    for layer in 0..layers {
        let (forth, back) = (layer * 2, layers * 4 - layer * 2);
        let kilobytes = 1 << random.below(8);
        let bytes = kilobytes * 1000;
        lifetimes.push(Lifetime::new(forth, back, bytes));
        lifetimes.push(Lifetime::new(forth, forth + 2, 3 * bytes));
        lifetimes.push(Lifetime::new(back - 1, back + 1, 2 * bytes));
        lifetimes.push(Lifetime::new(back - 2, back + 2, bytes / 2));
    }
    lifetimes
}

/// Returns lifetimes in no order, each of which lasts for up to a fiftieth of the whole time.
fn mix(random: &mut Random) -> Vec<Lifetime> {
    let one = |_| {
        let begin = random.below(u64::from(LIFETIMES)) as u32;
        let ticks = random.below(u64::from(LIFETIMES) / 50) as u32 + 1;
        Lifetime::new(begin, begin + ticks, random.below(1 << 20) + 1)
    };
    (0..LIFETIMES).map(one).collect()
}

/// Returns the process's peak memory in KiB, if the system reports it.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() {
    let mut random = Random::new(1);
    let problems = [("step", step(&mut random)), ("mix", mix(&mut random))];
    for (name, lifetimes) in problems {
        let problem = Problem {
            name: name.to_owned(),
            ids: (0..lifetimes.len()).map(|id| id.to_string()).collect(),
            lifetimes,
        };
        let effort = Effort {
            time: Duration::ZERO,
            steps: 0,
            stop_at: 0,
        };
        match solve(&problem, &effort) {
            Ok(row) => println!(
                "{name}: {} lifetimes, {:.3} s, height over live {:.4}, valid {}, peak {} MiB",
                row.buffers,
                row.first_seconds,
                row.height_over_live.unwrap_or(1.0),
                row.valid,
                peak_kib().unwrap_or(0) / 1024,
            ),
            Err(error) => println!("{name}: {error}"),
        }
    }
}
