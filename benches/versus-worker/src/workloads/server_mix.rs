//! A server under load: many threads with log-normal sizes, blocks that other threads free, phases, and forks.
//!
//! Each thread replaces blocks of its own set. It also exchanges blocks with the other threads through shared slots:
//! it puts a block in and frees the block that it takes out. Each phase has its own size of the sets and its own sizes
//! of blocks, and begins when all threads have ended the phase before it. The first thread also forks; the child allocates
//! a few blocks, and exits.
//!
//! Which thread frees a block depends on timing. The answer does not: it is the sum of all stamps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

const THREADS: usize = 32;

/// Number of requests of one thread in one phase of a full run. A request allocates one block.
const REQUESTS: u32 = 20_000;
/// Number of blocks in a thread's set in a full run, and percentage of the drawn sizes, for each phase.
const PHASES: [(u32, usize); 6] = [
    (2_000, 100),
    (6_000, 60),
    (1_000, 300),
    (4_000, 100),
    (500, 800),
    (3_000, 150),
];
/// Maximum number of blocks that a request frees while its thread's set shrinks.
const SHRINK: usize = 3;

/// One request in this many puts its block into a shared slot.
const EXCHANGE_EVERY: usize = 4;
/// One request in this many resizes a block of the set.
const RESIZE_EVERY: usize = 8;
/// Number of shared slots.
const SLOTS: usize = 1024;

/// Number of sizes that are drawn before the clock starts; a power of two.
const SIZES: usize = 1 << 14;
const MEDIAN_BYTES: f64 = 100.0;
const BYTES_DEVIATION: f64 = 1.5;
const MAX_BYTES: usize = 100 << 10;

/// Number of forks in each phase, and number of blocks that a child allocates.
const FORKS: usize = 2;
#[cfg(unix)]
const CHILD_BLOCKS: usize = 16;
/// Seconds after which a child is killed: the allocator waits for a lock of a thread that the child does not have.
#[cfg(unix)]
const CHILD_SECONDS: u32 = 20;

/// The state that all threads share.
struct Mix {
    scale: Scale,
    sizes: Vec<usize>,
    slots: Vec<Mutex<Option<Block>>>,
    phase: Barrier,
    child_failed: AtomicBool,
}

/// # Panics
/// If a block lost its contents, or a child could not be forked or could not allocate.
pub fn server_mix(scale: Scale) -> Outcome {
    let mix = Mix {
        scale,
        sizes: draw_sizes(),
        slots: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
        phase: Barrier::new(THREADS),
        child_failed: AtomicBool::new(false),
    };
    let mut tally = Tally::default();
    let clock = Clock::start();
    thread::scope(|scope| {
        let begin = |number| {
            let mix = &mix;
            scope.spawn(move || mix.serve(number))
        };
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        for thread in threads {
            match thread.join() {
                Ok(part) => tally.join(&part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    for slot in mix.slots {
        let left = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = left {
            tally.read(block.finish());
        }
    }
    // Relaxed: the threads have been joined.
    let child_failed = mix.child_failed.load(Ordering::Relaxed);
    assert!(
        !child_failed,
        "a child cannot be forked, or cannot allocate"
    );
    let requests = THREADS * PHASES.len() * scale.of(REQUESTS);
    clock.stop(requests as u64, tally.answer())
}

fn draw_sizes() -> Vec<usize> {
    let mut random = Random::new(49);
    let size = |_| (MEDIAN_BYTES * (BYTES_DEVIATION * random.normal()).exp()) as usize;
    (0..SIZES).map(size).collect()
}

impl Mix {
    /// Runs all phases of one thread.
    fn serve(&self, number: usize) -> Tally {
        let mut random = Random::new(number as u64);
        let mut tally = Tally::default();
        let mut set: Vec<Block> = Vec::new();
        let requests = self.scale.of(REQUESTS);
        for (blocks, percent) in PHASES {
            let blocks = self.scale.of(blocks);
            self.phase.wait();
            for request in 0..requests {
                self.request(&mut set, blocks, percent, &mut random, &mut tally);
                if number == 0 && request % requests.div_ceil(FORKS) == 0 {
                    self.fork(&random);
                }
            }
        }
        for block in set {
            tally.read(block.finish());
        }
        tally
    }

    fn request(
        &self,
        set: &mut Vec<Block>,
        blocks: usize,
        percent: usize,
        random: &mut Random,
        tally: &mut Tally,
    ) {
        let block = self.block(percent, random, tally);
        if random.below(EXCHANGE_EVERY) == 0 {
            let slot = &self.slots[random.below(SLOTS)];
            // The lock is released before the other block is freed.
            let other = slot
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .replace(block);
            if let Some(other) = other {
                tally.read(other.finish());
            }
        } else {
            set.push(block);
        }
        let excess = set.len().saturating_sub(blocks);
        for _ in 0..excess.min(SHRINK) {
            let any = random.below(set.len());
            tally.read(set.swap_remove(any).finish());
        }
        if random.below(RESIZE_EVERY) == 0 && !set.is_empty() {
            let any = random.below(set.len());
            set[any].resize(self.size(percent, random));
        }
    }

    fn size(&self, percent: usize, random: &mut Random) -> usize {
        let bytes = self.sizes[random.below(SIZES)] * percent / 100;
        bytes.clamp(8, MAX_BYTES)
    }

    /// Returns a block whose every page is written.
    fn block(&self, percent: usize, random: &mut Random, tally: &mut Tally) -> Block {
        let mut block = Block::new(self.size(percent, random), tally.wrote(random.next()));
        block.touch_pages();
        block
    }

    /// Forks, and waits for the child, which allocates and frees a few blocks.
    #[cfg(unix)]
    fn fork(&self, random: &Random) {
        // SAFETY: the child calls only the allocator, whose use in a child is what the workload tests, and functions
        // that are safe in signal handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call only sets a timer of this process.
            unsafe { libc::alarm(CHILD_SECONDS) };
            let mut random = random.clone();
            let stamps = [(); CHILD_BLOCKS].map(|()| random.next());
            let blocks = stamps.map(|stamp| Block::new(self.size(100, &mut random), stamp));
            let read = blocks.map(Block::finish);
            // SAFETY: the process ends here, without destructors.
            unsafe { libc::_exit(i32::from(read != stamps)) };
        }
        let mut status = -1;
        // SAFETY: the call writes to `status`, a local value.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        // A panic here would leave the other threads waiting at the barrier.
        if child < 0 || ended != child || status != 0 {
            self.child_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Does nothing, since only Unix has forks.
    #[cfg(not(unix))]
    fn fork(&self, _: &Random) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_sizes_are_small_and_the_largest_is_long() {
        let mut sizes = draw_sizes();
        sizes.sort_unstable();
        assert!(
            (90..110).contains(&sizes[SIZES / 2]),
            "{}",
            sizes[SIZES / 2]
        );
        assert!(*sizes.last().unwrap() * 8 > MAX_BYTES);
    }
}
