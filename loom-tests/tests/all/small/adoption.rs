//! Models heaps that are parked, adopted, made and trimmed at once (HEAP1, HEAP2, HEAP3): a heap has one owner at a
//! time, which finds the whole cache.

use std::ptr;

use larder_core::small::SpanSet;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::small::owner::Owner;
use crate::small::world::{SLOT_BYTES, World, model};

/// Parks a heap with two blocks in its cache.
fn park_with_two_blocks(mut owner: Owner) {
    owner.use_two();
    owner.park();
}

/// Adopts a heap, uses two blocks and parks the heap. Returns whether there was a heap to adopt.
fn live(world: &'static World) -> bool {
    let Some(mut owner) = world.adopt() else {
        return false;
    };
    owner.use_two();
    owner.park();
    true
}

#[test]
fn a_parked_heap_has_one_owner_at_a_time_who_finds_all_its_bins() {
    model(1, SLOT_BYTES, 2, |world| {
        park_with_two_blocks(world.owner(0));
        let other = thread::spawn(move || live(world));
        let mine = live(world);
        assert!(other.join().unwrap() || mine);
        assert_eq!(
            world.usage(world.heap(0)).spans,
            1,
            "the cache was handed over"
        );
    });
}

#[test]
fn two_threads_that_start_while_a_third_ends_get_a_heap_each_or_none() {
    model(2, SLOT_BYTES, 2, |world| {
        park_with_two_blocks(world.owner(0));
        let ending = world.owner(1);
        let one = thread::spawn(move || world.adopt());
        let two = thread::spawn(move || world.adopt());
        park_with_two_blocks(ending);
        let owners = [one.join().unwrap(), two.join().unwrap()];
        assert!(
            owners.iter().any(Option::is_some),
            "one was parked all the time"
        );
        for mut owner in owners.into_iter().flatten() {
            owner.use_two();
            assert_eq!(
                world.usage(owner.heap).spans,
                1,
                "the cache was handed over"
            );
            owner.park();
        }
    });
}

#[test]
fn a_heap_trimmed_while_it_is_adopted_keeps_or_hands_over_its_bins() {
    model(1, SLOT_BYTES, 2, |world| {
        park_with_two_blocks(world.owner(0));
        let trimmer = thread::spawn(move || world.trim());
        assert!(live(world));
        trimmer.join().unwrap();
    });
}

#[test]
fn a_heap_made_while_all_are_trimmed_is_trimmed_whole_or_not_at_all() {
    model(2, SLOT_BYTES, 2, |world| {
        park_with_two_blocks(world.owner(0));
        let made = thread::spawn(move || park_with_two_blocks(world.owner(1)));
        let mut seen = Vec::new();
        world.pool.for_each(|heap| seen.push(ptr::from_ref(heap)));
        let older = ptr::from_ref(world.heap(0));
        assert_eq!(seen.last(), Some(&older), "it was there all the time");
        world.trim();
        made.join().unwrap();
    });
}

#[test]
fn a_block_freed_to_a_heap_without_a_thread_waits_for_the_next_owner() {
    model(1, SLOT_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let [kept, given] = owner.alloc_all();
        let other = thread::spawn(move || world.free_singly([given]));
        owner.free(kept);
        owner.park();
        let next = thread::spawn(move || assert!(live(world)));
        other.join().unwrap();
        next.join().unwrap();
    });
}

/// The broken twin of parking: the former owner uses the cache of a parked heap.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_bins_used_after_parking_are_found() {
    model(1, SLOT_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let block = owner.alloc();
        let next = thread::spawn(move || live(world));
        // SAFETY: none, which is the point: the heap is used afterwards.
        unsafe { world.pool.park(owner.heap) };
        owner.free(block);
        next.join().unwrap();
    });
}

/// The broken twin of trimming: a cache is flushed without a check, under the lock, that its heap has no owner.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_heap_trimmed_without_asking_for_its_owner_is_found() {
    model(1, SLOT_BYTES, 2, |world| {
        park_with_two_blocks(world.owner(0));
        let trimmer = thread::spawn(move || {
            let heap = world.heap(0);
            world.touch(heap);
            let flush = |owner, set: &mut SpanSet| {
                // SAFETY: none, which is the point: another thread may own the heap.
                let cache = unsafe { &mut *heap.cache() };
                // SAFETY: the heap's own remote-free queue; its cache may be in use, as above.
                unsafe { set.flush(owner, cache, &mut &*world) };
            };
            // SAFETY: the heap's set stays in place.
            unsafe { heap.with(flush) };
        });
        live(world);
        trimmer.join().unwrap();
    });
}

/// A copy of the two lists of `HeapPool`, with numbers in place of pointers. As there, one lock guards both lists.
struct Lists {
    heads: Mutex<[Option<usize>; 2]>,
    parked: [UnsafeCell<Option<usize>>; 2],
    older: [UnsafeCell<Option<usize>>; 2],
    /// The cells that only an owner touches.
    owned: [UnsafeCell<()>; 2],
}

const PARKED: usize = 0;
const ALL: usize = 1;

// SAFETY: loom checks every cell.
unsafe impl Sync for Lists {}

impl Lists {
    fn new() -> Arc<Self> {
        let links = || [UnsafeCell::new(None), UnsafeCell::new(None)];
        Arc::new(Self {
            heads: Mutex::new([None; 2]),
            parked: links(),
            older: links(),
            owned: [UnsafeCell::new(()), UnsafeCell::new(())],
        })
    }

    /// Finds a parked heap and takes it, in one critical section if `whole`, otherwise in two.
    fn adopt(&self, whole: bool) -> Option<usize> {
        let mut heads = self.heads.lock().unwrap();
        let heap = heads[PARKED]?;
        if !whole {
            drop(heads);
            heads = self.heads.lock().unwrap();
        }
        // SAFETY: read under the lock.
        heads[PARKED] = self.parked[heap].with(|link| unsafe { *link });
        drop(heads);
        self.owned[heap].with_mut(|_| ());
        Some(heap)
    }

    /// Enters a heap into the list. If `late`, its link is written only after the lock is released.
    fn enter(&self, heap: usize, late: bool) {
        let mut heads = self.heads.lock().unwrap();
        let older = heads[ALL].replace(heap);
        if late {
            drop(heads);
        }
        // SAFETY: loom checks the access.
        self.older[heap].with_mut(|link| unsafe { *link = older });
    }

    fn park(&self, heap: usize) {
        let mut heads = self.heads.lock().unwrap();
        let below = heads[PARKED].replace(heap);
        // SAFETY: written under the lock.
        self.parked[heap].with_mut(|link| unsafe { *link = below });
    }

    fn count(&self) -> usize {
        let mut at = self.heads.lock().unwrap()[ALL];
        let mut count = 0;
        while let Some(heap) = at {
            count += 1;
            // SAFETY: loom checks the access.
            at = self.older[heap].with(|link| unsafe { *link });
        }
        count
    }
}

fn two_threads_adopt(whole: bool) {
    loom::model(move || {
        let lists = Lists::new();
        lists.park(0);
        lists.park(1);
        let other = Arc::clone(&lists);
        let thread = thread::spawn(move || other.adopt(whole));
        let mine = lists.adopt(whole);
        let theirs = thread.join().unwrap();
        assert!(
            mine.is_some() && theirs.is_some() && mine != theirs,
            "two owners"
        );
    });
}

fn one_enters_while_another_counts(late: bool) {
    loom::model(move || {
        let lists = Lists::new();
        lists.enter(0, false);
        let other = Arc::clone(&lists);
        let thread = thread::spawn(move || other.enter(1, late));
        let count = lists.count();
        assert!(count == 1 || count == 2);
        thread.join().unwrap();
    });
}

models! {
    the_copy_of_the_pool_is_sound_while_nothing_is_broken =>
        { two_threads_adopt(true); one_enters_while_another_counts(false) };
    /// The broken twin of adopting: the lock is released between finding a heap and taking it.
    broken_twin_a_heap_taken_after_a_look_is_found rejected "Causality violation" => two_threads_adopt(false);
    /// The broken twin of entering: the heap is visible before its link is written.
    broken_twin_a_link_written_after_entering_is_found rejected "Causality violation" =>
        one_enters_while_another_counts(true);
}
