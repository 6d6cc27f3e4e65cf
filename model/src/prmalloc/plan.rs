//! The plan, which fits lifetimes into the blocks of size bins. There are three ways of classing sizes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use larder_core::prmalloc::{AllocStat, Best, Classes, Interval};
use larder_core::{Align, round_up};

/// The way in which lifetimes are fitted into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// Whether lifetimes are fitted by beginning, the longest first among equals. If not, they are fitted in the order
    /// of the frees.
    pub sorted: bool,
    /// Whether a lifetime may begin in a block at the tick at which another one ends. No form of upstream allows this.
    pub touching_share: bool,
    /// Whether the lifetimes and virtual blocks of earlier rounds are forgotten.
    pub anew: bool,
    /// Whether chunks are rounded up to the bin's alignment when memory is counted.
    pub aligned_chunks: bool,
}

impl Fit {
    /// The way of the CPU form.
    pub const CPU: Self = Self {
        sorted: false,
        touching_share: false,
        anew: false,
        aligned_chunks: false,
    };

    /// The way of the GPU form.
    pub const GPU: Self = Self {
        sorted: true,
        touching_share: false,
        anew: true,
        aligned_chunks: true,
    };

    /// Returns whether `a` is over when `b` begins. A lifetime of no ticks counts as one tick long.
    fn apart(self, a: &AllocStat, b: &AllocStat) -> bool {
        a.end < b.begin || self.touching_share && a.end == b.begin && a.begin < a.end
    }
}

/// A bin: the blocks of one size class.
#[derive(Debug)]
pub struct Bin {
    /// The largest alignment of its lifetimes.
    pub align: Align,
    /// Its blocks, oldest first, as indexes into [`Plan::blocks`].
    pub blocks: Vec<usize>,
    /// Blocks of larger bins that it may use, oldest first: one entry for each lifetime that was fitted into such a
    /// block.
    pub virtuals: Vec<usize>,
}

/// A block, with the lifetimes that it serves.
#[derive(Debug)]
pub struct Block {
    /// Its bin's class.
    pub class: u64,
    /// The lifetimes by beginning; no two overlap.
    pub lives: Vec<AllocStat>,
}

/// The plan for one way of classing sizes.
#[derive(Debug)]
pub struct Plan {
    classes: Classes,
    fit: Fit,
    /// The bins by class.
    pub bins: BTreeMap<u64, Bin>,
    /// All blocks, oldest first.
    pub blocks: Vec<Block>,
}

impl Plan {
    /// Creates an empty plan.
    pub fn new(classes: Classes, fit: Fit) -> Self {
        Self {
            classes,
            fit,
            bins: BTreeMap::new(),
            blocks: Vec::new(),
        }
    }

    /// Fits the lifetimes of a round into blocks, from the largest bin down. Returns whether the round was stable, that
    /// is, whether no bin needed another block.
    fn round(&mut self, stats: &[AllocStat]) -> bool {
        if self.fit.anew {
            self.blocks.iter_mut().for_each(|block| block.lives.clear());
            self.bins.values_mut().for_each(|bin| bin.virtuals.clear());
        }
        let classes = self.classes;
        let with_class = |stat: &AllocStat| Some((classes.class_of(stat.bytes)?, *stat));
        let mut order: Vec<(u64, AllocStat)> = stats.iter().filter_map(with_class).collect();
        for (class, stat) in &order {
            let bin = self.bins.entry(*class).or_insert(Bin {
                align: Align::ONE,
                blocks: Vec::new(),
                virtuals: Vec::new(),
            });
            bin.align = bin.align.max(stat.align);
        }
        if self.fit.sorted {
            order.sort_by_key(|(_, stat)| (stat.begin, Reverse(stat.end)));
        }
        order.sort_by_key(|(class, _)| Reverse(*class));
        let before = self.blocks.len();
        for (class, stat) in order {
            self.place(class, stat);
        }
        self.blocks.len() == before
    }

    /// Fits a lifetime into the first block that is free throughout: one of the bin's own, or else one of a larger bin,
    /// from the smallest up. If there is none, the bin gets a new block.
    fn place(&mut self, class: u64, stat: AllocStat) {
        let last = if self.classes.shares() {
            u64::MAX
        } else {
            class
        };
        let mut found = None;
        for (other, bin) in self.bins.range(class..=last) {
            if *other == class || self.suits(*other, bin, stat.align) {
                let block = bin.blocks.iter().find(|block| self.takes(**block, &stat));
                found = block.map(|block| (*other, *block));
            }
            if found.is_some() {
                break;
            }
        }
        let (lender, block) = found.unwrap_or((class, self.blocks.len()));
        if found.is_none() {
            let lives = Vec::new();
            self.blocks.push(Block { class, lives });
            self.bin_mut(class).blocks.push(block);
        }
        let lives = &mut self.blocks[block].lives;
        let at = lives.partition_point(|life| life.begin <= stat.begin);
        lives.insert(at, stat);
        if lender != class {
            let lender = self.bin_mut(lender);
            lender.align = lender.align.max(stat.align);
            self.bin_mut(class).virtuals.push(block);
        }
    }

    fn bin_mut(&mut self, class: u64) -> &mut Bin {
        self.bins.get_mut(&class).expect("opened before")
    }

    /// Returns whether a bin's blocks can have this alignment without growing.
    fn suits(&self, class: u64, bin: &Bin, align: Align) -> bool {
        align <= bin.align || self.chunk_bytes(class).is_multiple_of(align.bytes())
    }

    fn takes(&self, block: usize, stat: &AllocStat) -> bool {
        let lives = &self.blocks[block].lives;
        let at = lives.partition_point(|life| life.begin <= stat.begin);
        let (before, after) = lives.split_at(at);
        before.last().is_none_or(|life| self.fit.apart(life, stat))
            && after.first().is_none_or(|life| self.fit.apart(stat, life))
    }

    fn chunk_bytes(&self, class: u64) -> u64 {
        self.classes.chunk_bytes(class).unwrap_or(u64::MAX)
    }

    /// Returns the distance between blocks in a slab: the chunk, rounded up to the bin's alignment.
    pub fn stride_bytes(&self, class: u64) -> u64 {
        round_up(self.chunk_bytes(class), self.bins[&class].align).unwrap_or(u64::MAX)
    }

    /// Returns the bytes that the plan needs, as the form counts them.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes(self.fit.aligned_chunks)
    }

    /// Returns the bytes of a slab for the plan.
    pub fn slab_bytes(&self) -> u64 {
        self.bytes(true)
    }

    fn bytes(&self, aligned: bool) -> u64 {
        self.bins.iter().fold(0, |sum: u64, (class, bin)| {
            let bytes = if aligned {
                self.stride_bytes(*class)
            } else {
                self.chunk_bytes(*class)
            };
            sum.saturating_add(bytes.saturating_mul(bin.blocks.len() as u64))
        })
    }
}

/// The plans of all three ways, and the plan of sizes up to 32 KiB if the form has one.
#[derive(Debug)]
pub struct Plans {
    above: [Plan; 3],
    /// The plan of sizes up to 32 KiB.
    pub small: Option<Plan>,
}

impl Plans {
    /// Creates empty plans.
    pub fn new(fit: Fit, with_small: bool) -> Self {
        Self {
            above: Interval::ALL.map(|interval| Plan::new(Classes::Above(interval), fit)),
            small: with_small.then(|| Plan::new(Classes::Small, fit)),
        }
    }

    /// Fits the lifetimes of a round into blocks, in each way. Returns whether no bin needed another block.
    pub fn round(&mut self, stats: &[AllocStat]) -> bool {
        let mut is_stable = true;
        for plan in self.above.iter_mut().chain(&mut self.small) {
            is_stable &= plan.round(stats);
        }
        is_stable
    }

    /// Returns the plan of an interval.
    pub fn of(&self, interval: Interval) -> &Plan {
        &self.above[interval as usize]
    }

    /// Returns the cheapest plan; the smallest interval wins a tie.
    pub fn best(&self) -> Best {
        let bytes = |interval| self.of(interval).memory_bytes();
        let interval = Interval::ALL.into_iter().min_by_key(|way| bytes(*way));
        let interval = interval.unwrap_or(Interval::KiB4);
        Best {
            interval,
            bytes: bytes(interval),
        }
    }
}
