//! Draws programs from a seed.

use crate::programs::reserved::UNITS;
use larder_model::Random;

use crate::programs::Program;

/// Blocks that a player may hold at once.
const SLOTS: usize = 8;

/// Requested sizes, for arenas, for the core, and of a page or more. They are few, so that memory is reused.
const SMALL: [&str; 6] = ["1", "700", "4K", "48K", "96K", "1M"];
const LARGE: [&str; 4] = ["2M", "3M", "4M", "5243392"];

const PARTS: [&str; 3] = ["head", "middle", "tail"];
const MODES: [&str; 3] = ["global", "thread", "relaxed"];

/// Driver functions that an allocation may call.
const REFUSED: [&str; 10] = [
    "cuStreamWaitEvent",
    "cuEventRecord",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
];

/// The acts that are drawn besides allocations, frees, uses, copies and their order.
#[derive(Clone, Copy, Default)]
pub(crate) struct Knobs {
    pub(crate) refusals: bool,
    pub(crate) sleeps: bool,
    pub(crate) limits: bool,
    /// Captures, graphs and windows, and captures that use none of our allocators.
    pub(crate) captures: bool,
    /// Typed and pinned buffers.
    pub(crate) buffers: bool,
    pub(crate) exports: bool,
    /// Streams are replaced, and steps begin and end.
    pub(crate) streams: bool,
    /// Players pass blocks on.
    pub(crate) mail: bool,
    /// Only acts that every allocator has, and none that only a device's allocator has.
    pub(crate) plain: bool,
    /// The allocator has a host side.
    pub(crate) host: bool,
    /// Reserved buffers, whose units are committed and decommitted.
    pub(crate) reserved: bool,
}

pub(crate) struct Draw {
    pub(crate) random: Random,
    streams: usize,
    knobs: Knobs,
    /// Acts that are played before another is drawn, the last one first.
    next: Vec<String>,
    /// The number of small blocks among four.
    small: usize,
    /// Whether each slot has a block, if none was refused.
    held: [bool; SLOTS],
    /// The stream that is being captured, and the number of acts in the capture so far.
    capture: Option<(usize, usize)>,
}

impl Program {
    /// Draws a program. Its allocator and its streams do not depend on the knobs.
    pub(crate) fn draw(seed: u64, knobs: Knobs) -> Self {
        let mut random = Random::new(seed);
        let budget = 2 * (3 + random.index(6));
        let memory = match random.index(4) {
            0 => String::new(),
            1 => format!(" limit={budget}M"),
            _ => format!(" budget={budget}M"),
        };
        let arenas = ["", " arenas=always"][(seed % 2) as usize];
        let streams = 1 + random.index(4);
        let refusals = knobs.refusals && random.index(3) == 0;
        let mut draw = Draw::new(random.next_u64(), streams, Knobs { refusals, ..knobs });
        let steps = if draw.random.index(8) == 0 { 4 } else { 0 };
        let count = (20 + draw.random.index(100)) / steps.max(1);
        let options = [
            (knobs.exports, " shareable"),
            (knobs.buffers, " pinned"),
            (
                knobs.host,
                [" host=24M", " host=managed"][(seed / 2 % 2) as usize],
            ),
        ];
        let options = options.into_iter().filter(|(is, _)| *is);
        let options: String = options.map(|(_, option)| option).collect();
        Self {
            seed,
            memory: format!("memory m{memory}{arenas}{options}"),
            streams,
            default_stream: !knobs.streams && !knobs.captures && draw.random.index(3) == 0,
            drop_early: draw.random.index(2) == 0,
            drains: knobs.limits,
            steps,
            acts: (0..count).map(|_| draw.act()).collect(),
        }
    }
}

impl Draw {
    pub(crate) fn new(seed: u64, streams: usize, knobs: Knobs) -> Self {
        let mut random = Random::new(seed);
        Self {
            streams,
            knobs,
            next: Vec::new(),
            small: random.index(4),
            held: [false; SLOTS],
            capture: None,
            random,
        }
    }

    pub(crate) fn act(&mut self) -> String {
        if let Some(act) = self.next.pop() {
            return act;
        }
        if self.capture.is_some() && self.random.index(3) == 0 {
            return self.inside();
        }
        match self.random.index(40) {
            0..=9 => self.alloc(),
            10..=15 => self.free(),
            16..=27 => self.use_blocks(),
            28..=32 => self.order(),
            _ => self.rarely(),
        }
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        *self.random.pick(list)
    }

    fn stream(&mut self) -> char {
        letter(self.random.index(self.streams))
    }

    fn byte(&mut self) -> u64 {
        self.random.below(256)
    }

    /// Returns a slot that has a block, or that has none, according to `held`; if there is no such slot, any.
    fn slot(&mut self, held: bool) -> usize {
        let start = self.random.index(SLOTS);
        let slots = (0..SLOTS).map(|step| (start + step) % SLOTS);
        let mut fitting = slots.filter(|slot| self.held[*slot] == held);
        fitting.next().unwrap_or(start)
    }

    fn alloc(&mut self) -> String {
        let slot = self.slot(false);
        if self.held[slot] {
            return self.free();
        }
        self.held[slot] = true;
        let is_small = self.random.index(4) < self.small;
        let bytes = if is_small {
            self.of(&SMALL)
        } else {
            self.of(&LARGE)
        };
        let stream = self.stream();
        let alloc = format!("alloc b{slot} {stream} {bytes}");
        // Most blocks are written at once, while uses of earlier blocks at the same addresses may still be queued.
        let value = self.byte();
        self.next = match self.random.index(8) {
            0 => Vec::new(),
            1 => vec![format!("set b{slot} {} {value}", self.stream())],
            _ => vec![format!("set b{slot} {stream} {value}")],
        };
        if !self.knobs.refusals || self.random.index(2) == 0 {
            return alloc;
        }
        // The second allocation is skipped if the first one succeeds in spite of the refused call.
        self.next.extend([alloc.clone(), alloc]);
        let function = match self.random.index(2) {
            // Allocators other than a device's make no other calls.
            _ if self.knobs.plain => self.of(&REFUSED[5..]),
            0 => "cuStreamWaitEvent",
            _ => self.of(&REFUSED),
        };
        format!("refuse {function} {}", self.of(&[0, 0, 0, 1, 2, 4]))
    }

    fn free(&mut self) -> String {
        let slot = self.slot(true);
        self.held[slot] = false;
        match self.random.index(6) {
            0 => format!("free b{slot} {}", self.stream()),
            1 | 2 if !self.knobs.plain && !self.knobs.host => {
                // Some of the reads are still queued when the memory is reused.
                self.next = vec![format!("free b{slot} users {}", self.random.index(4))];
                for _ in 0..self.random.index(4) {
                    let stream = self.stream();
                    let reads = PARTS.map(|part| format!("read b{slot} {stream} {part}"));
                    self.next.extend(reads);
                }
                self.next.pop().unwrap_or_default()
            }
            _ => format!("free b{slot}"),
        }
    }

    fn use_blocks(&mut self) -> String {
        let (slot, stream, part) = (self.slot(true), self.stream(), self.of(&PARTS));
        let [other, third] = [self.slot(true), self.slot(true)];
        let value = self.random.next_u64() as u32;
        match self.random.index(16) {
            0..=4 => format!("set b{slot} {stream} {} {part}", value % 256),
            5 => format!("upload b{slot} {stream} {} {part}", value % 256),
            6 => format!("upload-all b{slot} {stream} {}", value % 4096),
            // Rare, because it makes the stream run.
            9 if value.is_multiple_of(3) => format!("read-all b{slot} {stream}"),
            7..=9 => format!("read b{slot} {stream} {part}"),
            10 | 11 => format!("copy b{slot} b{other} {stream}"),
            12 => format!("fill b{slot} b{slot} b{slot} {stream} {value} {part}"),
            13 => format!("add b{slot} b{other} b{third} {stream} 0 {part}"),
            14 => format!("scale b{slot} b{other} b{other} {stream} {value} {part}"),
            _ => format!("twist b{slot} b{slot} b{slot} {stream} {value} {part}"),
        }
    }

    fn order(&mut self) -> String {
        let (stream, other) = (self.stream(), self.stream());
        match self.random.index(12) {
            0..=3 => format!("record {stream}"),
            4..=6 => format!("wait {stream} {}", self.random.index(4)),
            7 => format!("sync {stream}"),
            8 => format!("sync-event {}", self.random.index(4)),
            _ if self.knobs.plain => format!("record {stream}"),
            _ => format!("order {stream} {other}"),
        }
    }

    /// Draws an act of the chosen knobs, or else an ordinary one.
    fn rarely(&mut self) -> String {
        let knobs = self.knobs;
        let stream = self.stream();
        match self.random.index(12) {
            _ if knobs.plain => self.use_blocks(),
            _ if knobs.reserved && self.random.index(3) == 0 => self.reserved(),
            0 => format!("release {}", self.of(&["1", "2M", "all"])),
            1 => "end-step".to_owned(),
            2 if knobs.sleeps => self.sleep(),
            3 if knobs.limits => self.limit(),
            4 | 5 if knobs.captures => self.capture(),
            6 | 7 if knobs.buffers => self.buffers(),
            8 if knobs.exports => self.exports(),
            9 if knobs.streams => match self.random.index(6) {
                0 => format!("replace {stream}"),
                1 => format!("replace {stream} borrowed"),
                2 | 3 => format!("step step {stream}"),
                4 => "drop step".to_owned(),
                _ => format!("start-over {stream}"),
            },
            10 if knobs.mail => match self.random.index(2) {
                0 => format!("send b{}", self.slot(true)),
                _ => format!("receive b{} {stream}", self.slot(false)),
            },
            11 => match self.random.index(4) {
                0 if !knobs.host => format!("raw b{}", self.slot(true)),
                1 => "settle".to_owned(),
                2 if knobs.sleeps => {
                    let is = ["yes", "no"][self.random.index(2)];
                    format!("remakable b{} {is}", self.slot(true))
                }
                _ if knobs.host => self.use_blocks(),
                _ => format!("free b{} none", self.slot(true)),
            },
            _ => self.use_blocks(),
        }
    }

    /// Sleeps, frees blocks, and wakes. A driver call of the sleep or of the wake may be refused.
    fn sleep(&mut self) -> String {
        self.next = vec!["wake".to_owned()];
        if self.random.index(4) == 0 {
            self.next
                .push(format!("refuse any {}", self.random.index(40)));
        }
        if self.knobs.limits && self.random.index(4) == 0 {
            self.next.push("limit 1M".to_owned());
        }
        for _ in 0..self.random.index(3) {
            let slot = self.slot(true);
            self.next.push(format!("free b{slot}"));
        }
        let (slot, stream) = (self.slot(false), self.stream());
        self.next.push(format!("alloc b{slot} {stream} 100"));
        if self.random.index(4) > 0 {
            return "sleep".to_owned();
        }
        self.next.push("sleep".to_owned());
        format!("refuse any {}", self.random.index(60))
    }

    fn limit(&mut self) -> String {
        let bytes = self.of(&["1M", "4M", "16M", "32M", "64M", "all"]);
        match self.random.index(4) {
            0 if self.knobs.host => {
                format!("host-limit {}", self.of(&["2M", "8M", "24M", "all"]))
            }
            0 if self.knobs.buffers => {
                format!("pinned-limit {}", self.of(&["0", "2M", "32M", "all"]))
            }
            1 if self.knobs.mail => format!("budget t {}", self.of(&["6M", "24M", "80M", "1024G"])),
            2 if !self.knobs.mail => "stable".to_owned(),
            _ => format!("limit {bytes}"),
        }
    }

    fn capture(&mut self) -> String {
        let graph = self.random.index(3);
        match self.random.index(4) {
            0 => format!("launch g{graph}"),
            1 => format!("drop g{graph}"),
            2 => format!("foreign {}", self.of(&MODES)),
            _ if self.capture.is_some() => format!("launch g{graph}"),
            _ => {
                let place = self.random.index(self.streams);
                let stream = letter(place);
                self.capture = Some((place, 0));
                self.next = vec![
                    format!("capture {stream} {}", self.of(&MODES)),
                    format!("prime w {stream} {}", self.of(&["4K", "300K", "2M"])),
                ];
                format!("drop g{graph}")
            }
        }
    }

    /// Draws an act on the stream that is being captured, or the end of the capture.
    fn inside(&mut self) -> String {
        let Some((place, count)) = self.capture else {
            return self.use_blocks();
        };
        let (stream, slot) = (letter(place), self.slot(true));
        self.capture = Some((place, count + 1));
        let (inner, other) = (self.random.index(3), self.random.index(3));
        match self.random.index(6) {
            0 if count > 3 => {
                self.capture = None;
                let graph = self.random.index(3);
                self.next = vec![format!("launch g{graph}")];
                format!("end g{graph} w")
            }
            0 | 1 => {
                self.next = vec![format!("set c{inner} {stream} {}", self.byte())];
                let bytes = self.of(&["100", "4000", "70000", "500000"]);
                format!("alloc c{inner} {stream} {bytes}")
            }
            2 => format!("free c{inner} {stream}"),
            3 => format!("copy b{slot} c{inner} {stream}"),
            4 => format!("scale b{slot} c{inner} c{other} {stream} 3"),
            _ => format!("set c{inner} {stream} {}", self.byte()),
        }
    }

    fn buffers(&mut self) -> String {
        let stream = self.stream();
        let [one, two] = [(); 2].map(|()| self.of(&["u0", "u1", "u2", "p0", "p1", "p2"]));
        let value = self.random.next_u64() >> 1;
        match self.random.index(8) {
            0 | 1 if one.starts_with('u') => format!("buffer {one} {stream}"),
            0 | 1 => format!("pinned {one} {value}"),
            2 => format!("drop {one}"),
            3 => "release-pinned".to_owned(),
            4 => format!("value {one} {value}"),
            _ => format!("put {one} {two} {stream}"),
        }
    }

    fn reserved(&mut self) -> String {
        let (name, stream) = (self.of(&["r0", "r1", "r2"]), self.stream());
        let first = self.random.index(UNITS);
        let count = 1 + self.random.index((UNITS - first).min(4));
        match self.random.index(9) {
            0 => {
                let value = self.byte();
                self.next = vec![format!("commit {name} {stream} {first} {count} {value}")];
                format!("reserve {name} {stream}")
            }
            1..=3 => format!("commit {name} {stream} {first} {count} {}", self.byte()),
            4..=6 => format!("decommit {name} {stream} {first} {count}"),
            7 => format!("lend {name} {first}"),
            _ => format!("drop {name}"),
        }
    }

    fn exports(&mut self) -> String {
        let (one, slot) = (self.random.index(3), self.slot(true));
        match self.random.index(6) {
            0 | 1 => {
                self.next = vec![format!("import i{one} e{one}")];
                format!("export e{one} b{slot}")
            }
            2 => {
                self.next = vec![format!("drop e{one}")];
                format!("drop i{one}")
            }
            _ => format!("same i{one} e{one}"),
        }
    }
}

fn letter(stream: usize) -> char {
    char::from(b'a' + stream as u8)
}
