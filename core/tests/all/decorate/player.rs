//! The player of the decorators' scripts: named allocators, one over another, and one buffer that all of them access.
//!
//! `name: kind over …` creates an allocator over another one. Places are bytes from the start of the buffer or of a
//! block. An outcome is the answer, the accesses to the buffer, and the counters that have changed.

use std::collections::{BTreeMap, HashMap};

use larder_core::decorate::{
    CheckError, Damage, GuardConfig, Guarded, OnDamage, Poisoned, QuarantineConfig, Quarantined,
    TrackRecord, Tracked,
};
use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{
    Addr, AddrRange, Align, AllocError, Block, EventNumber, FixedRange, Grant, MemoryAccess,
    Pattern, Request, StreamId, StreamPoint,
};

use super::ground::{BASE, Touch, Untracked, Watched, best_fit, buffer, flip, write};
use super::kinds::{Access, Fails, Kind, leak};
use crate::golden::{self, Changes, number, option};

const BYTES: u64 = 1 << 20;

pub(crate) struct Player {
    access: Access,
    kinds: BTreeMap<String, Kind>,
    /// The newest allocator, which is used unless an operation names another.
    last: String,
    /// Live blocks by name, each with the name of its allocator.
    blocks: HashMap<String, (Block, String)>,
    /// The addresses and sizes of all blocks so far, by name.
    places: HashMap<String, (u64, u64)>,
    changes: Changes,
}

fn point(text: &str) -> StreamPoint {
    let (stream, event) = text.split_once(':').unwrap();
    let event = match event.strip_suffix("windows") {
        Some(windows) => number(windows) * EventNumber::WINDOW,
        None => number(event),
    };
    StreamPoint {
        stream: StreamId::new(stream.parse().unwrap()),
        event: EventNumber::new(event),
    }
}

/// Describes a finding, whose offset is relative to the block.
fn find(error: CheckError) -> String {
    match error {
        CheckError::Damaged(Damage {
            which,
            offset,
            expected,
            found,
            addr,
            bytes,
            id,
            ..
        }) => {
            let block = format!("{bytes} bytes at {}, number {id}", addr.get() - BASE);
            format!("{which:?} {offset}: {found:02x} for {expected:02x} ({block})")
        }
        CheckError::Access { addr, error } => format!("{}: {error:?}", addr.get() - BASE),
        other => format!("{other:?}"),
    }
}

/// Describes accesses, with equal ones in a row combined.
fn touches(touches: &[Touch]) -> String {
    let runs = touches.chunk_by(|one, next| one == next).map(|run| {
        let word = match run[0] {
            Touch::Read(stream) => format!("read on {stream}"),
            Touch::Write(stream) => format!("write on {stream}"),
            Touch::Fill(stream) => format!("fill on {stream}"),
            Touch::Wait(stream, point) => {
                format!(
                    "wait on {stream} for {}:{}",
                    point.stream.number(),
                    point.event.number()
                )
            }
        };
        match run.len() {
            1 => format!("; {word}"),
            count => format!("; {word} x{count}"),
        }
    });
    runs.collect()
}

impl golden::Player for Player {
    fn new() -> Self {
        Self {
            access: leak(Watched::new(buffer(BYTES))),
            kinds: BTreeMap::new(),
            last: String::new(),
            blocks: HashMap::new(),
            places: HashMap::new(),
            changes: Changes::default(),
        }
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        let outcome = match operation.strip_suffix(':') {
            Some(name) => self.make(name, words),
            None => self.answer(operation, words),
        };
        outcome + &touches(&self.access.take()) + &self.changes()
    }
}

impl Player {
    fn kind(&self, name: &str) -> Kind {
        let kind = self.kinds.get(name);
        *kind.unwrap_or_else(|| panic!("no allocator is {name}"))
    }

    /// Creates an allocator: `best bytes granule records`, or a kind over another one.
    fn make(&mut self, name: &str, words: &[&str]) -> String {
        let over = || self.kind(words[1]).allocator();
        let size = |at: usize| number(words[at]) as usize;
        let guards = match words.contains(&"tensorflow") {
            true => GuardConfig::tensorflow(),
            false => GuardConfig::new(),
        };
        let on_damage = match words.contains(&"keeps") {
            true => OnDamage::Keep,
            false => OnDamage::Free,
        };
        let made = match words[0] {
            "best" => Ok(Kind::Best(leak(best_fit(
                number(words[1]),
                number(words[2]),
                size(3),
            )))),
            "fails" => Ok(Kind::Plain(leak(Fails))),
            "pool" => {
                let range = AddrRange::new(Addr::new(BASE), BYTES).unwrap();
                let pool = Pool::new(PoolConfig::new(8, BYTES), 8).unwrap();
                let pool = PoolAllocator::new(pool, FixedRange::new(range));
                Ok(Kind::Plain(leak::<PoolAllocator<FixedRange>>(pool)))
            }
            "untracked" => Ok(Kind::Plain(leak(Untracked(over())))),
            "guarded" => {
                let config = GuardConfig {
                    front_bytes: option(words, "front").map_or(guards.front_bytes, number),
                    tail_bytes: option(words, "tail").map_or(guards.tail_bytes, number),
                    on_damage,
                    ..guards
                };
                let made = Guarded::new(over(), self.access, config, size(2));
                made.map(|made| Kind::Guarded(leak(made)))
            }
            "quarantined" => {
                let config = QuarantineConfig {
                    on_damage,
                    ..QuarantineConfig::new(number(words[2]))
                };
                let made = Quarantined::new(over(), self.access, config, size(3));
                made.map(|made| Kind::Quarantined(leak(made)))
            }
            "poisoned" => {
                let made = Poisoned::new(over(), self.access, Pattern::F32_NAN);
                made.map(|made| Kind::Poisoned(leak(made)))
            }
            "tracked" => {
                let made = match words.len() {
                    3 => Tracked::new(over(), size(2)),
                    _ => Tracked::local(over(), size(2), size(3)),
                };
                made.map(|made| Kind::Tracked(leak(made)))
            }
            other => panic!("no kind is {other}"),
        };
        match made {
            Ok(kind) => {
                self.kinds.insert(name.into(), kind);
                self.last = name.into();
                String::new()
            }
            Err(error) => format!("{error}"),
        }
    }

    fn answer(&mut self, operation: &str, words: &[&str]) -> String {
        let named = option(words, "of").unwrap_or(&self.last).to_owned();
        match operation {
            "alloc" => self.alloc(&named, words),
            "free" => self.free(words),
            "flip" => {
                flip(
                    self.access.inner(),
                    self.place(words[0]),
                    number(words[1]) as u8,
                );
                String::new()
            }
            "write" => {
                let bytes: Vec<u8> = words[1..].iter().map(|byte| hex(byte)).collect();
                write(self.access.inner(), self.place(words[0]), &bytes);
                String::new()
            }
            "bytes" => {
                let mut bytes = vec![0; number(words[1]) as usize];
                let from = Addr::new(self.place(words[0]));
                self.access
                    .inner()
                    .read(StreamId::MAIN, from, &mut bytes)
                    .unwrap();
                words_of(&bytes)
            }
            "check" => {
                let (block, owner) = &self.blocks[words[0]];
                let owner = option(words, "of").unwrap_or(owner);
                let Kind::Guarded(guarded) = self.kind(owner) else {
                    panic!("{owner} has no guards");
                };
                guarded.check(block).map_or_else(find, |()| "whole".into())
            }
            "check-all" => {
                let mut found = Vec::new();
                let count = self
                    .kind(&named)
                    .check_all(&mut |error| found.push(find(error)));
                assert_eq!(count, found.len() as u64);
                found.join(", ")
            }
            "findings" => {
                let kind = self.kind(&named);
                let found = std::iter::from_fn(|| kind.take_finding()).map(find);
                found.collect::<Vec<_>>().join(", ")
            }
            "drain" => {
                let Kind::Quarantined(quarantined) = self.kind(&named) else {
                    panic!("{named} keeps nothing back");
                };
                quarantined.drain();
                String::new()
            }
            "records" | "take-records" | "copy-records" => self.records(operation, &named),
            "tell" => self.tell(&named, words[0]),
            "refuse" => {
                self.access.refuse_in(number(words[0]));
                String::new()
            }
            "done" => {
                let Kind::Best(best) = self.kind(&named) else {
                    panic!("{named} has no streams");
                };
                let point = point(words[0]);
                best.complete(point.stream, point.event);
                String::new()
            }
            other => panic!("no operation is {other}"),
        }
    }

    /// Reads an address: a block's start (`name`, `name+N`, `name-N`) or a distance from its end (`name>N`).
    fn place(&self, text: &str) -> u64 {
        let at = text.find(['+', '-', '>']).unwrap_or(text.len());
        let (start, bytes) = self.places[&text[..at]];
        match text[at..].split_at_checked(1) {
            Some(("+", offset)) => start + number(offset),
            Some(("-", offset)) => start - number(offset),
            Some((_, offset)) => start + bytes + number(offset),
            None => start,
        }
    }

    fn alloc(&mut self, owner: &str, words: &[&str]) -> String {
        let allocator = self.kind(owner).allocator();
        let mut answers = Vec::new();
        for (name, bytes) in words.iter().filter_map(|word| word.split_once('=')) {
            let mut request = Request::new(number(bytes));
            request.stream = StreamId::new(option(words, "on").map_or(0, number) as u8);
            request.align = Align::new(option(words, "align").map_or(1, number)).unwrap();
            match allocator.alloc(&request) {
                Ok(Grant { block, wait }) => {
                    let wait = wait.map(|at| {
                        format!(" waits for {}:{}", at.stream.number(), at.event.number())
                    });
                    let at = block.addr().get() - BASE;
                    answers.push(format!("{at}{}", wait.unwrap_or_default()));
                    self.places
                        .insert(name.into(), (block.addr().get(), block.bytes()));
                    let former = self.blocks.insert(name.into(), (block, owner.into()));
                    assert!(former.is_none(), "{name} is in use");
                }
                Err(AllocError::OutOfMemory(_)) => answers.push("refused: OutOfMemory".into()),
                Err(error) => answers.push(format!("refused: {error:?}")),
            }
        }
        answers.join(", ")
    }

    /// Frees blocks to their allocators or `to` another one; with `after`, behind a stream point.
    fn free(&mut self, words: &[&str]) -> String {
        let after = option(words, "after").map(point);
        let mut answers = Vec::new();
        for name in words
            .iter()
            .take_while(|word| !["to", "after"].contains(*word))
        {
            let (block, owner) = self
                .blocks
                .remove(*name)
                .unwrap_or_else(|| panic!("{name} is free"));
            let to = option(words, "to").unwrap_or(&owner);
            if let Err(rejected) = self.kind(to).allocator().free_at(block, after) {
                answers.push(format!("refused: {:?}", rejected.error));
                self.blocks.insert((*name).into(), (rejected.value, owner));
            }
        }
        answers.join(", ")
    }

    /// Takes, drains or copies the records of a tracked allocator, and returns `number:bytes` for each.
    fn records(&self, operation: &str, name: &str) -> String {
        let Kind::Tracked(tracked) = self.kind(name) else {
            panic!("{name} has no records");
        };
        let mut records: Vec<TrackRecord> = Vec::new();
        match operation {
            "copy-records" => {
                let mut copied = [TrackRecord::default(); 8];
                let count = tracked.copy_records(&mut copied);
                records.extend(&copied[..count]);
            }
            "take-records" => {
                if tracked.take_records(|record| records.push(record)).is_err() {
                    return "taken before".into();
                }
            }
            _ => tracked.drain_records(|record| records.push(record)),
        }
        let words = records
            .iter()
            .map(|record| format!("{}:{:+}", record.sequence, record.bytes));
        words.collect::<Vec<_>>().join(" ")
    }

    fn tell(&self, name: &str, block: &str) -> String {
        let (kind, (block, _)) = (self.kind(name), &self.blocks[block]);
        let allocator = kind.allocator();
        let mut words = format!(
            "{} bytes, requested {:?}, number {:?}, owns {}",
            block.bytes(),
            allocator.requested_bytes(block),
            allocator.allocation_id(block),
            allocator.owns(block)
        );
        if let Kind::Guarded(guarded) = kind {
            words += &format!(", granted {:?}", guarded.granted_bytes(block));
        }
        words
    }

    fn changes(&mut self) -> String {
        let mut words = String::new();
        for (name, kind) in &self.kinds {
            for (counter, now) in kind.counters() {
                words += &self.changes.note(&format!("{name} {counter}"), now);
            }
        }
        words
    }
}

/// Describes bytes as runs of equal 4-byte words, or of equal bytes if the length is not a multiple of 4.
fn words_of(bytes: &[u8]) -> String {
    let size = if bytes.len().is_multiple_of(4) { 4 } else { 1 };
    let words: Vec<&[u8]> = bytes.chunks(size).collect();
    let runs = words.chunk_by(|one, next| one == next).map(|run| {
        let digits: String = run[0].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits}x{}", run.len())
    });
    runs.collect::<Vec<_>>().join(" ")
}

fn hex(byte: &str) -> u8 {
    u8::from_str_radix(byte, 16).unwrap()
}
