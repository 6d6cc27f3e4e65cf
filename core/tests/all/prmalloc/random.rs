//! Ten thousand random traces: every plan is valid, and ours needs at most as much memory as upstream's best and at
//! least the live bytes.

use larder_core::pack::Lifetime;
use larder_core::pack::{Packer, validate};
use larder_core::prmalloc::{AllocStat, Interval};
use larder_model::OwnedPackTables;
use larder_model::Random;
use larder_model::prmalloc::{Fit, Plans};

use crate::prmalloc::books::{AnyPlans, align, check, max_live, plans};

const TRACES: u64 = 10_000;

/// Returns a trace as a pool records it: in logical ticks and in the order of the frees.
fn trace(seed: u64) -> Vec<AllocStat> {
    let mut random = Random::new(seed);
    let sizes = 1 + random.below(12);
    let max_live = 1 + random.below(10) as usize;
    let mut live: Vec<(u64, u64, u64)> = Vec::new();
    let mut stats = Vec::new();
    let events = 4 + random.below(90);
    for tick in 0..events {
        let frees = live.len() >= max_live || (!live.is_empty() && random.below(5) < 2);
        if frees {
            let (begin, bytes, log2) = live.swap_remove(random.index(live.len()));
            stats.push(AllocStat::new(begin, tick, bytes).aligned(align(1 << log2)));
        } else {
            let size = 1 + random.below(sizes);
            let bytes = 20_000 + size * 13_000 + random.below(2) * random.below(5000);
            live.push((tick, bytes, random.below(13)));
        }
    }
    for (end, (begin, bytes, log2)) in (events..).zip(live) {
        stats.push(AllocStat::new(begin, end, bytes).aligned(align(1 << log2)));
    }
    stats
}

/// The first of our two ways of planning, which sorts the lives.
const SORTED: Fit = Fit {
    touching_share: true,
    ..Fit::GPU
};

fn plan<P: AnyPlans>(mut plans: P, touching_share: bool, stats: &[AllocStat]) -> P {
    plans.round(stats);
    check(&plans, touching_share, stats);
    plans
}

fn upstream(fit: Fit, stats: &[AllocStat]) -> Plans {
    plan(Plans::new(fit, false), fit.touching_share, stats)
}

#[test]
fn f3_the_default_needs_at_most_what_upstream_needs_and_at_least_what_is_alive() {
    let mut ours = plans();
    let (mut sums, mut worse) = ([0; 4], 0);
    for seed in 1..=TRACES {
        let stats = trace(seed);
        ours.clear();
        ours = plan(ours, true, &stats);
        let (theirs, sorted) = (upstream(Fit::CPU, &stats), upstream(SORTED, &stats));
        for interval in Interval::ALL {
            let of_sorted = sorted.memory_bytes(interval);
            let of_theirs = theirs.memory_bytes(interval);
            // Ours is the smaller result of both ways, because no chunk of a bin is less aligned than its lives.
            assert_eq!(
                ours.memory_bytes(interval),
                of_sorted.min(of_theirs),
                "seed {seed}"
            );
        }
        let bytes = [
            max_live(&stats),
            ours.best().bytes,
            sorted.best().bytes,
            theirs.best().bytes,
        ];
        let [least, default, alone, upstream] = bytes;
        assert!(default <= upstream, "seed {seed}: {default} > {upstream}");
        assert!(default >= least, "seed {seed}: {default} < {least}");
        worse += u64::from(alone > upstream);
        for (sum, bytes) in sums.iter_mut().zip(bytes) {
            *sum += bytes;
        }
    }
    let [least, ours, alone, theirs] = sums;
    println!(
        "alive {least}, default {ours}, one candidate {alone}, upstream {theirs}; {worse} worse"
    );
    assert!(
        ours < alone && alone < theirs,
        "both ways are worth their trouble"
    );
}

#[test]
fn f3_a_packing_needs_at_most_what_upstream_needs_and_at_least_what_is_alive() {
    let mut tables = OwnedPackTables::new(128);
    let (mut optimal, mut hard) = (0, 0);
    for seed in 1..=TRACES {
        let stats = trace(seed);
        let theirs = upstream(Fit::CPU, &stats).best().bytes;
        let lifetimes: Vec<Lifetime> = stats
            .iter()
            .map(|stat| Lifetime {
                align: stat.align,
                ..Lifetime::new(stat.begin as u32, stat.end as u32, stat.bytes)
            })
            .collect();
        let mut packer = Packer::new(&lifetimes, tables.lend()).unwrap();
        packer.first();
        packer.improve(500);
        if packer.height() > theirs {
            hard += 1;
            packer.stop_at(theirs);
            packer.improve(100_000);
        }
        let height = packer.height();
        assert_eq!(
            validate(&lifetimes, packer.offsets()),
            Ok(height),
            "seed {seed}"
        );
        assert!(height <= theirs, "seed {seed}: {height} > {theirs}");
        assert!(height >= max_live(&stats), "seed {seed}");
        optimal += u64::from(packer.is_proven());
    }
    println!("{optimal} proven, {hard} took a longer search");
}

#[test]
fn f3_in_one_bin_sorted_lives_need_as_many_blocks_as_are_alive_at_once() {
    let mut sorted = plans();
    for seed in 1..=TRACES {
        let mut stats = trace(seed);
        stats.iter_mut().for_each(|stat| stat.bytes = 40_000);
        sorted.clear();
        sorted = plan(sorted, true, &stats);
        let blocks = sorted.best().bytes / 40_960;
        assert_eq!(blocks, max_live(&stats) / 40_000, "seed {seed}");
        let others = upstream(Fit::CPU, &stats).best().bytes / 40_960;
        assert!(blocks <= others, "seed {seed}");
    }
}

/// Plans four rounds of a step. Blocks know the lives of all rounds, or with `anew` only those of the last round.
fn four_rounds(plans: &mut impl AnyPlans, touching_share: bool, anew: bool, seed: u64) {
    let (mut former, mut known) = (0, Vec::new());
    for round in 0..4 {
        let later = |stat: AllocStat| AllocStat {
            begin: stat.begin + 1000 * round,
            end: stat.end + 1000 * round,
            ..stat
        };
        let stats: Vec<_> = trace(seed).into_iter().take(60).map(later).collect();
        plans.round(&stats);
        if anew {
            known.clear();
        }
        known.extend(stats);
        check(plans, touching_share, &known);
        let bytes = plans.memory_bytes(Interval::KiB4);
        assert!(bytes >= former, "seed {seed}");
        former = bytes;
    }
}

#[test]
fn a_second_round_of_the_same_step_is_valid_and_never_shrinks_the_plan() {
    let mut ours = plans();
    for seed in 1..=500 {
        ours.clear();
        four_rounds(&mut ours, true, true, seed);
        for fit in [Fit::CPU, Fit::GPU] {
            four_rounds(&mut Plans::new(fit, false), false, fit.anew, seed);
        }
    }
}

#[test]
fn blocks_that_live_across_rounds_get_places_of_their_own() {
    // Each block is freed in the next step, so two are alive at the start of a step, though each round has one free.
    let mut plans = plans();
    for round in 0..4 {
        plans.push(AllocStat::new(10 * round, 10 * round + 12, 40_000));
        plans.fit().unwrap();
    }
    assert_eq!(plans.memory_bytes(Interval::KiB4), 2 * 40_960);
}
