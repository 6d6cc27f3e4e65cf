//! Caches that may hold a limited number of bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

use core::ptr::NonNull;

use super::super::class::SizeClass;
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::slot::Chain;
use super::super::span::{Span, SpanMemory};
use super::super::thread_cache::{CacheBin, ThreadCache};
use super::SpanSet;

extern crate std;
use std::alloc::{Layout, alloc};
use std::boxed::Box;
use std::vec::Vec;

const SPAN_BYTES: usize = 64 << 10;
const SIZES: usize = 48;

/// Spans from the system, never freed, and a limit on the bytes of a cache.
struct Source {
    spans: Vec<NonNull<Span>>,
    cache_bytes: usize,
}

// SAFETY: spans are allocations of their own, and records are boxes; neither is freed.
unsafe impl Pages for Source {
    fn span_bytes(&self, _: SizeClass) -> usize {
        SPAN_BYTES
    }

    fn alloc_span(&mut self, _: SizeClass) -> Option<SpanMemory> {
        let layout = Layout::from_size_align(SPAN_BYTES, SPAN_BYTES).ok()?;
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(layout) };
        let record = Box::leak(Box::<Span>::new_uninit()).as_mut_ptr();
        self.spans.push(NonNull::new(record)?);
        Some(SpanMemory {
            record,
            base,
            clean: false,
        })
    }

    unsafe fn free_span(&mut self, _: *mut Span) {}

    fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let holds = |span: &&NonNull<Span>| {
            // SAFETY: the record was written before any block was taken.
            let shape = unsafe { Span::shape(span.as_ptr()) };
            block.addr().wrapping_sub(shape.base.addr()) < SPAN_BYTES
        };
        self.spans.iter().find(holds).copied()
    }

    fn alloc_block(&mut self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn free_block(&mut self, _: *mut u8) {}
}

/// A thread with a set of its own, and the blocks that it has.
struct World {
    set: SpanSet,
    queue: RemoteQueue,
    cache: ThreadCache,
    pages: Source,
    blocks: [Vec<*mut u8>; SIZES],
    /// Slow calls so far.
    slow: usize,
}

impl World {
    fn new(cache_bytes: usize) -> Self {
        Self {
            set: SpanSet::default(),
            queue: RemoteQueue::new(),
            cache: ThreadCache::new(),
            pages: Source {
                spans: Vec::new(),
                cache_bytes,
            },
            blocks: [const { Vec::new() }; SIZES],
            slow: 0,
        }
    }

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
        self.blocks[number].push(block);
    }

    fn free(&mut self, number: usize) {
        let Some(block) = self.blocks[number].pop() else {
            return;
        };
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

    fn is_sound(&self) -> bool {
        self.set.is_sound()
    }
}

fn next(seed: &mut u64) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

#[test]
fn all_bins_together_hold_no_more_than_the_bytes_of_a_cache() {
    for (seed, cache_bytes) in [
        (1, 0),
        (2, 1 << 10),
        (3, 16 << 10),
        (4, 64 << 10),
        (5, 256 << 10),
    ] {
        let (mut world, mut random) = (World::new(cache_bytes), seed);
        for step in 0..60_000 {
            let number = next(&mut random) % SIZES;
            // The number of blocks grows and falls.
            let grows = step / 6000 % 2 == 0;
            match next(&mut random) % 8 {
                0..5 if grows => world.make(number),
                0..3 => world.make(number),
                _ => world.free(number),
            }
            let bytes = world.capacity_bytes();
            assert!(
                bytes <= cache_bytes,
                "{bytes} of {cache_bytes}, step {step}"
            );
        }
        assert!(world.is_sound());
    }
}

#[test]
fn a_cache_that_has_too_much_shrinks_with_its_slow_calls() {
    for (numbers, cache_bytes) in [(0..SIZES, 64 << 10), (20..21, 8 << 10)] {
        let mut world = World::new(usize::MAX);
        for _ in 0..400 {
            numbers.clone().for_each(|number| world.make(number));
        }
        for _ in 0..400 {
            numbers.clone().for_each(|number| world.free(number));
        }
        let mut last = world.capacity_bytes();
        assert!(last > 3 * cache_bytes);
        world.pages.cache_bytes = cache_bytes;
        world.slow = 0;
        while last > cache_bytes {
            numbers.clone().for_each(|number| world.make(number));
            let bytes = world.capacity_bytes();
            assert!(bytes <= last, "{bytes} after {last}");
            last = bytes;
            assert!(world.slow < 1000, "still {bytes} bytes");
        }
        assert!(world.is_sound());
    }
}

#[test]
fn a_class_in_use_takes_its_room_from_the_others() {
    let mut world = World::new(64 << 10);
    let all = |world: &mut World, numbers: core::ops::Range<usize>| {
        for _ in 0..100 {
            numbers.clone().for_each(|number| world.make(number));
        }
        for _ in 0..100 {
            numbers.clone().for_each(|number| world.free(number));
        }
    };
    all(&mut world, 0..SIZES);
    let few = world.capacity(20);
    for _ in 0..40 {
        all(&mut world, 20..21);
    }
    let many = world.capacity(20);
    assert!(many > 4 * few, "{few}, then {many}");
    // And gives it back: the others need it again.
    for _ in 0..10 {
        all(&mut world, 0..SIZES);
    }
    assert!(world.capacity(20) < many);
    assert!(world.is_sound());
}

#[test]
fn lists_of_any_length_come_back_from_the_transfer_cache() {
    let mut world = World::new(8 << 10);
    let number = 7;
    (0..2000).for_each(|_| world.make(number));
    (0..2000).for_each(|_| world.free(number));
    let class = World::class(number);
    let lists = world.set.class(class).transfer_lists;
    let blocks = world.set.class(class).transfer_blocks;
    assert!(
        lists > 4 && blocks < 256 * u64::from(lists),
        "{blocks} in {lists}"
    );
    assert!(world.is_sound());
    world.slow = 0;
    (0..blocks).for_each(|_| world.make(number));
    assert!(
        world.slow <= lists as usize + 1,
        "{} slow calls",
        world.slow
    );
    assert!(world.is_sound());
}

#[test]
fn blocks_that_others_freed_are_taken_in_parts_that_the_cache_may_hold() {
    let mut world = World::new(4 << 10);
    let number = 7;
    (0..1500).for_each(|_| world.make(number));
    // Each span has a used block, so that it stays.
    let kept = |(index, _): &(usize, *mut u8)| index % 100 > 0;
    let blocks = core::mem::take(&mut world.blocks[number]);
    let freed: Vec<_> = blocks.into_iter().enumerate().filter(kept).collect();
    for (_, block) in &freed {
        let block = *block;
        let span = world.pages.span_of(block).unwrap();
        // SAFETY: a block of the span, no longer used.
        unsafe { Span::give_remote(span.as_ptr(), Chain::one(block.cast())) };
    }
    let spans = world.pages.spans.len();
    for _ in freed {
        world.make(number);
        assert!(world.capacity_bytes() <= 4 << 10);
    }
    assert_eq!(
        world.pages.spans.len(),
        spans,
        "all blocks were found again"
    );
    assert!(world.is_sound());
}
