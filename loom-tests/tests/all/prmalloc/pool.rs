//! Models a planned pool (L1, L3, L4) whose blocks two threads allocate and free while plans are installed and
//! replaced: no block is lost or allocated twice.

use larder_core::Addr;
use larder_core::prmalloc::Round;
use loom::sync::Arc;
use loom::thread;

use crate::prmalloc::world::{Pool, alloc, explore, free, planned_pool, play, pool};

/// Checks an idle pool: it holds only the slabs of its plan, whose blocks are all free.
fn check_idle(pool: &Pool, blocks: usize) {
    let before = pool.counts();
    assert_eq!(before.direct_bytes, 0);
    assert_eq!(pool.backend().out_bytes(), before.slab_bytes);
    play(pool, blocks);
    assert_eq!(
        pool.counts().hits,
        before.hits + blocks as u64,
        "a block was lost"
    );
}

#[test]
fn l1_blocks_of_a_bin_are_neither_lost_nor_given_twice() {
    explore(|| {
        let pool = Arc::new(planned_pool(2));
        let first = alloc(&pool);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || free(&other, first));
        let (second, third) = (alloc(&pool), alloc(&pool));
        thread.join().unwrap();
        assert_ne!(second, third, "both are in use");
        free(&pool, second);
        free(&pool, third);
        check_idle(&pool, 2);
    });
}

#[test]
fn l1_two_threads_get_two_blocks_or_one_of_them_the_backends() {
    explore(|| {
        let pool = Arc::new(planned_pool(1));
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || alloc(&other));
        let mine = alloc(&pool);
        let theirs = thread.join().unwrap();
        assert_ne!(mine, theirs);
        assert_eq!((pool.counts().hits, pool.counts().missed), (1, 1));
        free(&pool, mine);
        free(&pool, theirs);
        check_idle(&pool, 1);
    });
}

#[test]
fn l1_of_two_threads_that_free_a_block_one_is_refused() {
    explore(|| {
        let pool = Arc::new(planned_pool(1));
        let block = alloc(&pool);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || other.free(block).is_ok());
        let mine = pool.free(block).is_ok();
        assert!(mine != thread.join().unwrap());
        check_idle(&pool, 1);
    });
}

/// Runs a step that allocates and frees `blocks` blocks. Returns the round that is then due.
fn due(pool: &Pool, blocks: usize) -> Round {
    let step = pool.start();
    play(pool, blocks);
    pool.stop(step).unwrap()
}

#[test]
fn l3_a_plan_is_whole_for_whoever_sees_it_and_blocks_of_before_go_to_the_backend() {
    explore(|| {
        let pool = Arc::new(pool());
        let before = alloc(&pool);
        let round = due(&pool, 1);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || other.run(round).unwrap());
        let meanwhile = alloc(&pool);
        free(&pool, before);
        thread.join().unwrap();
        free(&pool, meanwhile);
        check_idle(&pool, 1);
    });
}

#[test]
fn l4_the_slabs_of_an_old_plan_go_when_its_last_block_comes_home() {
    explore(|| {
        let pool = Arc::new(planned_pool(1));
        let old = alloc(&pool);
        assert!(pool.replan());
        let round = due(&pool, 1);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || other.run(round).unwrap());
        free(&pool, old);
        thread.join().unwrap();
        check_idle(&pool, 1);
    });
}

#[test]
fn l4_no_block_is_given_from_a_plan_whose_slabs_go() {
    explore(|| {
        let pool = Arc::new(planned_pool(1));
        assert!(pool.replan());
        let round = due(&pool, 1);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || other.run(round).unwrap());
        let block = alloc(&pool);
        free(&pool, block);
        thread.join().unwrap();
        check_idle(&pool, 1);
    });
}

#[test]
fn l4_a_look_at_a_plan_that_goes_does_not_keep_or_release_it() {
    explore(|| {
        let pool = Arc::new(planned_pool(1));
        let old = alloc(&pool);
        free(&pool, old);
        assert!(pool.replan());
        let round = due(&pool, 1);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || other.run(round).unwrap());
        // No block begins there, but a slab may contain the address.
        assert!(pool.free(Addr::new(old.get() + 64)).is_err());
        thread.join().unwrap();
        check_idle(&pool, 1);
    });
}
