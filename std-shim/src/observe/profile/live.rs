//! [`LiveSamples`]: the live samples, with the stacks that allocated them.
//!
//! Stacks are walked by the unwinder alone, without a lock. The standard library's backtraces take
//! a lock that is also held while a backtrace is printed. Printing allocates, so a sample taken
//! there would deadlock.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Sample, SampleEvent, unsampled};

/// Maximum number of frames recorded of a stack.
const FRAMES: usize = 64;

/// The samples of a [`Profiled`](crate::Profiled) program whose blocks are not freed yet.
///
/// ```
/// use larder::{Larder, LiveSamples, Profiled};
///
/// static LIVE: LiveSamples = LiveSamples::new();
///
/// #[global_allocator]
/// static HEAP: Profiled<Larder> = Profiled::new(Larder::new(), 64 << 10, |sample| LIVE.note(sample));
///
/// let kept = vec![0_u8; 4 << 20];
/// let mut folded = Vec::new();
/// LIVE.write_folded(&mut folded)?;
/// assert!(LIVE.totals().bytes > 4e6);
/// # drop(kept);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct LiveSamples(Mutex<BTreeMap<u64, LiveSample>>);

#[derive(Debug)]
struct LiveSample {
    bytes: u64,
    weight: f64,
    /// Return addresses, the innermost first.
    frames: Box<[usize]>,
}

/// The totals that the live samples stand for.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct SampleTotals {
    /// Number of samples.
    pub samples: u64,
    /// Blocks that they stand for.
    pub blocks: f64,
    /// Bytes that they stand for.
    pub bytes: f64,
}

impl LiveSamples {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, LiveSample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a sample; the hook calls this. O(frames) and O(log samples), behind a lock. Up to 64
    /// frames of the stack are recorded.
    pub fn note(&self, sample: &Sample) {
        match sample.event {
            SampleEvent::Allocated => {
                let live = LiveSample {
                    bytes: sample.bytes,
                    weight: sample.weight,
                    frames: walk(),
                };
                unsampled(|| self.lock().insert(sample.id, live));
            }
            SampleEvent::Freed => {
                unsampled(|| self.lock().remove(&sample.id));
            }
        }
    }

    /// Returns the totals of the samples. O(samples).
    pub fn totals(&self) -> SampleTotals {
        unsampled(|| {
            let mut totals = SampleTotals::default();
            for live in self.lock().values() {
                totals.samples += 1;
                totals.blocks += live.weight;
                totals.bytes += live.weight * live.bytes as f64;
            }
            totals
        })
    }

    /// Writes the live bytes by the stack that allocated them, in the folded form that flame graphs
    /// are made from. Each stack is a line: the functions from the outermost, separated by `;`,
    /// then a space and the bytes. Slow: every function's name is looked up in the program's file.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_folded(&self, out: &mut impl Write) -> io::Result<()> {
        unsampled(|| {
            let mut stacks = BTreeMap::new();
            for live in self.lock().values() {
                *stacks.entry(live.frames.clone()).or_insert(0.0) +=
                    live.weight * live.bytes as f64;
            }
            let mut names = BTreeMap::new();
            for frame in stacks.keys().flat_map(|frames| frames.iter()) {
                names.entry(*frame).or_insert_with(|| names_of(*frame));
            }
            let mut lines = BTreeMap::new();
            for (frames, bytes) in &stacks {
                let stack: Vec<&str> = frames
                    .iter()
                    .flat_map(|frame| names.get(frame).into_iter().flatten())
                    .map(String::as_str)
                    .collect();
                *lines.entry(folded(&stack)).or_insert(0.0) += bytes;
            }
            for (line, bytes) in lines {
                writeln!(out, "{line} {bytes:.0}")?;
            }
            Ok(())
        })
    }
}

/// Returns the return addresses of the calling thread's stack.
fn walk() -> Box<[usize]> {
    let mut frames = Vec::with_capacity(FRAMES);
    let keep = |frame: &backtrace::Frame| {
        // At the start of a thread some unwinders report an empty frame.
        frames.extend(Some(frame.ip().addr()).filter(|&ip| ip != 0));
        frames.len() < FRAMES
    };
    // SAFETY: several threads may use the unwinder at once; only that of Windows forbids it.
    unsafe { backtrace::trace_unsynchronized(keep) };
    frames.into_boxed_slice()
}

/// A function at a return address, and the place of its call in the source.
pub(crate) struct NamedCall {
    pub(crate) name: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) line: Option<u32>,
}

/// Returns the functions at a return address, more than one where calls were inlined, the innermost
/// first.
pub(crate) fn calls_at(frame: usize) -> Vec<NamedCall> {
    let mut calls = Vec::new();
    // Looks up the byte before it, where the call ends.
    let frame = std::ptr::without_provenance_mut::<c_void>(frame);
    backtrace::resolve(frame, |symbol| {
        calls.extend(symbol.name().map(|name| NamedCall {
            name: format!("{name:#}"),
            file: symbol.filename().map(Path::to_owned),
            line: symbol.lineno(),
        }));
    });
    calls
}

/// Returns the names of the functions at a return address.
fn names_of(frame: usize) -> Vec<String> {
    let calls = calls_at(frame).into_iter();
    let mut names: Vec<_> = calls.map(|call| call.name.replace(';', ":")).collect();
    if names.is_empty() {
        names.push(format!("{frame:#x}"));
    }
    names
}

impl NamedCall {
    /// Returns whether the function is the allocator's, not a caller's. Compares the source file if
    /// the debug information has one, since the function's name may lack its path.
    pub(crate) fn is_in_allocator(&self) -> bool {
        let sources = file!().strip_suffix("observe/profile/live.rs");
        let file = self.file.as_deref().and_then(Path::to_str).zip(sources);
        file.is_some_and(|(file, sources)| file.contains(sources)) || is_allocator(&self.name)
    }
}

/// Returns whether a function is the allocator's, not a caller's.
fn is_allocator(name: &str) -> bool {
    ["larder::", "<larder::", "__rust", "__rg_", "backtrace::"]
        .iter()
        .any(|start| name.starts_with(start))
        || name.contains("::__rust_")
}

/// Returns a stack as one line, without the allocator's own functions.
fn folded(names: &[&str]) -> String {
    // Only frames near the allocation are searched, because a program may call this library further
    // out.
    let inner = names.iter().take(24).rposition(|name| is_allocator(name));
    let first = inner.map_or(0, |place| place + 1);
    let outer: Vec<&str> = names.iter().skip(first).rev().copied().collect();
    outer.join(";")
}
