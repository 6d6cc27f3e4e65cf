//! The player of the pages' scripts: one allocator over a device that checks every call.
//!
//! Sizes and places are in pages, or in bytes with the suffix `b`. An outcome is the answer, then the driver calls
//! (sizes of the handles created and released, places made accessible), then each number that changed: pages held,
//! cached mappings, lost pages, and pages that the device holds for plans under way.

use std::collections::HashMap;

use larder_core::pages::{Backing, PageConfig, PagePlan};
use larder_core::{
    Addr, AddrRange, BestFit, Block, BlockAllocator, EventNumber, Request, StreamId, StreamPoint,
};
use larder_model::PageDevice;

use super::bench::{BASE, Bench, PAGE, PLENTY, config};
use super::scenes::scene;
use super::words::{bytes, calls, place, range, refusal, request, stream, yes};
use crate::golden::{self, Changes, option};

/// A plan under way, and its request if it is for a block.
struct Open {
    plan: PagePlan,
    request: Option<Request>,
}

pub(crate) struct Player {
    pub(crate) bench: Bench,
    blocks: HashMap<String, Block>,
    ranges: HashMap<String, AddrRange>,
    plans: HashMap<String, Open>,
    /// Single pages in use, in ascending order of address.
    teeth: Vec<Block>,
    /// The pinned ranges.
    pinned: Vec<AddrRange>,
    /// The latest event named.
    event: u64,
    saved: Vec<(char, u64, u64)>,
    changes: Changes,
}

impl golden::Player for Player {
    fn new() -> Self {
        Self::over(&["64"])
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        drop(self.bench.device().take_calls());
        let mut outcome = self.answer(operation, words);
        self.bench.check();
        let made = self.bench.device().take_calls();
        // The calls of these operations are not printed; the changes that they leave are enough.
        if !["begin", "comb", "gaps", "holes", "looks", "pieces"].contains(&operation) {
            outcome += &calls(&made);
        }
        outcome + &self.changes()
    }
}

impl Player {
    pub(crate) fn after(name: &str) -> Self {
        let mut player = <Self as golden::Player>::new();
        golden::Player::play(&mut player, &format!("begin {name}"));
        player
    }

    /// Starts over: a pool with the given number of pages of addresses, and with the options that follow.
    fn over(words: &[&str]) -> Self {
        let backing = match option(words, "budget") {
            Some(budget) => Backing::Budget(bytes(budget)),
            None if words.contains(&"in-place") => Backing::InPlace,
            None => Backing::Billed,
        };
        let mut config: PageConfig = config(words[0].parse().unwrap(), backing);
        config.unit_bytes = option(words, "unit").map_or(config.unit_bytes, bytes);
        config.limit_bytes = option(words, "limit").map_or(config.limit_bytes, bytes);
        config.floor_bytes = option(words, "floor").map_or(config.floor_bytes, bytes);
        let capacity = option(words, "device").map_or(PLENTY * PAGE, bytes);
        let mut tables = [256, 256, 1024];
        for (table, key) in tables.iter_mut().zip(["chunks", "handles", "mappings"]) {
            *table = option(words, key).map_or(*table, |count| count.parse().unwrap());
        }
        let device = PageDevice::new(PAGE, capacity);
        device.keep_calls();
        let [chunks, handles, mappings] = tables;
        Self {
            bench: Bench::on(device, config, chunks, handles, mappings),
            blocks: HashMap::new(),
            ranges: HashMap::new(),
            plans: HashMap::new(),
            teeth: Vec::new(),
            pinned: Vec::new(),
            event: 0,
            saved: Vec::new(),
            changes: Changes::default(),
        }
    }

    fn answer(&mut self, operation: &str, words: &[&str]) -> String {
        match operation {
            "pool" => *self = Self::over(words),
            "begin" => self.begin(words),
            "alloc" => return self.alloc(words),
            "pieces" => return self.pieces(words),
            "at" => return self.at(words),
            "back" => {
                let layout = range(words[0]);
                let max = option(words, "max").map_or(u64::MAX, bytes);
                let point = option(words, "after").map(|text| self.point(text));
                return yes(self.bench.paged.back(layout, layout, max, point));
            }
            "free" => self.free(words),
            "done" => {
                let point = self.point(words[0]);
                self.bench.complete(point);
            }
            "release" => {
                let released = self.bench.paged.release(bytes(words[0]));
                return format!("{}", released / PAGE);
            }
            "limit" => return self.limit(words[0]),
            "adjust" => {
                let excess = self.bench.paged.adjust(bytes(words[0]));
                return format!("excess {}", excess / PAGE);
            }
            "refuse" => self.bench.device().refuse_in(words[0].parse().ok()),
            "pin" | "unpin" => self.pin(operation == "pin", words),
            "plan" => return self.plan(words),
            "call" => self.call(words),
            "finish" => return self.finish(words[0]),
            "drop" => {
                let plan = self.plans.remove(words[0]).unwrap().plan;
                assert_eq!(self.bench.paged.get_mut().finish(plan), None);
            }
            "comb" | "tear" | "tooth" | "gaps" => return self.comb(operation, words),
            "holes" => self.holes(words[0].parse().unwrap()),
            "looks" => return self.looks(&request(words[0], words)),
            "save" => self.saved = self.bench.without_unmapped_end(),
            "show" => return self.show(words),
            other => panic!("no operation is {other}"),
        }
        String::new()
    }

    /// Plays a scene, with further options for its pool.
    fn begin(&mut self, words: &[&str]) {
        for (number, line) in scene(words[0]).lines().enumerate() {
            let options = if number == 0 { &words[1..] } else { &[] };
            let words: Vec<&str> = line
                .split_whitespace()
                .chain(options.iter().copied())
                .collect();
            self.answer(words[0], &words[1..]);
            self.bench.check();
        }
    }

    /// Returns the point that `stream:event` names. The event is a number, or `later`: the one after the latest named.
    fn point(&mut self, text: &str) -> StreamPoint {
        let (stream, event) = text.split_once(':').unwrap();
        self.event = match event {
            "later" => self.event + 1,
            number => number.parse().unwrap(),
        };
        StreamPoint {
            stream: StreamId::new(stream.parse().unwrap()),
            event: EventNumber::new(self.event),
        }
    }

    fn changes(&mut self) -> String {
        let stats = self.bench.paged.page_stats();
        let held = self.bench.paged.stats().reserved_bytes / PAGE;
        let lost = stats.lost_bytes / PAGE;
        let on_device = self.bench.device().held_bytes() / PAGE;
        let numbers = [
            ("held", held),
            ("cached", stats.cached_mappings.into()),
            ("lost", lost),
            ("under way", on_device.saturating_sub(held + lost)),
        ];
        let changes = numbers.map(|(name, now)| self.changes.note(name, now));
        changes.concat()
    }

    /// Allocates blocks of `name=size` in turn.
    fn alloc(&mut self, words: &[&str]) -> String {
        let mut answers = Vec::new();
        for (name, size) in words.iter().filter_map(|word| word.split_once('=')) {
            match self.bench.try_alloc(&request(size, words)) {
                Ok(block) => {
                    answers.push(place(block.addr()));
                    self.enter(name, block);
                }
                Err(error) => answers.push(refusal(error)),
            }
        }
        answers.join(" ")
    }

    fn enter(&mut self, name: &str, block: Block) {
        self.ranges.insert(name.into(), block.range());
        let former = self.blocks.insert(name.into(), block);
        assert_eq!(former, None, "{name} is in use");
    }

    /// Allocates blocks as [`alloc`](Self::alloc) does, but each block after the first that has several pages is one
    /// handle at the end of the range, because memory for a layout comes in handles of up to a 16th of the held bytes.
    fn pieces(&mut self, words: &[&str]) -> String {
        let mut answers = Vec::new();
        for (number, word) in words.iter().enumerate() {
            let (_, size) = word.split_once('=').unwrap();
            let stats = self.bench.paged.page_stats();
            let end = BASE + stats.address_bytes;
            let is_piece = number > 0 && size != "1";
            if is_piece {
                let range = AddrRange::new(Addr::new(end), bytes(size)).unwrap();
                assert!(self.bench.paged.back(range, range, u64::MAX, None));
                assert_eq!(self.bench.paged.page_stats().handles, stats.handles + 1);
            }
            answers.push(self.alloc(&[word]));
            assert!(
                !is_piece || answers[number] == place(Addr::new(end)),
                "{word}"
            );
        }
        answers.join(" ")
    }

    /// Allocates `name=place:size`, for any stream, or for the stream after `on`; the block is used on that stream, or
    /// on the stream after `use`.
    fn at(&mut self, words: &[&str]) -> String {
        let (name, place) = words[0].split_once('=').unwrap();
        let on = stream(words, "on");
        match self.bench.paged.alloc_at(range(place), None, on) {
            Ok(block) => {
                let user = on.or(stream(words, "use")).unwrap_or(StreamId::MAIN);
                self.bench.device().begin_use(block.range(), user);
                self.enter(name, block);
                String::new()
            }
            Err(error) => refusal(error),
        }
    }

    fn free(&mut self, words: &[&str]) {
        let after = option(words, "after").map(|text| self.point(text));
        for name in words.iter().take_while(|word| **word != "after") {
            let block = self
                .blocks
                .remove(*name)
                .unwrap_or_else(|| panic!("{name} is free"));
            self.bench.free(block, after);
        }
    }

    /// Sets the limit: to a size, to the `held` bytes, to those plus a size (`held+SIZE`), or to `none`.
    fn limit(&mut self, word: &str) -> String {
        let held = self.bench.paged.stats().reserved_bytes;
        let limit = match (word, word.strip_prefix("held+")) {
            ("none", _) => u64::MAX,
            ("held", _) => held,
            (_, Some(more)) => held + bytes(more),
            _ => bytes(word),
        };
        match self.bench.paged.get_mut().set_limit(limit) / PAGE {
            0 => String::new(),
            excess => format!("excess {excess}"),
        }
    }

    /// Pins blocks in use, and unpins their ranges, even once the blocks are free; or pins and unpins any range.
    fn pin(&mut self, pins: bool, words: &[&str]) {
        for word in words {
            let range = self
                .ranges
                .get(*word)
                .copied()
                .unwrap_or_else(|| range(word));
            if !pins {
                // The device would panic on an extra unpin.
                if let Some(at) = self.pinned.iter().position(|pinned| *pinned == range) {
                    self.pinned.remove(at);
                    self.bench.device().unpin(range);
                }
                self.bench.paged.get_mut().unpin(range);
                continue;
            }
            self.pinned.push(range);
            self.bench.device().pin(range);
            match self.blocks.get(*word) {
                Some(block) => self.bench.paged.get_mut().pin(block).unwrap(),
                None => self.bench.paged.get_mut().pin_range(range),
            }
        }
    }

    /// Makes a plan for `name=size`, or for `name release size`.
    fn plan(&mut self, words: &[&str]) -> String {
        let (name, plan, request) = match words[0].split_once('=') {
            Some((name, size)) => {
                let request = request(size, words);
                (name, Some(self.bench.plan(&request)), Some(request))
            }
            None => {
                let plan = self.bench.paged.get_mut().plan_release(bytes(words[2]));
                (words[0], plan, None)
            }
        };
        let Some(plan) = plan else {
            return "none".into();
        };
        self.plans.insert(name.into(), Open { plan, request });
        String::new()
    }

    /// Makes the next call of each plan. With `all`, makes all remaining calls, taking the plans in turn; with `until`,
    /// makes calls until each plan has released the given number of pages.
    fn call(&mut self, words: &[&str]) {
        let until = option(words, "until").map(bytes);
        let all = words.contains(&"all");
        loop {
            let mut goes_on = false;
            for name in words {
                let Some(open) = self.plans.get_mut(*name) else {
                    break;
                };
                if until.is_none_or(|until| open.plan.released_bytes() < until) {
                    goes_on |= self.bench.call(&mut open.plan).is_some();
                }
            }
            if !goes_on || !all && until.is_none() {
                return;
            }
        }
    }

    /// Makes all remaining calls of a plan. Its block, if there is one, gets the plan's name.
    fn finish(&mut self, name: &str) -> String {
        let Open { plan, request } = self.plans.remove(name).unwrap();
        let Some(block) = self.bench.finish(plan) else {
            return "no block".into();
        };
        self.bench.begin(&block, &request.unwrap());
        let at = place(block.addr());
        self.enter(name, block);
        at
    }

    fn comb(&mut self, operation: &str, words: &[&str]) -> String {
        match operation {
            // Blocks of one page each. The last one stays in use.
            "comb" => {
                let count: u64 = words[0].parse().unwrap();
                let page = Request::new(PAGE).without_wait();
                self.teeth = (0..count)
                    .map(|_| self.bench.try_alloc(&page).unwrap())
                    .collect();
                self.teeth.pop();
            }
            "tooth" => {
                let tooth = self.teeth.pop().unwrap();
                self.bench.free(tooth, None);
            }
            // Frees two pages that are not adjacent, and asks for two adjacent ones.
            "tear" => {
                for _ in 0..2 {
                    self.comb("tooth", &[]);
                    self.teeth.pop();
                }
                return match self.bench.try_alloc(&Request::new(2 * PAGE).without_wait()) {
                    Ok(block) => place(block.addr()),
                    Err(error) => refusal(error),
                };
            }
            // Uses every other page and leaves the rest unmapped. Starts at the end, so that nothing is created ahead.
            _ => {
                let count: u64 = words[0].parse().unwrap();
                for page in (0..count).rev().step_by(2) {
                    assert_eq!(self.at(&[&format!("gap{page}={page}:1")]), "");
                }
            }
        }
        String::new()
    }

    /// Makes the given number of one-page holes. None contains a whole handle, because all pages come in at most 256
    /// handles.
    fn holes(&mut self, count: u64) {
        self.alloc(&[&format!("all={}", 2 * count)]);
        self.free(&["all"]);
        let pool = self.bench.paged.get_mut();
        let page = Request::new(PAGE).without_wait();
        let blocks: Vec<_> = (0..2 * count)
            .map(|_| pool.alloc(&page).unwrap().block)
            .collect();
        for block in blocks.into_iter().step_by(2) {
            pool.free(block).unwrap();
        }
        assert_eq!(u64::from(pool.report().free_chunks), count);
    }

    /// Returns the number of chunks examined for one request. Reading the counter itself searches too, so its cost is
    /// subtracted.
    fn looks(&mut self, request: &Request) -> String {
        let before = self.bench.paged.page_stats().looks;
        let _block = self.bench.paged.alloc(request);
        let [after, again] = [(); 2].map(|()| self.bench.paged.page_stats().looks);
        format!("{}", after - before - (again - after))
    }

    fn show(&mut self, words: &[&str]) -> String {
        let user = stream(words, "on");
        let pool = self.bench.paged.get_mut();
        match words[0] {
            "picture" => {
                let picture = self.bench.picture();
                let parts = picture
                    .iter()
                    .map(|(kind, at, size)| format!("{kind}{at}+{size}"));
                parts.collect::<Vec<_>>().join(" ")
            }
            "saved" => yes(self.bench.without_unmapped_end() == self.saved),
            "peak" => format!("{}", self.bench.device().peak_bytes() / PAGE),
            "planned" => format!("{}", pool.report().planned_bytes / PAGE),
            "idle" => format!("{}", pool.page_stats().idle_bytes / PAGE),
            "addresses" => format!("{}", pool.page_stats().address_bytes / PAGE),
            "lost" => format!("{} mappings", pool.page_stats().lost_mappings),
            "calls" => format!("{}", self.bench.device().calls().total()),
            "excess" => format!("{}", pool.excess_bytes() / PAGE),
            "missing" => format!("{}b", pool.missing_bytes(range(words[1]), user)),
            "mapped" => yes(pool.is_mapped(range(words[1]))),
            "stable" => {
                let stats = self.bench.paged.pool_stats();
                format!(
                    "{} of {}",
                    stats.stable_bytes / PAGE,
                    stats.pool_bytes / PAGE
                )
            }
            "blocks" => {
                let stats = pool.stats();
                let (peak, largest) = (stats.peak_live_bytes / PAGE, stats.largest_bytes / PAGE);
                format!(
                    "{} blocks, {peak} pages at once, {largest} in one",
                    stats.allocations
                )
            }
            other => panic!("nothing is called {other}"),
        }
    }
}
