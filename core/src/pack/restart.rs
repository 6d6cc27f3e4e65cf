//! Short runs under many heuristics: chooses the next run, with its order and budget.

use super::choose::Heuristic;
use super::item::Item;
use super::tables::PackTables;

/// Number of steps in the shortest run for a small part of the problem.
const MIN_RUN_STEPS: u64 = 500;

/// The key by which a run ranks items; larger keys come first.
#[derive(Clone, Copy, Debug)]
enum Rank {
    Bytes,
    Ticks,
    Area,
    SectionArea,
    Live,
    Neighbours,
    LiveThenArea,
    LiveThenTicks,
}

const RANKS: [Rank; 8] = [
    Rank::Bytes,
    Rank::Ticks,
    Rank::Area,
    Rank::SectionArea,
    Rank::Live,
    Rank::Neighbours,
    Rank::LiveThenArea,
    Rank::LiveThenTicks,
];

const HEURISTICS: [Heuristic; 8] = [
    Heuristic::LevelAndSpare { level: 8 },
    Heuristic::LevelAndSpare { level: 4 },
    Heuristic::LevelAndSpare { level: 2 },
    Heuristic::LevelAndSpare { level: 1 },
    Heuristic::LastDeath { level: 1 },
    Heuristic::Deaths,
    Heuristic::Deaths,
    Heuristic::SpareByDeaths,
];

/// The share of randomness in the ranks, from 0 to 1.
const NOISES: [f64; 4] = [0.0, 0.1, 0.3, 0.6];

/// Weight that puts live bytes before anything else.
const LIVE_FIRST: f64 = 1e6;
/// Maximum ticks of a lifetime.
const TICKS: f64 = 4_294_967_296.0;

/// Chooses runs. The same seed chooses the same runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restarts {
    state: u64,
    runs: u64,
}

impl Restarts {
    /// Creates the chooser at the first run.
    pub(super) const fn new() -> Self {
        Self { state: 0, runs: 0 }
    }

    /// Ranks the items of the loaded part for one more run. Returns its heuristic and steps.
    pub(super) fn next(&mut self, tables: &mut PackTables<'_>, items: usize) -> (Heuristic, u64) {
        self.runs += 1;
        let unit = MIN_RUN_STEPS.max(items as u64 / 2);
        let steps = unit.saturating_mul(luby(self.runs));
        let rank = RANKS[self.below(RANKS.len())];
        let heuristic = HEURISTICS[self.below(HEURISTICS.len())];
        let noise = NOISES[self.below(NOISES.len())];
        let max = tables.items[..items].iter().map(|item| item.live).max();
        let max = max.unwrap_or(1).max(1) as f64;
        for index in 0..items {
            let chance = 1.0 + noise * (self.fraction() - 0.5);
            tables.keys[index] = key(rank, &tables.items[index], max) * chance;
            tables.by_key[index] = index as u32;
        }
        let (keys, all) = (&*tables.keys, &*tables.items);
        tables.by_key[..items].sort_unstable_by(|&left, &right| {
            keys[right as usize]
                .total_cmp(&keys[left as usize])
                .then(all[left as usize].id.cmp(&all[right as usize].id))
        });
        for (rank, &index) in tables.by_key[..items].iter().enumerate() {
            tables.items[index as usize].rank = rank as u32;
        }
        (heuristic, steps)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.random() % count as u64) as usize
    }

    /// Returns a random number from 0 to 1, 1 excluded.
    fn fraction(&mut self) -> f64 {
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the next number of the generator SplitMix64 (Steele, Lea and Flood).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }
}

fn key(rank: Rank, item: &Item, max: f64) -> f64 {
    let bytes = item.bytes as f64;
    let ticks = f64::from(item.ticks);
    let live = item.live as f64;
    match rank {
        Rank::Bytes => bytes,
        Rank::Ticks => ticks,
        Rank::Area => bytes * ticks,
        Rank::SectionArea => bytes * f64::from(item.hi - item.lo),
        Rank::Live => live,
        Rank::Neighbours => f64::from(item.neighbours),
        Rank::LiveThenArea => live / max * LIVE_FIRST + bytes / max * ticks / TICKS,
        Rank::LiveThenTicks => live / max * LIVE_FIRST + ticks / TICKS,
    }
}

/// Returns the number at place `at`, counted from 1, of the sequence 1 1 2 1 1 2 4 1 1 2 …, in which the runs of each
/// length take about the same time in total.
const fn luby(mut at: u64) -> u64 {
    loop {
        let bits = 64 - at.leading_zeros();
        let full = 1u64 << (bits - 1);
        if at == 2 * full - 1 {
            return full;
        }
        at -= full - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::luby;

    #[test]
    fn run_lengths_are_those_of_luby() {
        let expected = [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8, 1];
        for (at, &length) in expected.iter().enumerate() {
            assert_eq!(luby(at as u64 + 1), length);
        }
    }
}
