//! Threads at once on one stack, and checks while others free.

use std::sync::atomic::{AtomicBool, Ordering};

use super::ground::{best_fit, buffer, places, rows};
use larder_core::decorate::{
    GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Tracked,
};
use larder_core::{BlockAllocator, Lane, MemoryAccess, Pattern, Request, Wait};
use larder_model::Random;

/// A thread that holds a lock may not be running.
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
    let tracked: Tracked<'_, _, _, Yield> = Tracked::with_ticks(&inner, || 0, places(64), None);
    let guarded: Guarded<'_, _, _, Yield> =
        Guarded::with_wait(&tracked, &access, GuardConfig::new(), rows(128));
    let config = QuarantineConfig::new(16 << 10);
    let quarantined: Quarantined<'_, _, _, Yield> =
        Quarantined::with_wait(&guarded, &access, config, places(32)).unwrap();
    let allocator = Poisoned::new(&quarantined, &access, Pattern::F32_NAN).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let (allocator, access) = (&allocator, &access);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut blocks = Vec::new();
                    for _ in 0..2000 {
                        if blocks.len() < 8 {
                            let request = Request::new(1 + random.below(900));
                            let block = allocator.alloc(&request).unwrap().block;
                            let pattern = Pattern::of_u8(seed as u8);
                            access.fill(Lane::MAIN, block.range(), pattern).unwrap();
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
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
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
