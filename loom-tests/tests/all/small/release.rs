//! Models the release of a span (SPAN5): a span is released once its last block is home, and no thread accesses its
//! record afterwards.

use loom::thread;

use crate::small::world::{SLOT_BYTES, World, model};

/// Spawns a thread that trims once.
fn trim_beside(world: &'static World) -> thread::JoinHandle<()> {
    thread::spawn(move || world.trim())
}

#[test]
fn a_span_whose_last_block_another_thread_frees_is_released_untouched() {
    model(1, SLOT_BYTES, 1, |world| {
        let mut owner = world.owner(0);
        let last = owner.alloc();
        let other = thread::spawn(move || world.free_singly([last]));
        let trimmer = trim_beside(world);
        other.join().unwrap();
        trimmer.join().unwrap();
        world.trim();
        assert_eq!(world.live_spans(), 0);
    });
}

#[test]
fn a_span_whose_last_blocks_two_threads_free_is_released_untouched() {
    model(1, SLOT_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let [first, last] = owner.alloc_all();
        let one = thread::spawn(move || world.free_singly([first]));
        let two = thread::spawn(move || world.free_singly([last]));
        world.trim();
        one.join().unwrap();
        two.join().unwrap();
        world.trim();
        assert_eq!(world.live_spans(), 0);
    });
}

#[test]
fn the_second_of_two_idle_spans_is_released_by_the_receiving_owner() {
    model(1, SLOT_BYTES, 1, |world| {
        let mut owner = world.owner(0);
        let [first, second] = owner.alloc_all();
        let other = thread::spawn(move || world.free_singly([first, second]));
        let receiver = thread::spawn(move || owner.receive());
        other.join().unwrap();
        receiver.join().unwrap();
        world.trim();
        assert_eq!(world.live_spans(), 0);
    });
}
