//! Random programs, one for each family. Families differ in block sizes, lifetimes, live bytes and
//! streams.
//!
//! A program allocates until it has its family's live bytes, stays near that level, and ends as its
//! lifetimes determine. A program's name contains its family and seed, so a name always stands for
//! the same program.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Display};
use std::io;

use larder_trace::{Trace, TraceError};

use crate::random::Random;
use crate::replay::{RecordedTape, TapeWriter};

/// Number of families, out of 480 combinations.
const FAMILIES: u64 = 48;

/// Default number of operations after which a program ends, which takes a few operations more.
pub(crate) const OPERATIONS: u32 = 5000;

/// Distribution of block sizes, relative to the peak live bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizeMix {
    Constant,
    Few,
    LogNormal,
    Uniform,
    /// A slightly larger block is allocated and then the old one freed, as when a cache is grown by
    /// concatenation.
    Growing,
}

/// The rule for the block to free next, and for the blocks freed at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FreeOrder {
    /// Frees the newest block, and all blocks at the end.
    Stack,
    /// Frees a random block, and no block at the end.
    Random,
    /// Frees all blocks in random order once no more fit, like a step.
    Step,
    /// Frees a random young block, and no block at the end. One block in sixteen is kept. While
    /// kept blocks exceed half of the peak, the oldest of them is freed instead.
    Tail,
}

const SIZES: [(SizeMix, &str); 5] = [
    (SizeMix::Constant, "constant"),
    (SizeMix::Few, "few"),
    (SizeMix::LogNormal, "lognormal"),
    (SizeMix::Uniform, "uniform"),
    (SizeMix::Growing, "growing"),
];
const LIVES: [(FreeOrder, &str); 4] = [
    (FreeOrder::Stack, "stack"),
    (FreeOrder::Random, "random"),
    (FreeOrder::Step, "step"),
    (FreeOrder::Tail, "tail"),
];
const PEAKS: [(u64, &str); 6] = [
    (320 << 20, "320MiB"),
    (1 << 30, "1GiB"),
    (3 << 30, "3GiB"),
    (8 << 30, "8GiB"),
    (24 << 30, "24GiB"),
    (64 << 30, "64GiB"),
];
const STREAMS: [u32; 4] = [1, 2, 4, 8];

/// The properties of a program: one value of each of the lists above, and a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Family {
    choice: [usize; 4],
    seed: u64,
}

/// Returns all families. The next family is always the first combination whose pairs of values have
/// been chosen least often so far.
pub(crate) fn all() -> Vec<Family> {
    let combinations = (0..480).map(|n| [n % 5, n / 5 % 4, n / 20 % 6, n / 120]);
    let combinations: Vec<[usize; 4]> = combinations.collect();
    let mut chosen: HashMap<Pair, u32> = HashMap::new();
    let mut families = Vec::new();
    for seed in 1..=FAMILIES {
        let often = |choice: &&[usize; 4]| -> u32 {
            let counts = pairs(choice).map(|pair| chosen.get(&pair).copied().unwrap_or(0));
            counts.map(|count| count * count).sum()
        };
        let Some(&choice) = combinations.iter().min_by_key(often) else {
            break;
        };
        pairs(&choice).for_each(|pair| *chosen.entry(pair).or_default() += 1);
        families.push(Family { choice, seed });
    }
    families
}

/// One value from each of two lists; each value is a list and an index.
type Pair = [(usize, usize); 2];

fn pairs(choice: &[usize; 4]) -> impl Iterator<Item = Pair> {
    let lists = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    lists
        .into_iter()
        .map(|(a, b)| [(a, choice[a]), (b, choice[b])])
}

impl Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [size, life, peak, streams] = self.choice;
        let (size, life, peak) = (SIZES[size].1, LIVES[life].1, PEAKS[peak].1);
        write!(
            f,
            "{size}-{life}-{peak}-{}s-{}",
            STREAMS[streams], self.seed
        )
    }
}

impl Family {
    /// Generates the family's program of `operations` operations. Returns the trace and its tape.
    pub(crate) fn tape(
        &self,
        operations: u32,
    ) -> Result<(Trace, io::Result<RecordedTape>), TraceError> {
        let program = Program::new(*self).play(operations);
        let name = format!("{self}.trace");
        let trace = larder_trace::read(name.as_ref(), program.text.as_bytes())?;
        let mut writer = TapeWriter::new();
        let mut streams = program.streams.into_iter();
        for event in trace.events() {
            let stream = match event {
                larder_trace::Event::Alloc { .. } => streams.next(),
                _ => None,
            };
            writer.write(*event, stream.unwrap_or(0));
        }
        Ok((trace, writer.finish()))
    }
}

/// A live block.
#[derive(Clone, Copy)]
struct FamilyBlock {
    id: usize,
    bytes: u64,
    stream: u8,
}

/// A program being generated.
struct Program {
    sizes: SizeMix,
    life: FreeOrder,
    peak_bytes: u64,
    stream_count: u32,
    random: Random,
    young: Vec<FamilyBlock>,
    kept: VecDeque<FamilyBlock>,
    live_bytes: u64,
    kept_bytes: u64,
    /// The trace, and the stream of each block.
    text: String,
    streams: Vec<u8>,
    operations: u32,
    steps: u32,
}

impl Program {
    fn new(family: Family) -> Self {
        let [size, life, peak, streams] = family.choice;
        Self {
            sizes: SIZES[size].0,
            life: LIVES[life].0,
            peak_bytes: PEAKS[peak].0,
            stream_count: STREAMS[streams],
            random: Random::new(family.seed),
            young: Vec::new(),
            kept: VecDeque::new(),
            live_bytes: 0,
            kept_bytes: 0,
            text: String::new(),
            streams: Vec::new(),
            operations: 0,
            steps: 0,
        }
    }

    /// Generates the program. Once its live bytes have reached the peak, they follow a random walk
    /// below it; a stack is unwound deeply.
    fn play(mut self, operations: u32) -> Self {
        let lowest = match self.life {
            FreeOrder::Stack => 0.3,
            FreeOrder::Random | FreeOrder::Tail => 0.8,
            FreeOrder::Step => 1.0,
        };
        let (mut level, mut full) = (1.0_f64, false);
        if self.life == FreeOrder::Step {
            self.mark();
        }
        while self.operations < operations {
            if full {
                level = (level + (self.random.unit() - 0.5) / 20.0).clamp(lowest, 1.0);
            }
            let most = (self.peak_bytes as f64 * level) as u64;
            let old = self.old();
            let bytes = self.bytes(old);
            if self.live_bytes + bytes <= most {
                let stream = old.map(|old| old.stream);
                self.alloc(bytes, stream);
                old.into_iter().for_each(|old| self.free(old));
                continue;
            }
            full = true;
            // A block that should have grown is freed instead.
            match old.or_else(|| self.take()) {
                Some(block) if self.life == FreeOrder::Step => {
                    self.young.push(block);
                    self.end_step();
                }
                Some(block) => self.free(block),
                None => break,
            }
        }
        match self.life {
            FreeOrder::Stack => self.free_young(),
            FreeOrder::Step => self.end_step(),
            FreeOrder::Random | FreeOrder::Tail => {}
        }
        self
    }

    /// Takes the block that grows next, if any.
    fn old(&mut self) -> Option<FamilyBlock> {
        (self.sizes == SizeMix::Growing && self.random.below(6) > 0).then(|| self.take())?
    }

    /// Returns the size of the next block, in place of the `old` one, if any.
    fn bytes(&mut self, old: Option<FamilyBlock>) -> u64 {
        let peak = self.peak_bytes;
        let mut between =
            |least: u64, most: u64| least + (self.random.unit() * (most - least) as f64) as u64;
        match self.sizes {
            SizeMix::Constant => peak / 400,
            SizeMix::Few => peak / [8192, 2048, 700, 300, 100][self.random.index(5)],
            SizeMix::LogNormal => {
                let bytes = self.random.log_normal(peak as f64 / 1000.0, 1.2);
                (bytes as u64).clamp(512, peak / 16)
            }
            SizeMix::Uniform => between(peak / 1000, peak / 16),
            SizeMix::Growing => {
                let old = old.map_or(0, |old| old.bytes);
                old + between(peak / 4096, peak / 820)
            }
        }
    }

    /// Takes the block to free next.
    fn take(&mut self) -> Option<FamilyBlock> {
        if self.kept_bytes > self.peak_bytes / 2 {
            let oldest = self.kept.pop_front()?;
            self.kept_bytes -= oldest.bytes;
            return Some(oldest);
        }
        match self.young.len() {
            0 => None,
            _ if self.life == FreeOrder::Stack => self.young.pop(),
            young => Some(self.young.swap_remove(self.random.index(young))),
        }
    }

    fn alloc(&mut self, bytes: u64, stream: Option<u8>) {
        let stream = stream.unwrap_or_else(|| self.random.below(self.stream_count) as u8);
        let id = self.streams.len();
        self.text.push_str(&format!("a {id} {bytes}\n"));
        self.streams.push(stream);
        self.operations += 1;
        self.live_bytes += bytes;
        let block = FamilyBlock { id, bytes, stream };
        if self.life == FreeOrder::Tail && self.random.below(16) == 0 {
            self.kept_bytes += bytes;
            self.kept.push_back(block);
        } else {
            self.young.push(block);
        }
    }

    fn free(&mut self, block: FamilyBlock) {
        self.text.push_str(&format!("f {}\n", block.id));
        self.operations += 1;
        self.live_bytes -= block.bytes;
    }

    fn free_young(&mut self) {
        while let Some(block) = self.take() {
            self.free(block);
        }
    }

    fn end_step(&mut self) {
        self.free_young();
        self.mark();
    }

    fn mark(&mut self) {
        self.text.push_str(&format!("s {}\n", self.steps));
        self.steps += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use larder_trace::Event;

    use super::*;

    /// Returns a family whose name contains `part`.
    fn family(part: &str) -> Family {
        let mut families = all().into_iter();
        families
            .find(|family| family.to_string().contains(part))
            .unwrap()
    }

    fn trace(family: &Family, operations: u32) -> Trace {
        family.tape(operations).unwrap().0
    }

    fn live_at_the_end(trace: &Trace) -> usize {
        let frees = trace.events().iter();
        let frees = frees.filter(|event| matches!(event, Event::Free { .. }));
        trace.allocations() as usize - frees.count()
    }

    #[test]
    fn every_pair_of_values_has_a_family_and_none_has_many() {
        let families = all();
        let mut often: HashMap<Pair, u32> = HashMap::new();
        for family in &families {
            pairs(&family.choice).for_each(|pair| *often.entry(pair).or_default() += 1);
        }
        assert_eq!(often.len(), 20 + 30 + 20 + 24 + 16 + 24);
        assert!(often.values().all(|&count| count <= 5), "{often:?}");
        let choices: HashSet<_> = families.iter().map(|family| family.choice).collect();
        assert_eq!(choices.len(), families.len());
    }

    #[test]
    fn programs_are_as_long_as_asked_and_reach_what_they_have_live() {
        for family in all() {
            let (trace, written) = family.tape(OPERATIONS).unwrap();
            let events = trace.events().len() as u32;
            assert!(
                (OPERATIONS..2 * OPERATIONS).contains(&events),
                "{family}: {events}"
            );
            let live = written.unwrap().peak_live_bytes as f64;
            let peak = PEAKS[family.choice[2]].0 as f64;
            // A growing block briefly exists twice.
            assert!(
                (0.85..1.05).contains(&(live / peak)),
                "{family}: {}",
                live / peak
            );
        }
    }

    #[test]
    fn a_seed_is_one_program_and_a_longer_one_begins_as_the_shorter() {
        let family = family("random");
        let (short, long) = (trace(&family, 1000), trace(&family, 4000));
        assert_eq!(short, trace(&family, 1000));
        assert!(long.events().starts_with(short.events()));
    }

    #[test]
    fn a_program_ends_as_its_lives_say() {
        for family in all() {
            let trace = trace(&family, OPERATIONS);
            let life = LIVES[family.choice[1]].0;
            let freed = matches!(life, FreeOrder::Stack | FreeOrder::Step);
            assert_eq!(live_at_the_end(&trace) == 0, freed, "{family}");
            let mark = matches!(trace.events().last(), Some(Event::Step { .. }));
            assert_eq!(mark, life == FreeOrder::Step, "{family}");
        }
    }

    #[test]
    fn what_grows_comes_larger_before_the_old_one_goes() {
        let trace = trace(&family("growing-random"), 2000);
        let mut bytes = Vec::new();
        let mut grew = 0;
        for pair in trace.events().windows(2) {
            if let Event::Alloc { bytes: new, .. } = pair[0] {
                bytes.push(new);
                if let Event::Free { id } = pair[1] {
                    grew += u32::from(bytes[id as usize] < new);
                }
            }
        }
        assert!(grew > 600, "{grew}");
    }

    #[test]
    fn all_streams_have_blocks_and_half_of_a_tail_is_old() {
        let family = family("-8s-");
        let streams = Program::new(family).play(2000).streams;
        assert_eq!(streams.iter().collect::<HashSet<_>>().len(), 8);
        let program = Program::new(self::family("constant-tail")).play(OPERATIONS);
        let first_quarter = program.streams.len() / 4;
        let old = program.kept.iter().chain(&program.young);
        assert!(old.filter(|block| block.id < first_quarter).count() > 10);
        assert!(program.kept_bytes * 3 > program.peak_bytes);
    }
}
