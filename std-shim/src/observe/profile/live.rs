//! [`LiveSamples`]: the live samples, with the stacks that allocated them.
//!
//! Stacks are walked by the unwinder alone, without a lock. The standard library's backtraces take
//! a lock that is also held while a backtrace is printed. Printing allocates, so a sample taken
//! there would deadlock.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::symbols::{Symbol, outside_allocator, symbols_of};
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
            self.lock().values().for_each(|live| totals.add(live));
            totals
        })
    }

    /// Writes the live bytes by the stack that allocated them, in the folded form that flame graphs
    /// are made from. Each stack is a line: the functions from the outermost, separated by `;`,
    /// then a space and the bytes.
    ///
    /// Slow: the program's debug information is read, parsed, and freed at the end. For a program
    /// of 30 MB this takes 0.2 seconds and 80 MiB; the heap returns them after its purge delay.
    /// Must not be called from a hook, which runs inside an allocation.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_folded(&self, out: &mut impl Write) -> io::Result<()> {
        unsampled(|| {
            let stacks = self.stacks();
            let mut lines = BTreeMap::new();
            for (stack, totals) in stacks.iter() {
                let names = stack.iter().rev();
                let names: Vec<String> = names.map(|at| at.name().replace(';', ":")).collect();
                *lines.entry(names.join(";")).or_insert(0.0) += totals.bytes;
            }
            for (line, bytes) in lines {
                writeln!(out, "{line} {bytes:.0}")?;
            }
            Ok(())
        })
    }

    /// Writes the live blocks and bytes by the stack that allocated them, with files and lines, as
    /// a gzipped profile for `go tool pprof` and other readers of pprof's format. As slow as
    /// [`write_folded`](Self::write_folded).
    ///
    /// # Errors
    /// If `out` fails.
    #[cfg(feature = "pprof")]
    pub fn write_pprof(&self, out: &mut impl Write) -> io::Result<()> {
        unsampled(|| super::pprof::write(self.stacks().iter(), out))
    }

    /// Returns the stacks with their symbols. Nothing is locked while the symbols are looked up.
    fn stacks(&self) -> Stacks {
        let mut stacks = Stacks::default();
        for live in self.lock().values() {
            let totals = stacks.totals.entry(live.frames.clone()).or_default();
            totals.add(live);
        }
        for frame in stacks.totals.keys().flatten() {
            let symbols = stacks.symbols.entry(*frame);
            symbols.or_insert_with(|| symbols_of(*frame));
        }
        // Otherwise the parsed symbol tables would stay until the program ends.
        backtrace::clear_symbol_cache();
        stacks
    }
}

impl SampleTotals {
    fn add(&mut self, live: &LiveSample) {
        self.samples += 1;
        self.blocks += live.weight;
        self.bytes += live.weight * live.bytes as f64;
    }
}

/// Live samples by their stacks.
#[derive(Default)]
struct Stacks {
    /// By return addresses, the innermost first.
    totals: BTreeMap<Box<[usize]>, SampleTotals>,
    symbols: BTreeMap<usize, Vec<Symbol>>,
}

impl Stacks {
    /// Returns each stack, innermost first, without the allocator's own functions.
    fn iter(&self) -> impl Iterator<Item = (Vec<&Symbol>, SampleTotals)> {
        self.totals.iter().map(|(frames, totals)| {
            let symbols = frames.iter().filter_map(|frame| self.symbols.get(frame));
            (outside_allocator(symbols.flatten().collect()), *totals)
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
