//! Models remote frees (REMOTE1, REMOTE2): every block freed by another thread comes back once, and only the span's
//! owner receives it.

use loom::thread;

use crate::small::owner::Owner;
use crate::small::world::{SLOT_BYTES, model};

/// Spawns a thread that receives. It is spawned last, so that loom explores its first read of the remote-free queue
/// after the frees that it may see.
fn receive_beside(owner: Owner) -> thread::JoinHandle<Owner> {
    thread::spawn(move || {
        owner.receive();
        owner
    })
}

#[test]
fn blocks_freed_by_two_threads_at_once_come_back_once_while_the_owner_receives() {
    model(1, SLOT_BYTES, 4, |world| {
        let mut owner = world.owner(0);
        let [kept, single, first, second] = owner.alloc_all();
        let one = thread::spawn(move || world.free_singly([single]));
        let two = thread::spawn(move || world.free_together([first, second]));
        owner.receive();
        one.join().unwrap();
        two.join().unwrap();
        owner.receive();
        assert_eq!(world.usage(owner.heap).used_blocks, 1);
        let [a, b, c] = owner.alloc_all();
        assert_eq!(
            world.usage(owner.heap).spans,
            1,
            "the blocks were all there"
        );
        assert!(a != b && b != c && c != a, "a block came back twice");
        for block in [a, b, c, kept] {
            owner.free(block);
        }
        owner.flush();
    });
}

#[test]
fn a_span_whose_list_fills_again_is_announced_again() {
    model(1, SLOT_BYTES, 3, |world| {
        let mut owner = world.owner(0);
        let [kept, first, second] = owner.alloc_all();
        let other = thread::spawn(move || world.free_singly([first, second]));
        let receiver = receive_beside(owner);
        other.join().unwrap();
        let mut owner = receiver.join().unwrap();
        owner.receive();
        assert_eq!(world.usage(owner.heap).used_blocks, 1);
        owner.free(kept);
        owner.flush();
    });
}

#[test]
fn spans_announced_while_the_owner_takes_the_queue_are_not_lost() {
    model(1, SLOT_BYTES, 1, |world| {
        let mut owner = world.owner(0);
        let [first, second, kept] = owner.alloc_all();
        let one = thread::spawn(move || world.free_singly([first]));
        let two = thread::spawn(move || world.free_singly([second]));
        owner.receive();
        one.join().unwrap();
        two.join().unwrap();
        owner.receive();
        assert_eq!(world.usage(owner.heap).used_blocks, 1);
        owner.free(kept);
        owner.flush();
    });
}

#[test]
fn a_span_is_in_the_queue_at_most_once() {
    model(1, SLOT_BYTES, 3, |world| {
        let mut owner = world.owner(0);
        let [kept, first, second] = owner.alloc_all();
        let one = thread::spawn(move || world.free_singly([first]));
        world.free_singly([second]);
        assert!(world.announced(owner.heap).len() <= 1);
        one.join().unwrap();
        assert_eq!(world.announced(owner.heap).len(), 1);
        owner.free(kept);
        owner.flush();
    });
}

#[test]
fn an_owner_without_blocks_gets_one_that_another_thread_frees_or_a_new_span() {
    model(1, SLOT_BYTES, 2, |world| {
        let mut owner = world.owner(0);
        let [kept, given] = owner.alloc_all();
        let other = thread::spawn(move || world.free_singly([given]));
        let found = thread::spawn(move || {
            let block = owner.alloc();
            (owner, block)
        });
        other.join().unwrap();
        let (mut owner, block) = found.join().unwrap();
        assert!(block != kept);
        // The block that the other thread freed was allocated above, or can be allocated now.
        let next = owner.alloc();
        assert!(next != kept && next != block, "a block was given twice");
        for block in [block, next, kept] {
            owner.free(block);
        }
        owner.flush();
    });
}
