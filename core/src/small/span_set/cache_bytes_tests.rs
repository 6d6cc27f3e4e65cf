//! Caches that may hold a limited number of bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use super::super::class::SizeClass;
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::slot::Chain;
use super::super::span::{Span, SpanMemory};
use super::super::thread_cache::{CacheBin, ThreadCache};
use super::SpanSet;
use crate::sync::Locked;

const SPAN_BYTES: usize = 64 << 10;
const SPANS: usize = 512;
const SIZES: usize = 48;
/// Maximum length in bytes of a list here, and the room for frees that a bin has beside it.
const LIST_BYTES: usize = (32 << 10) / 4 * 5;
/// Maximum number of blocks of a class that a test has at the same time.
const BLOCKS: usize = 2048;

#[derive(Clone, Copy)]
#[repr(align(65536))]
struct SpanBytes(MaybeUninit<[u8; SPAN_BYTES]>);

/// Memory for spans and their records, and the blocks that a test has.
struct Memory {
    spans: [SpanBytes; SPANS],
    records: [MaybeUninit<Span>; SPANS],
    blocks: [[*mut u8; BLOCKS]; SIZES],
}

// SAFETY: the pointers lead into `spans`, and are used by the test that holds the lock.
unsafe impl Send for Memory {}

/// The memory of one test at a time; it is too long for a stack.
static MEMORY: Locked<Memory> = Locked::new(Memory {
    spans: [SpanBytes(MaybeUninit::uninit()); SPANS],
    records: [const { MaybeUninit::uninit() }; SPANS],
    blocks: [[ptr::null_mut(); BLOCKS]; SIZES],
});

/// Spans from [`MEMORY`], and a limit on the bytes of a cache.
struct Source<'a> {
    spans: &'a mut [SpanBytes; SPANS],
    records: &'a mut [MaybeUninit<Span>; SPANS],
    /// Numbers of the spans that are free.
    free: [u16; SPANS],
    free_count: usize,
    cache_bytes: usize,
}

// SAFETY: spans do not overlap, records stay where they are, and each span is free or given once.
unsafe impl Pages for Source<'_> {
    fn span_bytes(&self, _: SizeClass) -> usize {
        SPAN_BYTES
    }

    fn alloc_span(&mut self, _: SizeClass) -> Option<SpanMemory> {
        self.free_count = self.free_count.checked_sub(1)?;
        let number = usize::from(self.free[self.free_count]);
        Some(SpanMemory {
            record: self.records.get_mut(number)?.as_mut_ptr(),
            base: self.spans.get_mut(number)?.0.as_mut_ptr().cast(),
            clean: false,
        })
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: the record of a span.
        let base = unsafe { Span::shape(span) }.base.addr();
        let number = (base - self.spans.as_ptr().addr()) / SPAN_BYTES;
        self.free[self.free_count] = number as u16;
        self.free_count += 1;
    }

    fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let number = block.addr().wrapping_sub(self.spans.as_ptr().addr()) / SPAN_BYTES;
        NonNull::new(self.records.get(number)?.as_ptr().cast_mut())
    }

    fn alloc_block(&mut self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn free_block(&mut self, _: *mut u8) {}
}

/// A thread with a set of its own, and the blocks that it has.
struct World<'a> {
    set: SpanSet,
    queue: RemoteQueue,
    cache: ThreadCache,
    pages: Source<'a>,
    blocks: &'a mut [[*mut u8; BLOCKS]; SIZES],
    counts: [usize; SIZES],
    /// Slow calls so far.
    slow: usize,
}

/// Runs a test on a thread whose cache may hold `cache_bytes`.
fn run(cache_bytes: usize, test: impl FnOnce(&mut World<'_>)) {
    MEMORY.with(|memory| {
        let mut world = World {
            set: SpanSet::default(),
            queue: RemoteQueue::new(),
            cache: ThreadCache::new(),
            pages: Source {
                spans: &mut memory.spans,
                records: &mut memory.records,
                free: core::array::from_fn(|number| number as u16),
                free_count: SPANS,
                cache_bytes,
            },
            blocks: &mut memory.blocks,
            counts: [0; SIZES],
            slow: 0,
        };
        test(&mut world);
        assert!(world.set.is_sound());
    });
}

impl World<'_> {
    /// Returns the class of a number below [`SIZES`]: classes of 16 to 512 bytes, then some of 1 to 20 KiB.
    fn class(number: usize) -> SizeClass {
        let bytes = match number {
            0..32 => 16 * (number + 1),
            _ => 1280 * (number - 31),
        };
        SizeClass::of(bytes, 8).unwrap()
    }

    fn make(&mut self, number: usize) {
        let class = Self::class(number);
        // SAFETY: the cache belongs to the test, and its blocks are free.
        let mut block = unsafe { CacheBin::pop(self.cache.of(class)) };
        if block.is_null() {
            self.slow += 1;
            let (set, cache) = (&mut self.set, &mut self.cache);
            // SAFETY: the set's own queue, cache and pages.
            let fresh = unsafe { set.refill(&self.queue, class, cache, &mut self.pages) };
            block = fresh.unwrap().block.as_ptr();
        }
        // SAFETY: the block is the test's, and at least 8 bytes long.
        unsafe { block.cast::<usize>().write(block.addr()) };
        self.blocks[number][self.counts[number]] = block;
        self.counts[number] += 1;
    }

    fn free(&mut self, number: usize) {
        let Some(last) = self.counts[number].checked_sub(1) else {
            return;
        };
        self.counts[number] = last;
        let block = self.blocks[number][last];
        // SAFETY: the block is the test's.
        assert_eq!(unsafe { block.cast::<usize>().read() }, block.addr());
        let class = Self::class(number);
        // SAFETY: the block belongs to the test and is no longer used.
        if unsafe { CacheBin::push(self.cache.of(class), block) } {
            return;
        }
        self.slow += 1;
        let (set, cache) = (&mut self.set, &mut self.cache);
        // SAFETY: the set's own queue, cache and pages.
        unsafe { set.make_room(&self.queue, class, cache, &mut self.pages) };
        // SAFETY: the block belongs to the test and is no longer used.
        if !unsafe { CacheBin::push(cache.of(class), block) } {
            // SAFETY: the bin did not take the block.
            unsafe { set.free(&self.queue, block, &mut self.pages) };
        }
    }

    /// Returns the bytes that the bins may hold, by a walk over them (CACHE4).
    fn capacity_bytes(&mut self) -> usize {
        let bytes = |class| self.cache.of(class).capacity() * class.block_bytes();
        let sum = SizeClass::all().map(bytes).sum();
        assert_eq!(self.cache.capacity_bytes(), sum);
        sum
    }

    /// Returns the number of blocks that the bin of a class may hold.
    fn capacity(&mut self, number: usize) -> usize {
        self.cache.of(Self::class(number)).capacity()
    }
}

fn next(seed: &mut u64) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

#[test]
fn all_bins_together_hold_no_more_than_twice_the_bytes_of_a_cache_and_one_list() {
    for (seed, cache_bytes) in [
        (1, 0),
        (2, 1 << 10),
        (3, 16 << 10),
        (4, 64 << 10),
        (5, 256 << 10),
    ] {
        run(cache_bytes, |world| {
            let mut random = seed;
            for step in 0..60_000 {
                let number = next(&mut random) % SIZES;
                // The number of blocks grows and falls.
                let grows = step / 6000 % 2 == 0;
                match next(&mut random) % 8 {
                    3..5 if !grows => world.free(number),
                    0..5 => world.make(number),
                    _ => world.free(number),
                }
                let (bytes, bound) = (world.capacity_bytes(), 2 * cache_bytes + LIST_BYTES);
                assert!(bytes <= bound, "{bytes} of {bound}, step {step}");
            }
        });
    }
}

#[test]
fn a_cache_that_has_too_much_shrinks_with_its_slow_calls() {
    for (numbers, cache_bytes) in [(0..SIZES, 64 << 10), (20..21, 8 << 10)] {
        run(usize::MAX, |world| {
            for _ in 0..100 {
                numbers.clone().for_each(|number| world.make(number));
            }
            for _ in 0..100 {
                numbers.clone().for_each(|number| world.free(number));
            }
            assert!(world.capacity_bytes() > 3 * cache_bytes);
            world.pages.cache_bytes = cache_bytes;
            world.slow = 0;
            while world.capacity_bytes() > cache_bytes {
                numbers.clone().for_each(|number| world.make(number));
                let bytes = world.capacity_bytes();
                assert!(world.slow < 1500, "still {bytes} bytes");
            }
        });
    }
}

#[test]
fn a_class_in_use_takes_its_room_from_the_others_and_loses_it_to_them() {
    let all = |world: &mut World<'_>, numbers: core::ops::Range<usize>| {
        for _ in 0..100 {
            numbers.clone().for_each(|number| world.make(number));
        }
        for _ in 0..100 {
            numbers.clone().for_each(|number| world.free(number));
        }
    };
    run(64 << 10, |world| {
        all(world, 0..SIZES);
        let few = world.capacity(20);
        for _ in 0..40 {
            all(world, 20..21);
        }
        let many = world.capacity(20);
        assert!(many > 4 * few, "{few}, then {many}");
        for _ in 0..10 {
            all(world, 0..SIZES);
        }
        assert!(world.capacity(20) < many);
    });
}

#[test]
fn lists_of_any_length_come_back_from_the_transfer_cache() {
    run(8 << 10, |world| {
        let number = 7;
        (0..BLOCKS).for_each(|_| world.make(number));
        (0..BLOCKS).for_each(|_| world.free(number));
        let class = World::class(number);
        let lists = world.set.class(class).transfer_lists;
        let blocks = world.set.class(class).transfer_blocks;
        let whole = 256 * u64::from(lists);
        assert!(lists > 4 && blocks < whole, "{blocks} in {lists}");
        assert!(world.set.is_sound());
        world.slow = 0;
        (0..blocks).for_each(|_| world.make(number));
        let slow = world.slow;
        assert!(slow <= lists as usize + 1, "{slow} slow calls");
    });
}

#[test]
fn blocks_that_others_freed_are_taken_in_parts_if_the_cache_has_too_much() {
    run(4 << 10, |world| {
        let number = 7;
        (0..1500).for_each(|_| world.make(number));
        // Each span has a used block, so that it stays.
        let freed = (0..1500).filter(|index| index % 100 > 0);
        for index in freed.clone() {
            let block = world.blocks[number][index];
            let span = world.pages.span_of(block).unwrap();
            // SAFETY: a block of the span, no longer used.
            unsafe { Span::give_remote(span.as_ptr(), Chain::one(block.cast())) };
        }
        world.counts[number] = 0;
        // Another class has much more than twice what the cache may hold from now on.
        world.pages.cache_bytes = usize::MAX;
        (0..200).for_each(|_| world.make(30));
        world.pages.cache_bytes = 64;
        let spans = world.pages.free_count;
        let before = world.capacity_bytes();
        assert!(before > 4 << 10);
        world.slow = 0;
        for _ in freed {
            world.make(number);
            let list = if world.slow <= 1 {
                0
            } else {
                SPAN_BYTES / 4 * 5
            };
            assert!(world.capacity_bytes() <= before + list);
        }
        assert_eq!(world.pages.free_count, spans, "all blocks were found again");
    });
}

#[test]
fn lists_of_the_transfer_cache_are_taken_in_parts_if_the_cache_has_too_much() {
    run(usize::MAX, |world| {
        let number = 7;
        (0..BLOCKS).for_each(|_| world.make(number));
        (0..BLOCKS).for_each(|_| world.free(number));
        (0..200).for_each(|_| world.make(30));
        let whole = world.capacity(number);
        world.pages.cache_bytes = 64;
        world.slow = 0;
        while world.slow == 0 {
            world.make(number);
        }
        assert!(world.capacity(number) < whole);
    });
}

#[test]
fn a_list_that_is_longer_than_a_bin_may_be_does_not_enter_the_transfer_cache() {
    run(usize::MAX, |world| {
        let number = 0;
        (0..BLOCKS).for_each(|_| world.make(number));
        for index in 0..800 {
            let block = world.blocks[number][index];
            let span = world.pages.span_of(block).unwrap();
            // SAFETY: a block of the span, no longer used.
            unsafe { Span::give_remote(span.as_ptr(), Chain::one(block.cast())) };
        }
        world.blocks[number].copy_within(800.., 0);
        world.counts[number] = BLOCKS - 800;
        while world.capacity(number) <= 256 {
            world.make(number);
        }
        (0..BLOCKS).for_each(|_| world.free(number));
        assert!(world.set.is_sound());
    });
}
