//! Threads that share one stack, and checks during frees in other threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ground::{best_fit, buffer};
use larder_core::decorate::{
    GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Tracked,
};
use larder_core::{
    AccessError, Addr, AddrRange, BlockAllocator, MemoryAccess, Pattern, Request, StreamId,
    StreamPoint, Wait,
};
use larder_model::Random;

/// Yields, because the thread that holds the lock may not be running.
struct Yield;

impl Wait for Yield {
    fn wait() {
        std::thread::yield_now();
    }
}

#[test]
fn four_threads_and_a_checker_see_no_damage_and_right_totals() {
    const BYTES: u64 = 1 << 20;
    let (inner, access) = (best_fit(BYTES, 256, 512), buffer(BYTES));
    let tracked: Tracked<_, _, Yield> = Tracked::with_ticks(&inner, || 0, 64, None).unwrap();
    let guarded: Guarded<_, _, Yield> =
        Guarded::with_wait(&tracked, &access, GuardConfig::new(), 128).unwrap();
    let config = QuarantineConfig::new(16 << 10);
    let quarantined: Quarantined<_, _, Yield> =
        Quarantined::with_wait(&guarded, &access, config, 32).unwrap();
    let allocator = Poisoned::new(&quarantined, &access, Pattern::F32_NAN).unwrap();
    // The pool grows before the threads start, because the first growth takes all memory and a second would be refused.
    let first = allocator.alloc(&Request::new(1)).unwrap().block;
    allocator.free(first).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let (allocator, access) = (&allocator, &access);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut blocks = Vec::new();
                    for _ in 0..1000 {
                        if blocks.len() < 8 {
                            let request = Request::new(1 + random.below(900));
                            let block = allocator.alloc(&request).unwrap().block;
                            let pattern = Pattern::of_u8(seed as u8);
                            access.fill(StreamId::MAIN, block.range(), pattern).unwrap();
                            blocks.push(block);
                        } else {
                            let at = random.below(8) as usize;
                            allocator.free(blocks.swap_remove(at)).unwrap();
                        }
                    }
                    for block in blocks {
                        allocator.free(block).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(guarded.check_all(|find| panic!("{find}")), 0);
                assert_eq!(quarantined.check_all(|find| panic!("{find}")), 0);
            }
        });
        // The checker must end even if a worker panics.
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    quarantined.drain();
    assert_eq!(
        (quarantined.take_finding(), guarded.take_finding()),
        (None, None)
    );
    let stats = tracked.track_stats();
    assert_eq!((stats.live_bytes, stats.live_blocks), (0, 0));
    assert_eq!(inner.stats().live_bytes, 0);
}

static WAITS: AtomicU64 = AtomicU64::new(0);

struct Told;

impl Wait for Told {
    fn wait() {
        WAITS.fetch_add(1, Ordering::SeqCst);
        std::thread::yield_now();
    }
}

/// Stops in its first read until a free in another thread waits; panics if that free returns first.
struct Stops<M> {
    inner: M,
    reading: AtomicBool,
    freed: AtomicBool,
}

impl<M: MemoryAccess> MemoryAccess for Stops<M> {
    fn read(&self, stream: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        if !self.reading.swap(true, Ordering::SeqCst) {
            while WAITS.load(Ordering::SeqCst) == 0 {
                let freed = self.freed.load(Ordering::SeqCst);
                assert!(!freed, "the block was freed while it was read");
                std::thread::yield_now();
            }
        }
        self.inner.read(stream, addr, into)
    }

    fn write(&self, stream: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        self.inner.write(stream, addr, from)
    }

    fn fill(
        &self,
        stream: StreamId,
        range: AddrRange,
        pattern: Pattern,
    ) -> Result<(), AccessError> {
        self.inner.fill(stream, range, pattern)
    }

    fn wait(&self, stream: StreamId, point: StreamPoint) -> Result<(), AccessError> {
        self.inner.wait(stream, point)
    }
}

#[test]
fn a_free_waits_for_a_check_that_reads_the_guards() {
    let inner = best_fit(1 << 12, 256, 8);
    let access = Stops {
        inner: buffer(1 << 12),
        reading: AtomicBool::new(false),
        freed: AtomicBool::new(false),
    };
    let guarded: Guarded<_, _, Told> =
        Guarded::with_wait(&inner, &access, GuardConfig::new(), 2).unwrap();
    let block = guarded.alloc(&Request::new(100)).unwrap().block;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !access.reading.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            guarded.free(block).unwrap();
            access.freed.store(true, Ordering::SeqCst);
        });
        assert_eq!(guarded.check_all(|find| panic!("{find}")), 0);
    });
    assert_eq!(inner.stats().live_bytes, 0);
}
