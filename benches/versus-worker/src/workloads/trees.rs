//! Binary trees of boxes: built, walked and dropped next to one tree that stays.

use std::thread;

use crate::clock::{Clock, Outcome};
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of levels of every tree.
const LEVELS: u32 = 14;
/// Number of trees of each thread in a full run.
const TREES: u32 = 400;

struct Tree {
    number: u64,
    left: Option<Box<Self>>,
    right: Option<Box<Self>>,
}

impl Tree {
    fn build(levels: u32, number: u64) -> Self {
        let branch = |side| {
            (levels > 1).then(|| Box::new(Self::build(levels - 1, number.wrapping_mul(2) + side)))
        };
        Self {
            number,
            left: branch(0),
            right: branch(1),
        }
    }

    fn sum(&self) -> u64 {
        let branch = |tree: &Option<Box<Self>>| tree.as_ref().map_or(0, |tree| tree.sum());
        let below = branch(&self.left).wrapping_add(branch(&self.right));
        below.wrapping_add(self.number)
    }
}

/// Each thread builds its own trees.
pub fn trees(threads: u64, scale: Scale) -> Outcome {
    let trees = scale.of(TREES) as u64;
    let mut tally = Tally::default();
    let clock = Clock::start();
    if threads == 1 {
        tally = grow(1, trees);
    } else {
        thread::scope(|scope| {
            let growing: Vec<_> = (1..=threads)
                .map(|seed| scope.spawn(move || grow(seed, trees)))
                .collect();
            for thread in growing {
                match thread.join() {
                    Ok(part) => tally.join(&part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
    }
    let nodes = threads * (trees + 1) * ((1 << LEVELS) - 1);
    clock.stop(nodes, tally.answer())
}

fn grow(seed: u64, trees: u64) -> Tally {
    let mut tally = Tally::default();
    let stays = Tree::build(LEVELS, seed);
    for number in 0..trees {
        let root = seed + number;
        tally.read(Tree::build(LEVELS, root).sum());
        tally.wrote(sum_of_numbers(root));
    }
    tally.read(stays.sum());
    tally.wrote(sum_of_numbers(seed));
    tally
}

/// Returns the sum of a tree's numbers: a level of width w below root r has r*w to r*w + w-1.
fn sum_of_numbers(root: u64) -> u64 {
    (0..LEVELS).fold(0_u64, |sum, level| {
        let width = 1_u64 << level;
        let level = (root * width)
            .wrapping_mul(width)
            .wrapping_add(width * (width - 1) / 2);
        sum.wrapping_add(level)
    })
}
