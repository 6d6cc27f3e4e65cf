//! Counts the work of one call, and of all calls of a tick together.
#![allow(clippy::unwrap_used, reason = "tests")]

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::super::class::SizeClass;
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::slot::Chain;
use super::super::span::{Span, SpanMemory};
use super::super::thread_cache::{CacheBin, ThreadCache};
use super::SpanSet;
use super::give_back::RECEIVED;
use super::growth::FLUSH_EVERY_BYTES;
use super::walk::SetWalk;

const BLOCK_BYTES: usize = 256;
const BLOCKS: usize = 8;
const SPAN_BYTES: usize = BLOCKS * BLOCK_BYTES;
const SPANS: usize = 300;

#[derive(Clone, Copy)]
#[repr(align(2048))]
struct Memory(MaybeUninit<[u8; SPAN_BYTES]>);

/// Memory for `SPANS` spans, which are allocated from the lowest address up, and their records.
struct Region {
    memory: [Memory; SPANS],
    records: [MaybeUninit<Span>; SPANS],
    /// Number of spans allocated, and number of spans freed again.
    given: usize,
    freed: usize,
    discards: usize,
    /// The additional cost of each discard.
    discard_cost: usize,
    under_pressure: bool,
}

impl Region {
    const fn new() -> Self {
        Self {
            memory: [Memory(MaybeUninit::uninit()); SPANS],
            records: [const { MaybeUninit::uninit() }; SPANS],
            given: 0,
            freed: 0,
            discards: 0,
            discard_cost: 0,
            under_pressure: false,
        }
    }
}

// SAFETY: spans do not overlap and are in the region, records in a table that stays; each span is allocated once.
unsafe impl Pages for Region {
    fn span_bytes(&self, _: SizeClass) -> usize {
        SPAN_BYTES
    }

    fn alloc_span(&mut self, _: SizeClass) -> Option<SpanMemory> {
        let number = self.given;
        self.given += 1;
        Some(SpanMemory {
            record: self.records.get_mut(number)?.as_mut_ptr(),
            base: self.memory.get_mut(number)?.0.as_mut_ptr().cast(),
            clean: false,
        })
    }

    fn under_pressure(&self) -> bool {
        self.under_pressure
    }

    unsafe fn free_span(&mut self, _: *mut Span) {
        self.freed += 1;
    }

    fn page_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    unsafe fn discard(&mut self, _: *mut u8, _: usize) -> Option<usize> {
        self.discards += 1;
        Some(self.discard_cost)
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let number = block.addr().wrapping_sub(self.memory.as_ptr().addr()) / SPAN_BYTES;
        let record = self.records.get(number)?.as_ptr();
        NonNull::new(record.cast_mut())
    }

    fn alloc_block(&mut self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn free_block(&mut self, _: *mut u8) {}
}

/// A set whose every span is full of used blocks of one class.
struct Full<'a> {
    set: SpanSet,
    queue: &'a RemoteQueue,
    pages: &'a mut Region,
    class: SizeClass,
    blocks: [*mut u8; SPANS * BLOCKS],
}

impl<'a> Full<'a> {
    fn new(queue: &'a RemoteQueue, pages: &'a mut Region) -> Self {
        let (mut set, mut cache) = (SpanSet::without_transfer_caches(), ThreadCache::new());
        let class = SizeClass::of(BLOCK_BYTES, 8).unwrap();
        let blocks = [(); SPANS * BLOCKS].map(|()| {
            // SAFETY: the cache belongs to the test, and its blocks are free.
            let block = unsafe { CacheBin::pop(cache.of(class)) };
            if !block.is_null() {
                return block;
            }
            // SAFETY: the set's own queue, cache and pages.
            let fresh = unsafe { set.refill(queue, class, &mut cache, pages) };
            fresh.unwrap().block.as_ptr()
        });
        assert_eq!(pages.given, SPANS);
        pages.discards = 0;
        Self {
            set,
            queue,
            pages,
            class,
            blocks,
        }
    }

    /// Frees all blocks but the first `kept` of each span.
    fn free(&mut self, kept: usize) {
        for block in self.blocks {
            if block.addr() % SPAN_BYTES / BLOCK_BYTES >= kept {
                // SAFETY: the block belongs to the test and is no longer used.
                unsafe { self.set.free(self.queue, block, self.pages) };
            }
        }
    }
}

#[test]
fn a_tick_comes_to_each_span_once_and_in_one_call_to_as_many_as_the_budget_says() {
    let (queue, mut pages) = (RemoteQueue::new(), Region::new());
    let mut full = Full::new(&queue, &mut pages);
    full.free(1);
    for tick in 1..=2 {
        full.set.looks = 0;
        let mut all = usize::MAX;
        // SAFETY: the set's own queue and pages.
        assert!(unsafe { full.set.age(full.queue, &mut all, full.pages) });
        loop {
            let before = full.set.looks;
            // SAFETY: the set's own queue and pages.
            let done = unsafe { full.set.settle(full.queue, &mut 8, full.pages) };
            let looks = full.set.looks - before;
            assert!(looks <= 8, "{looks} spans in one call");
            if done {
                break;
            }
        }
        assert_eq!(full.set.looks, SPANS, "tick {tick}");
    }
    assert_eq!(full.pages.discards, SPANS, "one run of free pages each");
    assert!(!full.set.has_idle());
}

#[test]
fn under_pressure_no_empty_span_is_kept_and_one_tick_scans_all_others() {
    let (queue, mut pages) = (RemoteQueue::new(), Region::new());
    let mut full = Full::new(&queue, &mut pages);
    full.pages.under_pressure = true;
    let (gone, rest) = full.blocks.split_at(BLOCKS);
    for block in gone.iter().chain(rest.iter().step_by(BLOCKS)) {
        // SAFETY: the block belongs to the test and is no longer used.
        unsafe { full.set.free(full.queue, *block, full.pages) };
    }
    let mut all = usize::MAX;
    // SAFETY: the set's own queue and pages.
    assert!(unsafe { full.set.age(full.queue, &mut all, full.pages) });
    assert_eq!(full.pages.freed, 1, "the only one without a used block");
    full.pages.discard_cost = 1000;
    for span in 1.. {
        // SAFETY: the set's own queue and pages.
        let done = unsafe { full.set.settle(full.queue, &mut 1000, full.pages) };
        if done {
            break;
        }
        assert_eq!(full.pages.discards, span, "one costs all of the budget");
    }
    assert_eq!(full.pages.discards, SPANS - 1, "one block each");
    assert!(full.set.is_sound());
}

#[test]
fn spans_that_others_freed_blocks_of_are_received_a_bounded_number_at_a_time() {
    let (queue, mut pages) = (RemoteQueue::new(), Region::new());
    let mut full = Full::new(&queue, &mut pages);
    for block in full.blocks {
        let span = full.pages.span_of(block).unwrap().as_ptr();
        // SAFETY: a block of the span, no longer used.
        unsafe { Span::give_remote(span, Chain::one(block.cast())) };
    }
    // SAFETY: the set's own queue and pages.
    let receive = |full: &mut Full| unsafe { full.set.receive(full.queue, full.pages) };
    assert!(!receive(&mut full), "there are more");
    assert_eq!(full.pages.freed, RECEIVED - 1, "one empty span is kept");
    assert!(queue.is_empty() && full.set.has_idle());
    assert!(receive(&mut full));
    assert_eq!(full.pages.freed, SPANS - 1);
    assert!(full.set.is_sound());
}

#[test]
fn a_walk_goes_on_though_its_next_span_leaves_the_list() {
    let (queue, mut pages) = (RemoteQueue::new(), Region::new());
    let mut full = Full::new(&queue, &mut pages);
    full.free(1);
    for _ in 0..SPANS {
        // SAFETY: the set's own queue and pages.
        unsafe { full.set.walk(SetWalk::Tick, &mut 1, full.pages) };
        let next = full.set.class(full.class).walk;
        if next.is_null() {
            break;
        }
        // The last block of the span that the walk visits next.
        // SAFETY: the owner may read it.
        let block = unsafe { Span::shape(next) }.base;
        // SAFETY: the block belongs to the test and is no longer used.
        unsafe { full.set.free(full.queue, block, full.pages) };
    }
    assert_eq!(
        full.set.looks,
        SPANS / 2 + 1,
        "the others left, but for the first of them"
    );
    assert!(full.set.is_sound());
}

#[test]
fn spans_are_left_alone_a_bounded_number_at_a_time_and_scanned_no_more() {
    let (queue, mut pages) = (RemoteQueue::new(), Region::new());
    let mut full = Full::new(&queue, &mut pages);
    full.free(1);
    full.set.forget_looks();
    let mut calls = 1;
    while !full.set.leave_idle(&mut 8) {
        calls += 1;
    }
    assert_eq!(calls, SPANS.div_ceil(8));
    assert!(!full.set.has_idle());
    for _ in 0..3 {
        // SAFETY: the set's own queue and pages.
        assert!(unsafe { full.set.settle(full.queue, &mut 8, full.pages) });
    }
    assert_eq!(full.pages.discards, 0);
}

#[test]
fn what_is_at_hand_is_given_up_a_bounded_number_of_blocks_at_a_time() {
    const COUNT: usize = SPANS * SPAN_BYTES / 16;
    let (queue, mut pages) = (RemoteQueue::new(), Region::new());
    let (mut set, mut cache) = (SpanSet::default(), ThreadCache::new());
    let class = SizeClass::of(16, 8).unwrap();
    let mut alloc = || {
        // SAFETY: the cache belongs to the test, and its blocks are free.
        let block = unsafe { CacheBin::pop(cache.of(class)) };
        if !block.is_null() {
            return block;
        }
        // SAFETY: the set's own queue, cache and pages.
        let fresh = unsafe { set.refill(&queue, class, &mut cache, &mut pages) };
        fresh.unwrap().block.as_ptr()
    };
    // Each block holds the previous one.
    let mut last = core::ptr::null_mut();
    for _ in 0..COUNT {
        let block: *mut *mut u8 = alloc().cast();
        // SAFETY: the block belongs to the test and has 16 bytes.
        unsafe { block.write(last) };
        last = block.cast();
    }
    while !last.is_null() {
        let block = last;
        // SAFETY: written above.
        last = unsafe { block.cast::<*mut u8>().read() };
        // SAFETY: the block belongs to the test and is no longer used.
        while !unsafe { CacheBin::push(cache.of(class), block) } {
            // SAFETY: the set's own queue, cache and pages.
            unsafe { set.make_room(&queue, class, &mut cache, &mut pages) };
        }
    }
    let at_hand = |set: &SpanSet| set.usage(class, SPAN_BYTES).transfer_blocks as usize;
    let bin = set.policy.bin_blocks(class);
    assert!(at_hand(&set) >= COUNT / 2 - bin);
    // First a call that allocates a lot, then one that allocates little.
    for (bytes, most) in [(usize::MAX, 4096 + bin), (1 << 10, 256 + bin)] {
        set.made_bytes = FLUSH_EVERY_BYTES;
        assert!(set.flush_is_due());
        let before = at_hand(&set);
        // SAFETY: the set's own queue, cache and pages.
        unsafe { set.flush_some(&queue, &mut cache, bytes, &mut pages) };
        let given = before - at_hand(&set);
        assert!((most / 2..=most).contains(&given), "{given} for {bytes}");
    }
    // Under pressure the transfer cache takes no list.
    pages.under_pressure = true;
    let before = at_hand(&set);
    // SAFETY: the set's own queue, cache and pages.
    unsafe { set.make_room(&queue, class, &mut cache, &mut pages) };
    assert_eq!(at_hand(&set), before);
    let mut calls = 0;
    while set.flush_is_due() {
        // SAFETY: the set's own queue, cache and pages.
        unsafe { set.flush_some(&queue, &mut cache, 1 << 10, &mut pages) };
        calls += 1;
    }
    assert!(calls > 20, "{calls}");
    assert_eq!((at_hand(&set), pages.freed), (0, SPANS));
    assert!(set.is_sound());
}
