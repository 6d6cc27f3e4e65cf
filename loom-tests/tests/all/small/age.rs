//! Models aging (HEAP3, HEAP4, SET5) by another thread's ticks while a heap is used, parked or adopted: a tick loses no
//! block, doubles none, and leaves an owner's cache alone.

use larder_core::small::{RemoteQueue, SpanSet};
use loom::thread;

use crate::small::world::{BIN_BYTES, SLOT_BYTES, World, model};

/// Runs the purger's tick over all heaps.
fn tick(world: &'static World) {
    world.pool.for_each(|heap| {
        world.flush_idle(heap);
        let receive = |owner, set: &mut SpanSet| {
            // SAFETY: the heap's own remote-free queue, with the same pages in every call.
            unsafe { set.receive(owner, &mut &*world) };
        };
        // SAFETY: the set stays where it is.
        unsafe { heap.with(receive) };
        // In steps, between which other threads can take the lock.
        let steps = |step: fn(*const RemoteQueue, &mut SpanSet, &'static World) -> bool| loop {
            let step = |owner, set: &mut SpanSet| {
                let done = step(owner, set, world);
                assert!(set.is_sound());
                done
            };
            // SAFETY: the set stays where it is.
            if unsafe { heap.with(step) } {
                break;
            }
        };
        // SAFETY: the heap's own remote-free queue, with the same pages in every call.
        steps(|owner, set, world| unsafe { set.age(owner, &mut 1, &mut &*world) });
        // SAFETY: the heap's own remote-free queue, with the same pages in every call.
        steps(|owner, set, world| unsafe { set.settle(owner, &mut 1, &mut &*world) });
    });
}

#[test]
fn a_transfer_cache_aged_while_its_owner_empties_and_fills_it_loses_and_doubles_nothing() {
    model(1, BIN_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        owner.use_two();
        let ticking = thread::spawn(move || {
            tick(world);
            tick(world);
        });
        owner.use_two();
        ticking.join().unwrap();
        owner.flush();
    });
}

#[test]
fn a_heap_aged_while_it_is_adopted_keeps_or_hands_over_its_bins() {
    model(1, SLOT_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        owner.use_two();
        owner.park();
        let ticking = thread::spawn(move || {
            tick(world);
            tick(world);
        });
        let mut owner = world.adopt().unwrap();
        owner.use_two();
        owner.park();
        ticking.join().unwrap();
    });
}

#[test]
fn two_ticks_take_home_all_that_nobody_needs() {
    model(1, BIN_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let [first, second] = owner.alloc_all();
        owner.free(first);
        let other = thread::spawn(move || world.free_singly([second]));
        owner.park();
        other.join().unwrap();
        tick(world);
        assert_eq!(world.live_spans(), 1, "it is young");
        tick(world);
        assert_eq!(world.live_spans(), 0, "two ticks are enough");
        // SAFETY: the set is only read.
        assert!(!unsafe { world.heap(0).with(|_, set| set.has_idle()) });
    });
}

/// The broken twin: a tick flushes a heap's cache without a check that the heap has no owner.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_tick_that_takes_an_owners_bins_is_found() {
    model(1, SLOT_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let block = owner.alloc();
        owner.free(block);
        owner.park();
        let ticking = thread::spawn(move || {
            let heap = world.heap(0);
            let flush = |owner, set: &mut SpanSet| {
                world.touch(heap);
                // SAFETY: none, which is the point: another thread may own the heap.
                let cache = unsafe { &mut *heap.cache() };
                // SAFETY: the heap's own remote-free queue, with the same pages in every call.
                unsafe { set.flush(owner, cache, &mut &*world) };
            };
            // SAFETY: the set stays where it is.
            unsafe { heap.with(flush) };
        });
        let mut owner = world.adopt().unwrap();
        let block = owner.alloc();
        owner.free(block);
        owner.park();
        ticking.join().unwrap();
    });
}

/// The broken twin: a set is used without its lock during a tick.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_tick_without_the_lock_is_found() {
    model(1, BIN_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let [first, second] = owner.alloc_all();
        owner.free(first);
        let ticking = thread::spawn(move || tick(world));
        // SAFETY: none: the pointer to the set outlives the lock.
        let set = unsafe { owner.heap.with(|_, set| std::ptr::from_mut(set)) };
        // SAFETY: none, which is the point: the set is used without its lock.
        owner.make_room_in(owner.heap.remote_queue(), unsafe { &mut *set });
        owner.free(second);
        ticking.join().unwrap();
        owner.flush();
    });
}
