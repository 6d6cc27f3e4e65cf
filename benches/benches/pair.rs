//! Host time of one pair, a free and an alloc, by criterion.
//!
//! `cargo bench -p larder-benches --bench pair [-- --quick]`. One thread, no lock;
//! what is asked and how it is checked: `larder_cli::pair`.
//!
//! Good for finding out what a change to one contender does on a quiet machine.
//! To compare contenders use the bench `pair_rounds`: the clock of a shared machine
//! drifts between the runs of this one.
//!
//! Without `--bench`, as `cargo test --benches` runs it, only the fewest live blocks
//! are tried.

#![deny(unsafe_code)]

#[path = "pair/mod.rs"]
mod contenders;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use larder_cli::pair::{Failure, PairScript, Runner, settle};

use contenders::{KINDS, Kind};

/// Numbers of live blocks.
const LIVE: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];

/// Any number will do.
const SEED: u64 = 1;

fn pair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    let measures = std::env::args().any(|argument| argument == "--bench");
    for live in LIVE.into_iter().take(if measures { LIVE.len() } else { 1 }) {
        let Some(script) = PairScript::try_new(live, SEED) else {
            continue;
        };
        for kind in KINDS.into_iter().filter(|kind| live <= kind.max_live) {
            let mut table = Vec::new();
            let mut lent = Some(&mut table);
            // Built when criterion first asks, which it does not for a benchmark filtered out.
            let mut runner: Option<Box<dyn Runner + '_>> = None;
            group.bench_function(BenchmarkId::new(kind.name, live), |bencher| {
                if let Some(table) = lent.take() {
                    runner = Some(checked(settled(kind, &script, table)));
                }
                bencher.iter_custom(|pairs| {
                    let runner = runner.as_mut();
                    runner.map_or_else(Default::default, |runner| checked(runner.run(pairs)))
                });
            });
            if let Some(runner) = runner {
                checked(runner.finish());
            }
        }
    }
    group.finish();
}

/// A contender in its steady state.
fn settled<'a>(
    kind: Kind,
    script: &'a PairScript,
    table: &'a mut Vec<larder_core::Chunk>,
) -> Result<Box<dyn Runner + 'a>, Failure> {
    let mut runner = kind.build(script, table)?;
    settle(runner.as_mut())?;
    Ok(runner)
}

/// Criterion's closures cannot fail, so a failure ends the bench here.
fn checked<T>(result: Result<T, Failure>) -> T {
    result.unwrap_or_else(|failure| panic!("{failure}"))
}

criterion_group!(benches, pair);
criterion_main!(benches);
