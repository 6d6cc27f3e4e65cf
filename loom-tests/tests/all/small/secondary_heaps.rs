//! Models secondary heaps (HEAP4, HEAP5), which share the set of a primary heap with its owner and with each other: no
//! block is lost or allocated twice.

use loom::thread;

use crate::small::world::{SLOT_BYTES, World, model_with_secondaries};

fn live_as_secondary(world: &'static World) {
    if let Some(mut secondary) = world.adopt_secondary() {
        secondary.use_two();
        secondary.park();
    }
}

#[test]
fn a_primary_and_its_secondary_never_have_one_block() {
    model_with_secondaries(1, 1, SLOT_BYTES, 2, |world| {
        let mut primary = world.owner(0);
        let mut secondary = world.new_secondary(1);
        let other = thread::spawn(move || {
            secondary.use_two();
            secondary.flush();
            secondary.park();
        });
        primary.use_two();
        other.join().unwrap();
        primary.flush();
    });
}

#[test]
fn blocks_that_a_secondary_was_given_come_back_from_any_thread() {
    model_with_secondaries(1, 1, SLOT_BYTES, 2, |world| {
        let primary = world.owner(0);
        let mut secondary = world.new_secondary(1);
        let [mine, theirs] = secondary.alloc_all();
        let other = thread::spawn(move || world.free_singly([theirs]));
        let receiving = thread::spawn(move || primary.receive());
        secondary.free(mine);
        secondary.flush();
        secondary.park();
        other.join().unwrap();
        receiving.join().unwrap();
    });
}

#[test]
fn a_parked_secondary_that_is_emptied_while_it_is_taken_keeps_or_hands_over_its_bins() {
    model_with_secondaries(1, 1, SLOT_BYTES, 2, |world| {
        let _primary = world.owner(0);
        let mut secondary = world.new_secondary(1);
        secondary.use_two();
        secondary.park();
        let ticking = thread::spawn(move || world.flush_idle(world.heap(1)));
        live_as_secondary(world);
        ticking.join().unwrap();
    });
}

#[test]
fn a_secondary_that_changes_primaries_takes_the_blocks_in_its_bins_along() {
    model_with_secondaries(2, 1, SLOT_BYTES, 2, |world| {
        let first = world.owner(0);
        let mut secondary = world.new_secondary(2);
        secondary.use_two();
        secondary.park();
        // The newer primary heap has fewer threads at the moment.
        let _second = world.owner(1);
        let other = thread::spawn(move || live_as_secondary(world));
        first.receive();
        other.join().unwrap();
    });
}

#[test]
fn calls_that_find_a_set_locked_and_use_another_never_get_one_block_twice() {
    model_with_secondaries(2, 1, SLOT_BYTES, 2, |world| {
        let mut first = world.owner(0);
        let mut second = world.owner(1);
        let other = thread::spawn(move || {
            let block = first.alloc();
            first.free(block);
            first
        });
        let block = second.alloc();
        second.free(block);
        other.join().unwrap().flush();
        second.flush();
    });
}

/// The broken twin of HEAP5: a thread parks a secondary heap that it does not own, which reads the link to its primary
/// heap.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_twin_a_heap_parked_by_another_than_its_owner_is_found() {
    model_with_secondaries(1, 1, SLOT_BYTES, 2, |world| {
        let _primary = world.owner(0);
        world.new_secondary(1).park();
        let other = thread::spawn(move || live_as_secondary(world));
        // SAFETY: none, which is the point: another thread owns the heap.
        unsafe { world.pool.park(world.heap(1)) };
        other.join().unwrap();
    });
}
