//! The time of a frame while another thread allocates without a pause.
//!
//! One thread wakes every few milliseconds for a frame, in which it allocates and frees some large blocks. Another
//! thread, the neighbour, replaces large blocks without a pause, so that it is often inside the allocator when it loses
//! its core or when a frame begins. The schedule is fixed, and the run lasts as long as the schedule. Missed frames run
//! after its end, untimed, so that every run gives the same answer.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::pin;
use crate::priority::Thread;
use crate::random::Random;
use crate::scale::Scale;
use crate::schedule::{Times, due};
use crate::tally::Tally;

/// Number of frames in a full run, which takes 2.4 s.
const FRAMES: u32 = 800;

/// Number and size of a frame's blocks.
const BLOCKS: usize = 20;
const BLOCK_BYTES: usize = 150_000;

/// The number of the neighbour's blocks, and the number of sizes, which the blocks have in turn.
const HELD: usize = 16;
const SIZES: usize = 1024;
const MIN_BYTES: f64 = 163_840.0;
const MAX_BYTES: f64 = 1_048_576.0;

/// The priorities of the thread with the frames, and of the watch that ends its run.
const PRIORITY: i32 = 10;
const PRIORITY_OF_WATCH: i32 = 11;

/// The cores of the threads.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CpuPlace {
    /// Both threads are on one core.
    OneCore,
    /// Both threads are on one core, and the thread with the frames runs before ordinary threads.
    First,
    /// The threads run on any core, next to as many computing threads as there are cores.
    Loaded,
}

pub fn one_cpu(scale: Scale) -> Outcome {
    frames(CpuPlace::OneCore, scale)
}

pub fn loaded(scale: Scale) -> Outcome {
    frames(CpuPlace::Loaded, scale)
}

pub fn fifo(scale: Scale) -> Outcome {
    frames(CpuPlace::First, scale)
}

/// Checks that threads may be kept on one core.
///
/// # Errors
/// The error of the operating system.
pub fn may_share_a_core() -> io::Result<()> {
    in_a_thread(pin::to_one_core)
}

/// Checks that threads may also run before ordinary threads.
///
/// # Errors
/// The error of the operating system.
pub fn may_run_first() -> io::Result<()> {
    may_share_a_core()?;
    in_a_thread(|| Thread::this().run_first(PRIORITY_OF_WATCH))
}

/// Runs `attempt` in a separate thread, to which its effects are limited.
fn in_a_thread(attempt: fn() -> io::Result<()>) -> io::Result<()> {
    match thread::spawn(attempt).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn frames(place: CpuPlace, scale: Scale) -> Outcome {
    let planned = scale.of(FRAMES);
    let shared = FrameShared::new(place);
    thread::scope(|scope| {
        if place == CpuPlace::Loaded {
            for _ in 0..cores() {
                scope.spawn(|| shared.compute());
            }
        }
        scope.spawn(|| shared.be_the_neighbour());
        let threads = scope.spawn(|| shared.play(planned));
        scope.spawn(|| shared.watch(planned));
        match threads.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The state that the threads share.
struct FrameShared {
    place: CpuPlace,
    /// The core of the two threads that share one.
    core: Option<usize>,
    /// The thread with the frames.
    player: OnceLock<Thread>,
    /// Frames begin once the neighbour holds its blocks and the watch runs.
    ready: Barrier,
    over: AtomicBool,
}

impl FrameShared {
    fn new(place: CpuPlace) -> Self {
        Self {
            place,
            core: (place != CpuPlace::Loaded).then(|| expect(pin::this_core())),
            player: OnceLock::new(),
            ready: Barrier::new(3),
            over: AtomicBool::new(false),
        }
    }

    fn is_over(&self) -> bool {
        // Relaxed: the flag guards no other data.
        self.over.load(Ordering::Relaxed)
    }

    fn go_to_the_core(&self) {
        if let Some(core) = self.core {
            expect(pin::to(core));
        }
    }

    fn compute(&self) {
        let mut random = Random::new(2);
        while !self.is_over() {
            black_box(random.next());
        }
    }

    /// Replaces the oldest of the neighbour's blocks until the end. Does little else, since the sizes are drawn
    /// beforehand.
    fn be_the_neighbour(&self) {
        self.go_to_the_core();
        let mut random = Random::new(1);
        let sizes: Vec<usize> = (0..SIZES)
            .map(|_| random.log_within(MIN_BYTES, MAX_BYTES))
            .collect();
        let mut sizes = sizes.iter().copied().cycle();
        let mut tally = Tally::default();
        let mut held = VecDeque::with_capacity(HELD);
        for bytes in sizes.by_ref().take(HELD) {
            held.push_back(Block::new(bytes, tally.wrote(random.next())));
        }
        self.ready.wait();
        for bytes in sizes.take_while(|_| !self.is_over()) {
            if let Some(oldest) = held.pop_front() {
                tally.read(Block::finish(oldest));
            }
            held.push_back(Block::new(bytes, tally.wrote(random.next())));
        }
        for block in held {
            tally.read(block.finish());
        }
        // The number of rounds is not part of the answer.
        let _ = tally.answer();
    }

    fn play(&self, planned: usize) -> Outcome {
        self.go_to_the_core();
        let mut player = Player::new();
        let mut times = Times::new(planned);
        let _ = self.player.set(Thread::this());
        if self.place == CpuPlace::First {
            expect(Thread::this().run_first(PRIORITY));
        }
        self.ready.wait();
        let clock = Clock::start();
        times.measure(&Instant::now(), || player.frame());
        self.end();
        for _ in 0..times.missed() {
            player.frame();
        }
        clock
            .stop(planned as u64, player.tally.answer())
            .with_frames(times.figures())
    }

    /// A thread that runs before all others could wait for one of them forever. When the schedule is over, the
    /// watch makes it an ordinary thread.
    fn watch(&self, planned: usize) {
        if self.place == CpuPlace::First {
            expect(Thread::this().run_first(PRIORITY_OF_WATCH));
        }
        self.ready.wait();
        thread::sleep(due(planned + 1));
        self.end();
    }

    /// Stops the neighbour, and makes the thread with the frames an ordinary one.
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        if self.place == CpuPlace::First
            && let Some(player) = self.player.get()
        {
            // The thread may have ended already.
            let _ = player.run_in_turn();
        }
    }
}

/// Returns the value. An error is a defect, since the permission was checked before the run.
fn expect<T>(result: io::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("the system does not allow it any more: {error}"),
    }
}

/// Runs frames, and allocates only their blocks.
struct Player {
    random: Random,
    tally: Tally,
    blocks: Vec<Block>,
}

impl Player {
    fn new() -> Self {
        Self {
            random: Random::new(3),
            tally: Tally::default(),
            blocks: Vec::with_capacity(BLOCKS),
        }
    }

    fn frame(&mut self) {
        for _ in 0..BLOCKS {
            let stamp = self.tally.wrote(self.random.next());
            self.blocks.push(Block::new(BLOCK_BYTES, stamp));
        }
        for block in self.blocks.drain(..) {
            self.tally.read(block.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_all_its_frames_in_the_answer_and_few_() {
        let outcome = loaded(Scale::CHECK);
        let frames = outcome.frames.unwrap();
        assert_eq!(frames.planned, 8);
        assert!((1..=8).contains(&frames.done), "{frames:?}");
        assert_eq!(outcome.operations, 8);
        assert!(frames.p50_us <= frames.p99_us, "{frames:?}");
        assert!(frames.p99_us <= frames.max_us, "{frames:?}");
        let mut player = Player::new();
        for _ in 0..8 {
            player.frame();
        }
        assert_eq!(outcome.answer, player.tally.answer());
    }

    /// A thread that runs first waits forever for an ordinary thread on its core.
    #[test]
    fn the_watch_ends_a_wait_that_has_no_end() {
        if may_run_first().is_err() {
            return; // not allowed here, so there is nothing to end
        }
        let shared = FrameShared::new(CpuPlace::First);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| shared.watch(20));
            scope.spawn(|| {
                shared.go_to_the_core();
                shared.ready.wait();
                thread::sleep(due(1));
                done.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| {
                shared.go_to_the_core();
                let _ = shared.player.set(Thread::this());
                expect(Thread::this().run_first(PRIORITY));
                shared.ready.wait();
                while !done.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            });
        });
        assert!(shared.is_over());
    }
}
