//! The player of the rows of a script.

use std::collections::BTreeMap;

use larder_core::{AddrRange, Align, Block, EventNumber, Grant, Request, Resize, StreamId};
use larder_model::Call;

use super::number::{granules, number, point, stream};
use super::subject::{Refusal, Subject};
use crate::common::{GRANULE, UNIT, range};

pub(crate) type Outcome<T = ()> = Result<T, String>;

/// One allocator, the base of a case's relative addresses, and the live blocks.
pub(crate) struct Player {
    subject: Subject,
    base: u64,
    blocks: BTreeMap<String, Block>,
}

/// The words of a row: the verb and its arguments, the stated answer, and the stated calls.
struct Row<'t> {
    words: Vec<&'t str>,
    answer: Vec<&'t str>,
    calls: Option<&'t str>,
}

impl<'t> Row<'t> {
    fn read(text: &'t str) -> Self {
        let (row, calls) = match text.split_once('|') {
            Some((row, calls)) => (row, Some(calls.trim())),
            None => (text, None),
        };
        let (words, answer) = row.split_once("->").unwrap_or((row, ""));
        Self {
            words: words.split_whitespace().collect(),
            answer: answer.split_whitespace().collect(),
            calls,
        }
    }

    fn value(&self, key: &str) -> Outcome<Option<u64>> {
        let values = self.words.iter().filter_map(|word| word.split_once('='));
        let mut values = values.filter(|(name, _)| *name == key);
        values.next().map(|(_, value)| number(value)).transpose()
    }

    fn stream(&self) -> Option<u8> {
        self.words[1..].iter().find_map(|word| stream(word))
    }

    fn plain(&self) -> Vec<&'t str> {
        let words = self.words[1..].iter().copied();
        let is_option = |word: &str| {
            word.contains('=') || ["nowait", "unplanned"].contains(&word) || stream(word).is_some()
        };
        words.filter(|word| !is_option(word)).collect()
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:x?}, found {found:x?}"))
}

impl Player {
    /// Makes a player for each allocator of a `pool` row; `full` fills a fixed pool with blocks of one granule.
    pub(crate) fn all(row: &str) -> Outcome<Vec<Self>> {
        let mut players = Vec::new();
        for (subject, base) in Subject::all(row)? {
            let blocks = BTreeMap::new();
            let mut player = Self {
                subject,
                base,
                blocks,
            };
            if row.ends_with(" full") {
                let holes = player.subject.holes();
                let bytes: u64 = holes.iter().map(|hole| hole.1).sum();
                for i in 0..bytes / GRANULE {
                    player.try_row(&format!("alloc b{i} 1g -> at +{i}g"))?;
                }
            }
            players.push(player);
        }
        Ok(players)
    }

    /// Plays one row, and panics if it fails.
    #[track_caller]
    pub(crate) fn row(&mut self, text: &str) {
        if let Err(what) = self.try_row(text) {
            panic!("{text}: {what}\n{}", self.subject.picture());
        }
    }

    /// Returns the number that `is key=N` compares.
    #[track_caller]
    pub(crate) fn number(&mut self, key: &str) -> u64 {
        self.subject.number(key).expect("a number")
    }

    /// Plays rows. An error contains the line number and the text of its row.
    pub(super) fn play(&mut self, rows: &[(usize, String)]) -> Outcome {
        let mut rows = rows;
        while let Some(((line, text), rest)) = rows.split_first() {
            rows = rest;
            if let Some(times) = text.strip_prefix("repeat ") {
                let times = number(times)?;
                let end = rest.iter().position(|(_, text)| text == "end");
                let (body, behind) = rest.split_at(end.expect("an end"));
                for round in 1..=times {
                    let numbered = |(line, text): &(usize, String)| {
                        (*line, text.replace("$n", &round.to_string()))
                    };
                    self.play(&body.iter().map(numbered).collect::<Vec<_>>())?;
                }
                rows = &behind[1..];
                continue;
            }
            self.try_row(text)
                .map_err(|what| format!("{line}: {text}\n{what}\n{}", self.subject.picture()))?;
        }
        Ok(())
    }

    /// Frees all remaining blocks, each with a check of the invariants.
    pub(crate) fn end(&mut self) -> Outcome {
        for (name, block) in core::mem::take(&mut self.blocks) {
            let freed = self.subject.free(block, None)?;
            freed.map_err(|_| format!("{name} cannot be freed"))?;
        }
        Ok(())
    }

    pub(crate) fn try_row(&mut self, text: &str) -> Outcome {
        let row = Row::read(text);
        let answers = [
            "alloc", "free", "resize", "place", "region", "limit", "trim",
        ];
        if !row.answer.is_empty() && !answers.contains(&row.words[0]) {
            return Err("it has no answer".into());
        }
        self.subject.take_calls();
        match row.words[0] {
            "alloc" => self.alloc(&row),
            "free" => self.free(&row),
            "resize" => self.resize(&row),
            "place" => self.place(&row),
            "region" => self.region(&row),
            "done" => match point(row.words[1])? {
                Some((stream, event)) => self.subject.pair()?.complete(stream, event),
                None => Err("done sN@EVENT".into()),
            },
            "safe" => self.safe(number(row.words[1])?),
            "limit" => self.limit(&row),
            "set-limit" => self.subject.pair()?.set_limit(number(row.words[1])?),
            "trim" => {
                let released = self.subject.trim()?;
                self.stated(&row, released)
            }
            "clear" => self.subject.clear(),
            "source" => self.source(&row),
            "holes" => self.holes(&row),
            "sizes" => {
                let sizes = self.subject.holes().into_iter().map(|hole| hole.1);
                expect("sizes", &sizes.collect(), &numbers(&row.words[1..])?)
            }
            "regions" => {
                let regions = self.subject.regions().into_iter();
                let sizes = regions.map(|region| region.bytes()).collect();
                expect("regions", &sizes, &numbers(&row.words[1..])?)
            }
            "is" => row.words[1..].iter().try_for_each(|fact| {
                let (key, value) = fact.split_once('=').ok_or("KEY=NUMBER")?;
                expect(key, &self.subject.number(key)?, &number(value)?)
            }),
            "block" => self.block(&row),
            "device" | "host" | "antman" | "joint" => {
                let counters = self.subject.both_sides()?.tuple(row.words[0]);
                let counters = counters.unwrap_or_default().to_vec();
                expect(row.words[0], &counters, &numbers(&row.words[1..])?)
            }
            verb => Err(format!("no verb {verb:?}")),
        }?;
        match row.calls {
            Some(calls) => expect("calls", &self.subject.take_calls(), &read_calls(calls)?),
            None => Ok(()),
        }
    }

    /// Compares a number with the one that the row states, if any.
    fn stated(&self, row: &Row<'_>, found: u64) -> Outcome {
        match row.answer.last() {
            Some(stated) => expect(row.words[0], &found, &number(stated)?),
            None => Ok(()),
        }
    }

    /// Reads an address; `+N` and `-N` are relative to the first region.
    fn addr(&self, text: &str) -> Outcome<u64> {
        let from = if text.starts_with(['+', '-']) {
            self.base
        } else {
            0
        };
        Ok(from.wrapping_add(number(text)?))
    }

    fn read_range(&self, at: &str, bytes: &str) -> Outcome<AddrRange> {
        Ok(range(self.addr(at)?, number(bytes)?))
    }

    fn take(&mut self, name: &str) -> Outcome<Block> {
        let block = self.blocks.remove(name);
        block.ok_or_else(|| format!("no block {name:?}"))
    }

    /// Returns everything observable if the row states a refusal.
    fn before(&mut self, row: &Row<'_>) -> String {
        match row.answer.first() {
            None | Some(&("at" | "wait" | "bytes" | "on")) => String::new(),
            Some(_) => self.subject.picture(),
        }
    }

    /// Compares a refusal with the stated one. Nothing may have changed unless the row also states `changed`.
    fn refused(&mut self, row: &Row<'_>, refusal: &Refusal, before: &str) -> Outcome {
        let Some((word, facts)) = row.answer.split_first() else {
            return Err(format!("refused: {}", refusal.name));
        };
        if *word != "refused" {
            expect("refused", &refusal.name.as_str(), word)?;
        }
        if facts.contains(&"changed") {
            return Ok(());
        }
        for fact in facts {
            let (key, value) = fact.split_once('=').ok_or("KEY=NUMBER")?;
            let found = refusal.numbers.iter().find(|(name, _)| *name == key);
            let found = found.ok_or_else(|| format!("no number {key:?}"))?;
            expect(key, &found.1, &number(value)?)?;
        }
        let after = self.subject.picture();
        match after == before {
            true => Ok(()),
            false => Err(format!(
                "the refusal has changed something; before:\n{before}"
            )),
        }
    }

    fn alloc(&mut self, row: &Row<'_>) -> Outcome {
        let mut request = Request::new(0);
        request.stream = StreamId::new(row.stream().unwrap_or(0));
        request.may_wait = !row.words.contains(&"nowait");
        let unplanned = row.words.contains(&"unplanned");
        request.freed_by = row.value("by")?.map(EventNumber::new);
        if let Some(align) = row.value("align")? {
            request.align = Align::new(align).ok_or("no power of two")?;
        }
        for pair in row.plain().chunks(2) {
            let [name, bytes] = pair else {
                return Err("NAME SIZE".into());
            };
            request.bytes = number(bytes)?;
            let before = self.before(row);
            match self.subject.alloc(&request, unplanned)? {
                Ok(grant) => self.granted(row, name, grant)?,
                Err(refusal) => self.refused(row, &refusal, &before)?,
            }
        }
        Ok(())
    }

    fn granted(&mut self, row: &Row<'_>, name: &str, grant: Grant) -> Outcome {
        let mut wait = None;
        for fact in row.answer.chunks(2) {
            match fact {
                ["at", at] => {
                    let found = grant.block.addr().get().wrapping_sub(self.base);
                    let stated = self.addr(at)?.wrapping_sub(self.base);
                    expect("at, from the first region", &found, &stated)?;
                }
                ["bytes", bytes] => expect("bytes", &grant.block.bytes(), &number(bytes)?)?,
                ["wait", at] => wait = point(at)?,
                ["on", side] => {
                    let found = self.subject.both_sides()?.side_of(&grant.block);
                    expect("on", &found, &Some(side))?;
                }
                _ => return Err(format!("granted, not {fact:?}")),
            }
        }
        let found = grant.wait.map(|at| (at.stream.number(), at.event.number()));
        expect("wait", &found, &wait)?;
        self.keep(name, grant.block)
    }

    fn keep(&mut self, name: &str, block: Block) -> Outcome {
        match self.blocks.insert(name.to_owned(), block) {
            None => Ok(()),
            Some(_) => Err(format!("two blocks {name:?}")),
        }
    }

    fn free(&mut self, row: &Row<'_>) -> Outcome {
        let mut names = row.words[1..].to_vec();
        let at = match names.last() {
            Some(last) => point(last)?,
            None => None,
        };
        if at.is_some() {
            names.pop();
        }
        for name in names {
            let block = self.take(name)?;
            let before = self.before(row);
            if let Err((block, refusal)) = self.subject.free(block, at)? {
                self.keep(name, block)?;
                self.refused(row, &refusal, &before)?;
            } else if !row.answer.is_empty() {
                return Err("freed".into());
            }
        }
        Ok(())
    }

    fn resize(&mut self, row: &Row<'_>) -> Outcome {
        let plain = row.plain();
        let (name, sizes) = plain.split_first().ok_or("NAME SIZE..")?;
        let stream = StreamId::new(row.stream().unwrap_or(0));
        let until = row.value("until")?.map(EventNumber::new);
        sizes.iter().try_for_each(|bytes| {
            let mut to = Resize::to(number(bytes)?).on(stream);
            to.used_until = until;
            self.resize_to(row, name, to)
        })
    }

    /// Resizes over the sub-allocator. If the row states a refusal, a resize within the held memory must be refused
    /// first.
    fn resize_to(&mut self, row: &Row<'_>, name: &str, to: Resize) -> Outcome {
        let mut block = self.take(name)?;
        let before = self.before(row);
        if !row.answer.is_empty() {
            let Err(rejected) = self.subject.pair()?.resize(block, to, false)? else {
                return Err("resized in the held memory".into());
            };
            let is_unchanged = self.subject.picture() == before;
            expect("nothing has changed", &is_unchanged, &true)?;
            block = rejected.value;
        }
        match self.subject.pair()?.resize(block, to, true)? {
            Ok(block) if row.answer.is_empty() => self.keep(name, block),
            Ok(_) => Err("resized".into()),
            Err(rejected) => {
                self.keep(name, rejected.value)?;
                self.refused(row, &Refusal::of(&rejected.error), &before)
            }
        }
    }

    fn place(&mut self, row: &Row<'_>) -> Outcome {
        let [name, at, bytes] = row.plain()[..] else {
            return Err("NAME AT SIZE".into());
        };
        let place = self.read_range(at, bytes)?;
        let before = self.before(row);
        match self.subject.pair()?.alloc_at(place, row.stream())? {
            Ok(block) if row.answer.is_empty() => {
                expect("at", &block.addr(), &place.start())?;
                self.keep(name, block)
            }
            Ok(_) => Err("granted".into()),
            Err(error) => self.refused(row, &Refusal::of_alloc(error), &before),
        }
    }

    fn region(&mut self, row: &Row<'_>) -> Outcome {
        let region = self.read_range(row.words[1], row.words[2])?;
        let before = self.before(row);
        match self.subject.pair()?.add_region(region)? {
            Ok(()) if row.answer.is_empty() => Ok(()),
            Ok(()) => Err("added".into()),
            Err(error) => self.refused(row, &Refusal::of(&error), &before),
        }
    }

    fn safe(&mut self, count: u64) -> Outcome {
        match &mut self.subject {
            Subject::Upstream(upstream) => upstream.bfc.set_safe_frontier(count),
            _ => return Err("ours counts no frees".into()),
        }
        Ok(())
    }

    /// Sets the limit and compares the bytes left above it (`excess N`) or the limit in force (`in-force N`).
    fn limit(&mut self, row: &Row<'_>) -> Outcome {
        let (in_force, excess) = self.subject.adjust(number(row.words[1])?)?;
        expect("limit", &self.subject.number("limit")?, &in_force)?;
        match row.answer.first() {
            Some(&"in-force") => self.stated(row, in_force),
            _ => self.stated(row, excess),
        }
    }

    fn source(&mut self, row: &Row<'_>) -> Outcome {
        let count = row.words.get(2).map_or(Ok(0), |count| number(count))?;
        match row.words[1] {
            "refuse" => self
                .subject
                .sources(|source| source.refuse_grow(count as u32)),
            "keep" => self
                .subject
                .sources(|source| source.refuse_release(count as u32)),
            "apart" => self.subject.sources(|source| source.leave_gaps(UNIT)),
            "adjacent" => self.subject.sources(|source| source.leave_gaps(0)),
            "capacity" => self.subject.sources(|source| source.set_capacity(count)),
            word => return Err(format!("no instruction {word:?}")),
        }
        Ok(())
    }

    /// Compares the free chunks with `FIRST+COUNT`, in granules from the first region; pending ones have a `*`.
    fn holes(&mut self, row: &Row<'_>) -> Outcome {
        let mut stated = Vec::new();
        for word in &row.words[1..] {
            let (first, count) = word.split_once('+').ok_or("FIRST+COUNT")?;
            let bytes = granules(count.trim_end_matches('*'))?;
            stated.push((granules(first)?, bytes, count.ends_with('*')));
        }
        let base = self.base;
        let found = self.subject.holes().into_iter();
        let found = found.map(|(start, bytes, pending)| (start - base, bytes, pending));
        expect("holes", &found.collect(), &stated)
    }

    fn block(&mut self, row: &Row<'_>) -> Outcome {
        let block = self.take(row.words[1])?;
        let sizes = self.subject.sizes(&block);
        let (requested, id) = sizes.ok_or("not in use")?;
        for fact in &row.words[2..] {
            let (key, value) = fact.split_once('=').ok_or("KEY=NUMBER")?;
            let found = match key {
                "bytes" => block.bytes(),
                "requested" => requested,
                "id" => id,
                "at" => block.addr().get(),
                _ => return Err(format!("no number {key:?}")),
            };
            let stated = if key == "at" {
                self.addr(value)?
            } else {
                number(value)?
            };
            expect(key, &found, &stated)?;
        }
        self.keep(row.words[1], block)
    }
}

fn numbers(words: &[&str]) -> Outcome<Vec<u64>> {
    words.iter().map(|word| number(word)).collect()
}

/// Reads calls such as `grow N, refused N, release N, kept N`.
fn read_calls(text: &str) -> Outcome<Vec<Call>> {
    let calls = text
        .split(',')
        .map(str::trim)
        .filter(|call| !call.is_empty());
    calls
        .map(|call| {
            let (verb, bytes) = call.split_once(' ').ok_or("CALL BYTES")?;
            let bytes = number(bytes)?;
            Ok(match verb {
                "grow" => Call::Grow(bytes),
                "refused" => Call::GrowRefused(bytes),
                "release" => Call::Release(bytes),
                "kept" => Call::ReleaseRefused(bytes),
                _ => return Err(format!("no call {verb:?}")),
            })
        })
        .collect()
}
