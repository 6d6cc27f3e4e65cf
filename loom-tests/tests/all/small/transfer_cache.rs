//! Models a transfer cache (HEAP3, SET1): its owner and trimming threads use it only under its heap's lock, and no
//! block is lost or doubled.

use std::ptr;

use loom::thread;

use crate::small::owner::Owner;
use crate::small::world::{BIN_BYTES, World, model};

/// Returns an owner with two cached blocks, each of which fills a bin.
fn two_blocks(world: &'static World) -> Owner {
    let mut owner = world.owner(0);
    owner.use_two();
    assert_eq!(world.usage(owner.heap).transfer_blocks, 1);
    owner
}

#[test]
fn a_transfer_cache_trimmed_while_its_owner_empties_and_fills_it_loses_and_doubles_nothing() {
    model(1, BIN_BYTES, 2, |world| {
        let mut owner = two_blocks(world);
        let trimmer = thread::spawn(move || world.trim());
        owner.use_two();
        trimmer.join().unwrap();
        assert_eq!(
            world.usage(owner.heap).used_blocks,
            1 + world.usage(owner.heap).transfer_blocks
        );
        owner.flush();
    });
}

#[test]
fn a_block_freed_by_another_thread_while_the_heap_is_trimmed_is_home_or_waits() {
    model(1, BIN_BYTES, 3, |world| {
        let mut owner = world.owner(0);
        let [given, first, second] = owner.alloc_all();
        owner.free(first);
        owner.free(second);
        let other = thread::spawn(move || world.free_singly([given]));
        let trimmer = thread::spawn(move || world.trim());
        owner.use_two();
        other.join().unwrap();
        trimmer.join().unwrap();
        owner.flush();
    });
}

/// The broken twin: the owner fills the transfer cache without the lock.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_transfer_cache_filled_without_the_lock_is_found() {
    model(1, BIN_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let [first, second] = owner.alloc_all();
        owner.free(first);
        let trimmer = thread::spawn(move || world.trim());
        // SAFETY: none: the pointer to the set outlives the lock.
        let set = unsafe { owner.heap.with(|_, set| ptr::from_mut(set)) };
        // SAFETY: none, which is the point: the set is used without its lock.
        owner.make_room_in(owner.heap.remote_queue(), unsafe { &mut *set });
        owner.free(second);
        trimmer.join().unwrap();
        owner.flush();
    });
}

/// The broken twin: the owner takes from the transfer cache without the lock.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_transfer_cache_emptied_without_the_lock_is_found() {
    model(1, BIN_BYTES, 2, |world| {
        let mut owner = two_blocks(world);
        let first = owner.alloc();
        // SAFETY: none: the pointer to the set outlives the lock.
        let set = unsafe { owner.heap.with(|_, set| ptr::from_mut(set)) };
        let trimmer = thread::spawn(move || world.trim());
        // Without this, the trimmer could not run before the refill.
        thread::yield_now();
        // SAFETY: none, which is the point: the set is used without its lock.
        let second = owner.refill_from(owner.heap.remote_queue(), unsafe { &mut *set });
        owner.free(first);
        owner.free(second);
        trimmer.join().unwrap();
        owner.flush();
    });
}
