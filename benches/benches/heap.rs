//! Time of one request to a heap without an operating system, by criterion.
//!
//! `cargo bench -p larder-benches --bench heap [-- FILTER --quick]`. One thread, each heap behind its
//! lock; what is asked: `heap/script.rs`. Every contender first runs each script once with all
//! contents checked.
//!
//! Good for finding out what a change does on a quiet machine. To compare contenders use the bench
//! `heap_rounds`: the clock of a shared machine drifts between the runs of this one.
//!
//! Without `--bench`, as `cargo test --benches` runs it, only short scripts over the small region
//! are tried.

#[path = "heap/mod.rs"]
#[expect(dead_code, reason = "the bench `heap_rounds` measures more")]
mod heaps;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use heaps::contenders::Kind;
use heaps::fault::Fault;
use heaps::runner::Runner;
use heaps::script::Script;

/// Regions in MiB.
const REGIONS_MIB: [usize; 2] = [1, 64];
/// Requests of a script.
const LENGTH: usize = 20_000;
/// Requests of a script that is only tried.
const TRIED_LENGTH: usize = 500;

fn heap(criterion: &mut Criterion) {
    let measures = std::env::args().any(|argument| argument == "--bench");
    let (regions, length) = match measures {
        true => (&REGIONS_MIB[..], LENGTH),
        false => (&REGIONS_MIB[..1], TRIED_LENGTH),
    };
    for mib in regions {
        for script in Script::all(mib << 20, length) {
            compare(criterion, *mib, &script);
        }
    }
}

/// All contenders on one script; who has no room for it is left out, and that is said.
fn compare(criterion: &mut Criterion, mib: usize, script: &Script) {
    let mut group = criterion.benchmark_group(format!("{mib} MiB, {}", script.name));
    group.throughput(Throughput::Elements(script.ops.len() as u64));
    for kind in Kind::over(mib << 20) {
        let mut runner = match checked(kind, mib << 20, script) {
            Err(fault @ Fault::OutOfMemory { .. }) => {
                eprintln!(
                    "{mib} MiB, {}: {} left out, {fault}",
                    script.name, kind.name
                );
                continue;
            }
            result => passed(kind, result),
        };
        group.bench_function(BenchmarkId::from_parameter(kind.name), |bencher| {
            bencher.iter_custom(|times| -> Duration {
                (0..times).map(|_| passed(kind, runner.run(script))).sum()
            });
        });
    }
    group.finish();
}

/// A contender that has run the script with all contents checked.
fn checked(kind: Kind, region_bytes: usize, script: &Script) -> Result<Box<dyn Runner>, Fault> {
    let mut runner = kind.build(region_bytes)?;
    if kind.is_heap {
        runner.check(script)?;
    }
    Ok(runner)
}

/// Criterion's closures cannot fail, so a failure ends the bench here.
fn passed<T>(kind: Kind, result: Result<T, Fault>) -> T {
    result.unwrap_or_else(|fault| panic!("{}: {fault}", kind.name))
}

criterion_group!(benches, heap);
criterion_main!(benches);
