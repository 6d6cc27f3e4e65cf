//! The player of the steps' scripts: a [`World`] whose blocks have names.
//!
//! Sizes are in KiB, or in granules with the suffix `g`. `step` plays a step with a key, which is served from a known
//! shape without proof, and `unnamed` plays one without a key. A size allocates, and `-2` frees the second block of the
//! step. A block that stays may have a name, as in `cache=500`. An outcome is the changes in the statistics.

use std::collections::HashMap;
use std::fmt::Write;

use larder_core::steps::{StepConfig, StepStats};
use larder_core::{Align, Granule, Request};
use larder_model::StepSizes;

use super::world::{CONFIG, GRANULE, Id, KIB, PLENTY, World};
use crate::golden::{self, number, option};

pub(crate) struct Player {
    world: World,
    blocks: HashMap<String, Id>,
    /// The blocks that the last step left live.
    left: Vec<Id>,
    /// The offsets of the last step's blocks.
    offsets: Vec<Option<u64>>,
    saved: Vec<u8>,
}

fn bytes(text: &str) -> u64 {
    match text.strip_suffix('g') {
        Some(granules) => number(granules) * GRANULE,
        None => number(text) * KIB,
    }
}

fn changes(before: StepStats, now: StepStats) -> String {
    let mut words = String::new();
    for (name, before, now) in [
        ("steps", before.steps, now.steps),
        ("known", before.known_steps, now.known_steps),
        ("hits", before.hits, now.hits),
        ("misses", before.misses, now.misses),
        ("unplanned", before.unplanned, now.unplanned),
        ("deviations", before.deviations, now.deviations),
        ("layouts", before.layouts, now.layouts),
        ("rejected", before.rejected, now.rejected),
        ("kept out", before.kept_out, now.kept_out),
    ] {
        if before != now {
            write!(words, "; {name} {}", now - before).unwrap();
        }
    }
    words
}

impl golden::Player for Player {
    fn new() -> Self {
        Self {
            world: World::new(),
            blocks: HashMap::new(),
            left: Vec::new(),
            offsets: Vec::new(),
            saved: Vec::new(),
        }
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        if operation == "world" {
            self.world = Self::world(words);
            self.blocks.clear();
        }
        let before = self.world.stats();
        let outcome = self.answer(operation, words);
        assert_eq!(self.world.steps.check_layouts(), Ok(()));
        // Every step is counted, so that `steps 1` is left out.
        let changes = changes(before, self.world.stats());
        outcome + changes.strip_prefix("; steps 1").unwrap_or(&changes)
    }
}

impl Player {
    /// Creates a world over one range, with the given table sizes and settings, or over `pages`.
    fn world(words: &[&str]) -> World {
        if words.contains(&"pages") {
            return World::paged();
        }
        let option = |key| option(words, key).map(number);
        let table = |key, plenty| option(key).map_or(plenty, |count| count as usize);
        let lent = StepSizes {
            tags: table("tags", PLENTY.tags),
            asked: table("asked", PLENTY.asked),
            inherited: table("inherited", PLENTY.inherited),
            shapes: table("shapes", PLENTY.shapes),
            entries: table("entries", PLENTY.entries),
            obstacles: table("obstacles", PLENTY.obstacles),
        };
        let config = StepConfig {
            threshold_bytes: option("threshold").map_or(CONFIG.threshold_bytes, |at| at * KIB),
            cap_bytes: option("cap").map_or(CONFIG.cap_bytes, |cap| cap * GRANULE),
            ..CONFIG
        };
        World::with(config, lent)
    }

    fn answer(&mut self, operation: &str, words: &[&str]) -> String {
        match operation {
            "world" => {}
            "step" => self.step(1, words),
            "unnamed" => self.step(0, words),
            "begin" => self
                .world
                .begin_keyed(words.first().map_or(1, |key| key.parse().unwrap())),
            "done" => self.world.end(),
            "start-over" => self.world.steps.start_over(),
            "alloc" => return self.alloc(words),
            "free" => self.free(words),
            "limit" => self
                .world
                .set_limit(words[0].parse().map_or(u64::MAX, |kib: u64| kib * KIB)),
            "save" => {
                self.saved.clear();
                self.world
                    .steps
                    .save(GRANULE, 1, |bytes| self.saved.extend_from_slice(bytes));
            }
            "load" => self.world.steps.load(GRANULE, 1, &self.saved).unwrap(),
            "show" => return self.show(words[0]),
            other => panic!("no operation is {other}"),
        }
        String::new()
    }

    fn step(&mut self, key: u64, words: &[&str]) {
        self.world.begin_keyed(key);
        let mut ids: Vec<Id> = Vec::new();
        (self.left, self.offsets) = (Vec::new(), Vec::new());
        for word in words {
            if let Some(number) = word.strip_prefix('-') {
                let id = ids[number.parse::<usize>().unwrap() - 1];
                self.world.free(id);
                self.left.retain(|other| *other != id);
                continue;
            }
            let (name, size) = word.split_once('=').unwrap_or(("", word));
            let id = self.world.alloc(bytes(size));
            self.offsets.push(self.world.offset(id));
            self.blocks.insert(name.into(), id);
            self.left.push(id);
            ids.push(id);
        }
        self.world.end();
    }

    /// Allocates blocks of `name=size`, aligned to `align` KiB. The name of a former block may be used again.
    fn alloc(&mut self, words: &[&str]) -> String {
        let align = option(words, "align").map_or(GRANULE, bytes);
        for (name, size) in words.iter().filter_map(|word| word.split_once('=')) {
            let request = Request::new(bytes(size)).aligned(Align::new(align).unwrap());
            let Some(id) = self.world.try_alloc(&request) else {
                return "refused".into();
            };
            self.blocks.insert(name.into(), id);
        }
        String::new()
    }

    /// Frees blocks by name; `left` stands for the blocks that the last step left live.
    fn free(&mut self, words: &[&str]) {
        for word in words {
            match self.blocks.get(*word) {
                Some(id) => self.world.free(*id),
                None if *word == "left" => self.left.iter().for_each(|id| self.world.free(*id)),
                None => panic!("no block is {word}"),
            }
        }
    }

    fn show(&self, word: &str) -> String {
        let kib = |bytes: u64| format!("{}", bytes / KIB);
        match word {
            "held" => kib(self.world.held()),
            "calls" => format!("{}", self.world.calls()),
            "planned" => {
                let planned = self.world.steps.planned_bytes(Granule::DEFAULT);
                planned.map_or("nothing".into(), kib)
            }
            "places" => {
                let places = self.offsets.iter().map(|at| at.map_or("out".into(), kib));
                places.collect::<Vec<_>>().join(" ")
            }
            block => self
                .world
                .offset(self.blocks[block])
                .map_or("out".into(), kib),
        }
    }
}
