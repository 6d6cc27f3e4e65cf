//! Steps in processes that fork, are short of addresses, have unusual settings, or break a contract.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use larder::{StepSettings, StepStats, StepsInUse};

use crate::HEAP;
use crate::common::KIB;
use crate::forks::in_a_child;
use crate::known::{exercise, free, layout, make};
use crate::runner::{Case, Ends};

const MIB: usize = 1 << 20;
/// Maximum number of threads that can have steps at the same time.
const HEAPS: usize = 16;

const NO_BLOCK: Ends = Ends::Aborts("larder: freed an address where no block starts\n");

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "a child may have the heaps of steps that its parent's threads had",
        a_child_has_steps,
    ),
    Case::new(
        "a child forked inside steps goes on with its own and frees those of others",
        forks_inside_steps,
    ),
    Case::new(
        "blocks that are not above the threshold are no part of a step",
        small_blocks_lie_elsewhere,
    ),
    Case::new(
        "a threshold above everything leaves steps without blocks",
        threshold_above_everything,
    ),
    Case::new(
        "a cap of nothing is a process without plans",
        cap_of_nothing,
    ),
    Case::new("steps where addresses are short", few_addresses),
    Case::new("a block of a step freed twice is found", freed_twice).ends(NO_BLOCK),
    Case::new("an address inside a block of a step is found", inside).ends(NO_BLOCK),
    Case::new(
        "every size and alignment is served in steps",
        sizes_and_alignments,
    ),
    Case::new("steps in destructors of thread-local values", destructors),
    Case::new(
        "numbers agree while threads have steps and memory is trimmed",
        trimmed_and_counted,
    ),
    Case::new("a step that repeats is served from its plan", || {
        let steps = repeat(100, |_| train(8, 200_000));
        assert_eq!((steps.known_steps, steps.misses), (99, 0));
        // 24 buffers in each step, once there is memory for the plan.
        assert!(steps.hits >= 60 * 24, "{steps:?}");
    }),
    Case::new("shapes that alternate are both planned", || {
        let steps = repeat(12, |time| train(4 + time % 3, 200_000));
        assert!(steps.known_steps >= 9 && steps.misses == 0, "{steps:?}");
    }),
    Case::new(
        "blocks may outlive their step and be freed elsewhere",
        blocks_outlive_steps,
    ),
    Case::new(
        "blocks that outlive a step unexpectedly are blocks like any other",
        blocks_left_in_plans,
    ),
    Case::new("a block that grows in a step is not copied", growing_blocks),
    Case::new("a step inside a step is part of it", || {
        let steps = repeat(3, |_| {
            let inner = larder::step();
            train(2, 200_000);
            drop(inner);
            train(2, 200_000);
        });
        assert_eq!(steps.known_steps, 2);
    }),
    Case::new("what lies idle after steps goes back when asked", || {
        repeat(2, |_| train(4, 2 << 20));
        assert!(HEAP.trim() > 0);
        repeat(2, |_| train(4, 2 << 20));
    }),
    Case::new(
        "settings hold from the first step on and come before it",
        settings_hold,
    ),
];

/// The allocations of a training step; its activations live until the backward pass.
fn train(layers: usize, bytes: usize) {
    let length = |layer: usize| bytes + layer * 4096;
    let mut activations = Vec::new();
    for layer in 0..layers {
        let scratch = make(2 * bytes);
        activations.push(make(length(layer)));
        free(scratch, 2 * bytes);
    }
    while let Some(activation) = activations.pop() {
        let gradient = make(3 * bytes);
        free(activation, length(activations.len()));
        free(gradient, 3 * bytes);
    }
}

/// Runs `times` steps. Returns the counters of all steps so far.
fn repeat(times: usize, step: impl Fn(usize)) -> StepStats {
    for time in 0..times {
        let _step = larder::step();
        step(time);
    }
    HEAP.stats().steps
}

fn blocks_outlive_steps() {
    let (send, receive) = mpsc::channel::<usize>();
    let worker = thread::spawn(move || {
        for block in receive {
            free(std::ptr::with_exposed_provenance_mut(block), 400_000);
        }
    });
    repeat(20, |_| {
        train(3, 390_000);
        send.send(make(400_000).expose_provenance()).unwrap();
        train(3, 270_000);
    });
    drop(send);
    worker.join().unwrap();
}

/// Leaves other blocks of a planned step live each time, for other threads and for later steps.
fn blocks_left_in_plans() {
    let sizes = [300, 1000, 144, 500, 2000, 260].map(|kib| kib * KIB);
    let (send, receive) = mpsc::channel::<(usize, usize)>();
    let worker = thread::spawn(move || {
        for (block, bytes) in receive {
            free(std::ptr::with_exposed_provenance_mut(block), bytes);
        }
    });
    let mut left = Vec::new();
    for (round, mask) in [0b1, 0b10_0110, 0b11_1111, 0b1_0000, 0b10_0001]
        .into_iter()
        .enumerate()
    {
        let (step, blocks) = loop {
            let before = HEAP.stats().steps;
            assert!(before.steps < 100_000, "round {round}: {before:?}");
            // The heap then has a free piece as long as the plan.
            free(make(16 * MIB), 16 * MIB);
            let step = larder::step();
            let blocks = sizes.map(make);
            if HEAP.stats().steps.hits == before.hits + 6 {
                break (step, blocks);
            }
            for (block, bytes) in blocks.into_iter().zip(sizes) {
                free(block, bytes);
            }
        };
        let stays = |at: usize| mask >> at & 1 == 1;
        for (at, (block, bytes)) in blocks.into_iter().zip(sizes).enumerate() {
            match stays(at) {
                true => left.push((block, bytes)),
                false => free(block, bytes),
            }
        }
        drop(step);
        for (at, (block, bytes)) in std::mem::take(&mut left).into_iter().enumerate() {
            assert_eq!(
                HEAP.usable_size(block),
                Some(bytes.next_multiple_of(16 * KIB))
            );
            match at % 3 {
                0 => send.send((block.expose_provenance(), bytes)).unwrap(),
                1 => free(block, bytes),
                _ if round % 2 == 0 => left.push((block, bytes)),
                _ => free(block, bytes),
            }
        }
    }
    drop(send);
    worker.join().unwrap();
    for (block, bytes) in left {
        free(block, bytes);
    }
    exercise();
}

fn growing_blocks() {
    let grown = |_| {
        let small = make(300 * KIB);
        let mut growing = vec![1_u8; 200 * KIB];
        while growing.len() < 64 * MIB {
            growing.extend_from_within(..100 * KIB);
        }
        free(small, 300 * KIB);
    };
    repeat(1, grown);
    let one = HEAP.stats().committed_bytes;
    let steps = repeat(50, grown);
    assert!(steps.hits > 0, "{steps:?}");
    let all = HEAP.stats().committed_bytes;
    assert!(all < one + one / 4, "{all} after {one}");
}

fn settings_hold() {
    let settings = StepSettings {
        first_step: 3,
        threshold_bytes: 200_000,
        cap_bytes: 1 << 20,
        ..StepSettings::new()
    };
    settings.apply().unwrap();
    let steps = repeat(63, |_| {
        let blocks = [200_000, 200_001].map(|bytes| (make(bytes), bytes));
        for (block, bytes) in blocks {
            free(block, bytes);
        }
    });
    let known = (steps.steps, steps.known_steps);
    assert_eq!(known, (60, 59), "three had no effect");
    assert_eq!(steps.hits + steps.unplanned, 60, "one block a step");
    assert!(steps.hits > 0);
    for _ in 0..20 {
        let _step = larder::step_keyed(1);
        free(make(2 << 20), 2 << 20);
    }
    let capped = HEAP.stats().steps;
    assert_eq!(capped.hits, steps.hits, "a plan above the cap is not used");
    assert!(capped.rejected > 0);
    assert_eq!(settings.apply(), Err(StepsInUse));
    assert!(StepsInUse.to_string().contains("before the first"));
}

/// The work of a step; the contents of its blocks are checked.
fn work(kib: usize) {
    let sizes = [4 * kib, 160, 132, 8 * kib].map(|kib| kib * KIB);
    let blocks = sizes.map(make);
    free(blocks[1], sizes[1]);
    let late = make(sizes[3]);
    for at in [0, 2, 3] {
        free(blocks[at], sizes[at]);
    }
    free(late, sizes[3]);
}

/// Runs four steps. Returns how many of them were known.
fn known_steps(kib: usize) -> u64 {
    let before = HEAP.stats().steps.known_steps;
    for _ in 0..4 {
        let _step = larder::step();
        work(kib);
    }
    HEAP.stats().steps.known_steps - before
}

fn a_child_has_steps() {
    let all_inside = Arc::new(Barrier::new(HEAPS + 1));
    let done = Arc::new(Barrier::new(HEAPS + 1));
    let threads: Vec<_> = (0..HEAPS)
        .map(|_| {
            let (all_inside, done) = (all_inside.clone(), done.clone());
            thread::spawn(move || {
                let _step = larder::step();
                work(100);
                all_inside.wait();
                done.wait();
            })
        })
        .collect();
    all_inside.wait();
    assert_eq!(known_steps(64), 0, "there are no more heaps");
    in_a_child(|| assert_eq!(known_steps(64), 3));
    done.wait();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(known_steps(64), 3);
}

fn forks_inside_steps() {
    let stop = Arc::new(AtomicBool::new(false));
    let (send, receive) = mpsc::sync_channel::<(usize, usize)>(8);
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let (stop, send) = (stop.clone(), send.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _step = larder::step();
                    work(50 + thread);
                    let bytes = (280 + thread) * KIB;
                    let block = make(bytes).expose_provenance();
                    if send.send((block, bytes)).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    for _ in 0..60 {
        let _step = larder::step();
        let mine = make(390 * KIB);
        let (block, bytes) = receive.recv().unwrap();
        let block = std::ptr::with_exposed_provenance_mut(block);
        in_a_child(|| {
            free(mine, 390 * KIB);
            free(block, bytes);
            work(60);
            thread::spawn(|| assert!(known_steps(64) >= 3))
                .join()
                .unwrap();
            HEAP.trim();
            exercise();
        });
        free(block, bytes);
        free(mine, 390 * KIB);
    }
    stop.store(true, Ordering::Relaxed);
    drop(receive);
    for thread in threads {
        thread.join().unwrap();
    }
}

fn small_blocks_lie_elsewhere() {
    let settings = StepSettings {
        threshold_bytes: MIB,
        ..StepSettings::new()
    };
    settings.apply().unwrap();
    let steps = repeat(10, |_| {
        let sizes = [MIB + 1, 133 * KIB, 200 * KIB, MIB, 2 * MIB];
        let blocks = sizes.map(make);
        for (block, bytes) in blocks.into_iter().zip(sizes) {
            free(block, bytes);
        }
    });
    let seen = (steps.hits + steps.unplanned, steps.misses);
    assert_eq!(seen, (20, 0), "two blocks a step");
}

fn threshold_above_everything() {
    let settings = StepSettings {
        threshold_bytes: usize::MAX,
        ..StepSettings::new()
    };
    settings.apply().unwrap();
    known_steps(100);
    let steps = HEAP.stats().steps;
    assert_eq!((steps.hits, steps.misses, steps.unplanned), (0, 0, 0));
}

fn cap_of_nothing() {
    let settings = StepSettings {
        cap_bytes: 0,
        ..StepSettings::new()
    };
    settings.apply().unwrap();
    assert_eq!(known_steps(100), 3);
    assert_eq!(HEAP.stats().steps.hits, 0);
}

fn few_addresses() {
    exercise();
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok());
    let taken: u64 = pages.unwrap_or(0) * 4096;
    for more in [400, 200, 100, 40] {
        let limit = libc::rlimit {
            rlim_cur: taken + more * MIB as u64,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: a limit of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        for _ in 0..4 {
            let _step = larder::step();
            work(100);
            work(3000);
        }
    }
    exercise();
}

/// Runs steps of two blocks until they are served from a plan. Passes the blocks of the last step to
/// `last`.
fn in_a_plan(last: impl FnOnce([*mut u8; 2])) {
    let sizes = [500 * KIB, 300 * KIB];
    repeat(6, |_| {
        for (block, bytes) in sizes.map(make).into_iter().zip(sizes) {
            free(block, bytes);
        }
    });
    assert!(HEAP.stats().steps.hits > 0);
    let _step = larder::step();
    let before = HEAP.stats().steps.hits;
    let blocks = sizes.map(make);
    assert_eq!(HEAP.stats().steps.hits, before + 2);
    last(blocks);
}

fn freed_twice() {
    in_a_plan(|[block, _]| {
        free(block, 500 * KIB);
        // SAFETY: a broken contract, which the heap detects.
        unsafe { HEAP.dealloc(block, layout(500 * KIB)) };
    });
}

fn inside() {
    in_a_plan(|[_, block]| {
        // SAFETY: a broken contract, which the heap detects.
        unsafe { HEAP.dealloc(block.wrapping_add(16 * KIB), layout(300 * KIB)) };
    });
}

fn sizes_and_alignments() {
    for _ in 0..5 {
        let _step = larder::step();
        let mut blocks = Vec::new();
        for bytes in [
            1,
            128 * KIB - 1,
            128 * KIB,
            128 * KIB + 1,
            500 * KIB,
            MIB + 5,
        ] {
            for align in [1, 16, 4096, 8192, 64 * KIB, 128 * KIB, MIB] {
                let layout = Layout::from_size_align(bytes, align).unwrap();
                // SAFETY: the layout is not empty.
                let block = unsafe { HEAP.alloc(layout) };
                assert!(!block.is_null() && block.addr().is_multiple_of(align));
                // SAFETY: our block, of this length.
                unsafe { block.write_bytes(0xEE, bytes) };
                // SAFETY: our block, with this layout.
                let moved = unsafe { HEAP.realloc(block, layout, bytes / 2 + 1) };
                assert!(!moved.is_null() && moved.addr().is_multiple_of(align));
                let half = Layout::from_size_align(bytes / 2 + 1, align).unwrap();
                // SAFETY: our block, with this layout.
                let grown = unsafe { HEAP.realloc(moved, half, bytes * 2) };
                assert!(!grown.is_null() && grown.addr().is_multiple_of(align));
                // SAFETY: our block, at least this long; this part was copied.
                let kept = unsafe { std::slice::from_raw_parts(grown, bytes / 2) };
                assert!(kept.iter().all(|byte| *byte == 0xEE));
                let double = Layout::from_size_align(bytes * 2, align).unwrap();
                // SAFETY: the layout is not empty.
                let zeroed = unsafe { HEAP.alloc_zeroed(double) };
                // SAFETY: our block, of this length.
                let zeros = unsafe { std::slice::from_raw_parts(zeroed, bytes * 2) };
                assert!(zeros.iter().all(|byte| *byte == 0));
                blocks.extend([(grown, double), (zeroed, double)]);
            }
        }
        for (block, layout) in blocks {
            // SAFETY: allocated above with this layout.
            unsafe { HEAP.dealloc(block, layout) };
        }
        // SAFETY: the layout is not empty; no machine has this much memory.
        let none = unsafe { HEAP.alloc(Layout::from_size_align(isize::MAX as usize, 1).unwrap()) };
        assert!(none.is_null());
    }
}

/// Ends a step that began earlier, and begins new ones, while the thread ends.
struct Late(Cell<Option<larder::Step>>);

impl Drop for Late {
    fn drop(&mut self) {
        work(80);
        drop(self.0.take());
        let _step = larder::step();
        work(90);
        std::mem::forget(larder::step());
    }
}

thread_local! {
    static LATE: Late = const { Late(Cell::new(None)) };
}

fn destructors() {
    for _ in 0..50 {
        thread::spawn(|| LATE.with(|late| late.0.set(Some(larder::step()))))
            .join()
            .unwrap();
    }
    assert_eq!(known_steps(64), 3, "their heaps are free");
    let stats = HEAP.stats();
    assert!(stats.live_bytes <= stats.committed_bytes, "{stats:?}");
}

fn trimmed_and_counted() {
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..20)
        .map(|thread| {
            let stop = stop.clone();
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _step = larder::step_keyed(thread % 3);
                    work(40 + thread as usize);
                }
            })
        })
        .collect();
    for _ in 0..200 {
        HEAP.trim();
        let stats = HEAP.stats();
        assert!(stats.committed_bytes <= stats.reserved_bytes, "{stats:?}");
        assert!(stats.large_bytes <= stats.live_bytes, "{stats:?}");
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let stats = HEAP.stats();
    assert!(stats.live_bytes <= stats.committed_bytes, "{stats:?}");
}
