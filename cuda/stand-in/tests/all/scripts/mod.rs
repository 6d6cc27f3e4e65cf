//! Scripts with one call per line, in the text files next to this one. They test promises that only the stand-in makes.
//!
//! A section begins with `## its title` and a reset driver: two devices of 64 MiB with their primary contexts `c0` and
//! `c1`, of which `c0` is current. The section `## before each` is played before every other one. A section must end
//! without findings, unless one of its lines has named them.
//!
//! A section whose first line is `seeds 30` is played in the eager schedule, and with 30 seeds in the deferred one. A
//! section whose first line is `planted` is two programs: the right one leaves out the lines with `+`, and the wrong
//! one those with `-`. The right program passes under 1000 seeds; the wrong one races under all of 100 seeds, and gives
//! another result under some.
//!
//! | line | |
//! |---|---|
//! | `cuMemAlloc >x 100` | calls `cuMemAlloc_v2`, which has to succeed; `x` is the value it wrote |
//! | `INVALID_VALUE cuMemFree x+1` | the call has to return this code |
//! | `schedule 1 3` | calls `larder_stand_in_schedule(1, 3)`; `used 0 = 512` also compares the result |
//! | `repeat 20 cuMemsetD8Async x i 10 s` | 20 calls, with `i` from 0; `times 20` repeats the lines up to `end` |
//! | `is a b`, `not a b` | compares values |
//! | `bytes x = 1 2`, `bytes x 10 = 7` | compares two bytes of `x`, through a copy; compares each of ten with 7 |
//! | `peek p = 1 2`, `poke p 10 3` | the host reads and compares bytes; the host writes ten bytes |
//! | `mine m 4096` | allocates zeroed, page-aligned memory of the program's own |
//! | `opened fd /a/path` | opens a file; `fd` is its descriptor |
//! | `free 60M` | compares the free memory of the current device |
//! | `attributes x = …` | compares the [`ATTRIBUTES`] of an address; `-` is one that the driver refuses |
//! | `alive pinned 1 5000` | compares all objects but contexts; `findings race` looks for a finding, `findings none` for none |
//! | `shut`, `open` | makes the host function `gate` wait; lets it return |
//!
//! A value is a sum or difference of names and numbers (`3M`, `4K`); `*x`, the word at `x`; `"text"`; `[x,7,y]`,
//! pointers to parameters; `{1,x}`, an array of words; `prop:0` and `prop:0:1`, physical memory of a device with handle
//! types; `right:0:3`, a device's access; `place:0`, a location, and `where:0`, a location by value; or `pool:0:2M`,
//! properties of a pool with its maximum size. `host` may stand for a device.

mod value;

use std::ffi::CStr;
use std::fs::File;
use std::iter;
use std::os::fd::IntoRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::MutexGuard;

use larder_cuda_abi::Code;
use larder_cuda_abi::stand_in::KernelCall;
use larder_cuda_abi::{for_each_control_function, for_each_function};

use crate::common::{alive, alone, findings, gate, made, ok, read};
use crate::driver::{self, *};
use value::Values;

/// Context, memory type, device pointer, host pointer, managed, ordinal, start, length, mapped, access.
const ATTRIBUTES: [u32; 10] = [1, 2, 3, 4, 8, 9, 11, 12, 13, 16];

/// The type by which any function of the driver is called; it ignores surplus arguments.
type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64;

macro_rules! addresses {
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) $(since $version:literal)? $(-> $answer:ty)?;)*) => {
        [$((stringify!($name), driver::$name as *const ())),*]
    };
}

/// Returns the function with a name: one of the driver, with or without its version, or one of the control interface,
/// without its prefix.
fn function(name: &str) -> Option<Any> {
    let of_driver = for_each_function!(addresses);
    let of_control = for_each_control_function!(addresses);
    let (versioned, full) = (format!("{name}_v2"), format!("larder_stand_in_{name}"));
    let all = || of_driver.iter().chain(&of_control);
    let found = |name: &str| all().find(|(known, _)| *known == name);
    let (_, at) = found(&versioned)
        .or_else(|| found(name))
        .or_else(|| found(&full))?;
    // SAFETY: all functions take words or less, ignore surplus ones, and return a word or less.
    Some(unsafe { std::mem::transmute::<*const (), Any>(*at) })
}

/// Fills `count` words with a byte's value: `fill(at, value, count)`.
unsafe extern "C" fn fill(call: *const KernelCall) {
    let call = unsafe { &*call };
    assert_eq!(call.parameter_count, 3);
    let parameter = |index: usize| unsafe { *call.parameters.add(index) };
    let at: u64 = unsafe { *parameter(0).cast() };
    let value: u8 = unsafe { *parameter(1).cast() };
    let count: u32 = unsafe { *parameter(2).cast() };
    let host = unsafe { (call.access)(call, at, u64::from(count) * 4, 1) };
    if !host.is_null() {
        let words = unsafe { std::slice::from_raw_parts_mut(host.cast::<u32>(), count as usize) };
        words.fill(u32::from(value));
    }
}

/// Images of modules, by name.
const IMAGES: [(&str, &CStr); 6] = [
    (
        "ptx",
        c".version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry fill(.param .u64 fill_0, .param .u8 fill_1, .param .u32 fill_2) { ret; }
.visible .entry nobody() { ret; }
",
    ),
    ("elf", c"\x7fELF"),
    ("truncated", c".version 8.0 .entry x("),
    (
        "two_variables",
        c".version 7.0\n.global .u32 a;\n.global .u32 a;\n",
    ),
    (
        "two_kernels",
        c".version 7.0\n.entry a() { ret; }\n.entry a() { ret; }\n",
    ),
    (
        "two_kinds",
        c".version 7.0\n.global .u32 a;\n.entry a() { ret; }\n",
    ),
];

const DEVICE: u64 = 64 << 20;

/// The driver while a section is played.
pub(crate) struct Stage {
    values: Values,
    /// Whether a line has named the expected findings.
    said: bool,
    _one: MutexGuard<'static, ()>,
}

impl Stage {
    pub(crate) fn play(&mut self, lines: &str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            println!("{line}");
            self.line(line);
        }
    }

    /// Returns the value of a word.
    pub(crate) fn value(&self, word: &str) -> u64 {
        self.values.of(word)
    }

    /// Resets the driver.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let one = alone();
        larder_stand_in_reset(2, DEVICE);
        Self::open(one, seed)
    }

    /// Creates a stage on the driver as the environment configures it, for a separate process.
    pub(crate) fn of_environment() -> Self {
        Self::open(alone(), None)
    }

    fn open(one: MutexGuard<'static, ()>, seed: Option<u64>) -> Self {
        ok(cuInit(0));
        ok(larder_stand_in_kernel(c"fill".as_ptr(), Some(fill)));
        let contexts = [0, 1].map(|device| made(|out| cuDevicePrimaryCtxRetain(out, device)));
        ok(cuCtxSetCurrent(contexts[0]));
        if let Some(seed) = seed {
            larder_stand_in_schedule(1, seed);
        }
        let known = [
            ("c0", contexts[0] as u64),
            ("c1", contexts[1] as u64),
            ("max", u64::MAX),
            ("gate", gate::wait as *const () as u64),
        ];
        let images = IMAGES.map(|(name, image)| (name, image.as_ptr().expose_provenance() as u64));
        let known = known.into_iter().chain(images);
        let known = known.map(|(name, value)| (name.to_owned(), value));
        Self {
            values: Values(known.collect()),
            said: false,
            _one: one,
        }
    }

    /// Plays a line. Panics if a check fails.
    fn line(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (left, right) = rest.split_once('=').unwrap_or((rest, ""));
        let right: Vec<&str> = right.split_whitespace().collect();
        let value = |word: &str| self.values.of(word);
        match verb {
            "is" => assert_eq!(value(words[0]), value(words[1])),
            "not" => assert_ne!(value(words[0]), value(words[1])),
            "repeat" => {
                let (_, call) = rest.split_once(' ').expect("a call");
                for index in 0..value(words[0]) {
                    self.values.0.insert("i".to_owned(), index);
                    self.line(call);
                }
            }
            "bytes" => self.bytes(left, &right, |at, count| read(at.addr() as u64, count)),
            "peek" => self.bytes(left, &right, |at, count| {
                // SAFETY: a section reads memory of its own that no queued work uses.
                let byte = |offset| unsafe { at.add(offset).read_volatile() };
                (0..count).map(byte).collect()
            }),
            "poke" => {
                let (at, bytes) = (self.values.place(words[0]), value(words[1]));
                let bytes = usize::try_from(bytes).expect("a length");
                // SAFETY: a section writes memory of its own that no queued work uses.
                unsafe { at.write_bytes(value(words[2]) as u8, bytes) };
            }
            "opened" => {
                let file = File::options().read(true).write(true).open(words[1]);
                let descriptor = file.expect("a file").into_raw_fd();
                let _ = self.values.0.insert(words[0].to_owned(), descriptor as u64);
            }
            "mine" => self.values.keep(words[0], value(words[1])),
            "free" => {
                let (mut free, mut total) = (0, 0);
                ok(cuMemGetInfo_v2(&mut free, &mut total));
                assert_eq!(free as u64, value(words[0]));
            }
            "attributes" => self.attributes(words[0], &right),
            "alive" => {
                let lines = alive();
                let lines = lines.lines().filter(|line| !line.starts_with("context"));
                assert_eq!(lines.collect::<Vec<_>>().join(", "), rest);
            }
            "findings" => {
                let found = findings();
                let is_so = if rest == "none" {
                    found.is_empty()
                } else {
                    found.contains(rest)
                };
                assert!(is_so, "found: {found:?}");
                self.said |= rest != "none";
            }
            "shut" => gate::shut(),
            "open" => gate::open(),
            _ if verb.len() > 2
                && verb
                    .chars()
                    .all(|letter| letter == '_' || letter.is_uppercase()) =>
            {
                self.call(rest, verb);
            }
            _ if right.is_empty() => self.call(line, "SUCCESS"),
            _ => {
                let answer = self.answer(verb, left);
                assert_eq!(answer, self.values.of(right[0]));
            }
        }
    }

    /// Calls a function. Returns its result.
    fn answer(&mut self, name: &str, arguments: &str) -> u64 {
        let function = function(name).unwrap_or_else(|| panic!("no function {name}"));
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let mut all = [0; 12];
        for (argument, word) in all.iter_mut().zip(&words) {
            *argument = self.values.of(word);
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l] = all;
        // SAFETY: sections pass arguments that are valid by the driver's documentation, or that it refuses; pointers
        // point to memory of this stage, which is never freed.
        let answer = unsafe { function(a, b, c, d, e, f, g, h, i, j, k, l) };
        for (argument, word) in all.iter().zip(&words) {
            if let Some(name) = word.strip_prefix('>') {
                self.values.learn(name, *argument);
            }
        }
        answer
    }

    fn call(&mut self, call: &str, wanted: &str) {
        let (name, arguments) = call.split_once(' ').unwrap_or((call, ""));
        let answer = Code(self.answer(name, arguments) as u32);
        // Most functions of the control interface return nothing, or a value that a line compares.
        if name.starts_with("cu") || ["share", "set_memory", "kernel_time"].contains(&name) {
            let found = answer.name().expect("a code");
            assert_eq!(
                found
                    .trim_start_matches("CUDA_")
                    .trim_start_matches("ERROR_"),
                wanted
            );
        }
    }

    /// Compares the bytes at an address with the given ones, or, if a count is given, each with the first.
    fn bytes(&self, at: &str, wanted: &[&str], read: impl FnOnce(*mut u8, usize) -> Vec<u8>) {
        let wanted = wanted.iter().map(|word| self.values.of(word) as u8);
        let mut wanted: Vec<u8> = wanted.collect();
        let mut words = at.split_whitespace();
        let at = self.values.place(words.next().expect("an address"));
        if let Some(count) = words.next() {
            wanted = vec![wanted[0]; self.values.of(count) as usize];
        }
        assert!(read(at, wanted.len()) == wanted, "other bytes");
    }

    fn attributes(&self, at: &str, wanted: &[&str]) {
        let at = self.values.of(at);
        let found = ATTRIBUTES.map(|attribute| {
            let mut value = 0_u64;
            let place = &raw mut value as usize;
            let answer = cuPointerGetAttribute(place, attribute, at);
            (answer == Code::SUCCESS).then_some(value)
        });
        let wanted = wanted
            .iter()
            .map(|word| (*word != "-").then(|| self.values.of(word)));
        assert_eq!(found.to_vec(), wanted.collect::<Vec<_>>());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        gate::open();
        larder_stand_in_reset(2, DEVICE);
        cuCtxSetCurrent(0);
    }
}

/// A section: its title, and its lines with their numbers.
type Section<'a> = (&'a str, Vec<(usize, &'a str)>);

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut all: Vec<Section<'_>> = Vec::new();
    let mut times = (0, 0);
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(title) = line.strip_prefix("## ") {
            all.push((title, Vec::new()));
        } else if !line.is_empty() && !line.starts_with("//") {
            let (_, lines) = all.last_mut().expect("a section's title");
            if let Some(count) = line.strip_prefix("times ") {
                times = (count.parse().expect("a number"), lines.len());
            } else if line == "end" {
                let body = lines.split_off(times.1);
                lines.extend(body.repeat(times.0));
            } else {
                lines.push((number, line));
            }
        }
    }
    all
}

/// Plays a section under one seed. In a wrong program the bytes may differ; returns whether they did.
fn play(
    file: &str,
    before: &[(usize, &str)],
    section: &Section<'_>,
    seed: Option<u64>,
    is_wrong: bool,
) -> bool {
    let (title, lines) = section;
    let mut stage = Stage::new(seed);
    let mut shows = false;
    for (number, line) in before.iter().chain(lines) {
        let line = match line.split_at(1) {
            ("-", _) if is_wrong => continue,
            ("+", _) if !is_wrong => continue,
            ("-" | "+", line) => line.trim(),
            _ => line,
        };
        let played = catch_unwind(AssertUnwindSafe(|| stage.line(line)));
        match played {
            Ok(()) => {}
            Err(_) if is_wrong && line.starts_with("bytes") => shows = true,
            Err(panic) => {
                println!("{file}:{number} ({title}, seed {seed:?}): {line}");
                resume_unwind(panic);
            }
        }
    }
    let found = findings();
    let right = if is_wrong {
        found.contains("race")
    } else {
        found.is_empty() || stage.said
    };
    assert!(right, "{file} ({title}, seed {seed:?}): {found:?}");
    shows
}

fn play_all(file: &str, text: &str) {
    let mut sections = sections(text);
    let mut before = Vec::new();
    if sections[0].0 == "before each" {
        before = sections.remove(0).1;
    }
    for mut section in sections {
        let (_, first) = section.1[0];
        if let Some(count) = first.strip_prefix("seeds ") {
            section.1.remove(0);
            let orders = (0..count.parse().expect("a number")).map(Some);
            for seed in iter::once(None).chain(orders) {
                play(file, &before, &section, seed, false);
            }
        } else if first == "planted" {
            section.1.remove(0);
            for seed in 0..1000 {
                play(file, &before, &section, Some(seed), false);
            }
            let shown = (0..100).filter(|seed| play(file, &before, &section, Some(*seed), true));
            let shown = shown.count();
            assert!(shown > 0, "{file} ({}): the defect never showed", section.0);
            assert!(
                shown < 100,
                "{file} ({}): the schedule has one order",
                section.0
            );
        } else {
            play(file, &before, &section, None, false);
        }
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let file = concat!(stringify!($name), ".txt");
            play_all(file, include_str!(concat!(stringify!($name), ".txt")));
        }
    )*};
}

scripts! { host_memory managed_memory virtual_memory pools captures kernels planted mended }
