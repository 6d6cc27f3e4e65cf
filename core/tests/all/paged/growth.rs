//! How much is created at once, and in how many pieces: the figures.

use super::bench::{Bench, PAGE, config, pages};
use larder_core::Request;
use larder_core::paged::{Backing, PageStep};

/// Pages of each piece that a request makes the allocator create.
fn created(bench: &mut Bench, request: &Request) -> Vec<u64> {
    let mut plan = bench.plan(request);
    let mut created = Vec::new();
    while let Some(step) = bench.call(&mut plan) {
        if let PageStep::Create { bytes, .. } = step {
            created.push(bytes / PAGE);
        }
    }
    assert!(bench.finish(plan).is_some());
    created
}

#[test]
fn the_first_memory_is_what_is_asked_for_in_whole_pages() {
    for (bytes, expected) in [(1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE - 1, 3)] {
        let mut bench = Bench::new(config(64, Backing::Billed));
        assert_eq!(created(&mut bench, &Request::new(bytes)), vec![1; expected]);
    }
}

#[test]
fn a_piece_is_a_twelfth_of_what_will_be_held() {
    for (first, pieces) in [
        (11, vec![1; 11]),
        (23, vec![1; 23]),
        (24, vec![2; 12]),
        (36, vec![3; 12]),
        // In pieces of about equal size.
        (37, [vec![3; 11], vec![2; 2]].concat()),
    ] {
        let mut bench = Bench::new(config(64, Backing::Billed));
        assert_eq!(created(&mut bench, &pages(first)), pieces);
    }
    let mut bench = Bench::new(config(256, Backing::Billed));
    let _ballast = bench.alloc(&pages(36));
    assert_eq!(created(&mut bench, &pages(12)), [4, 4, 4]);
    assert_eq!(created(&mut bench, &pages(5)), [3, 2]);
}

#[test]
fn a_64th_of_what_is_held_is_created_ahead() {
    for (held, ahead) in [(127, 1), (128, 2), (191, 2), (192, 3)] {
        let mut bench = Bench::new(config(512, Backing::Billed));
        let _ballast = bench.alloc(&pages(held));
        let created = created(&mut bench, &Request::new(1));
        assert_eq!(created, [ahead], "{held}");
        assert_eq!(bench.held(), held + ahead);
    }
    // What is asked for is not on top of it.
    let mut bench = Bench::new(config(512, Backing::Billed));
    let _ballast = bench.alloc(&pages(192));
    assert_eq!(created(&mut bench, &pages(2)), [3]);
    assert_eq!(created(&mut bench, &pages(5)), [4]);
}

#[test]
fn what_was_freed_makes_it_less() {
    for (rounds, ahead, piece) in [(0, 4, 4), (1, 2, 1), (2, 1, 1), (3, 1, 1)] {
        let mut bench = Bench::new(config(512, Backing::Billed));
        let mut ballast = bench.alloc(&pages(256));
        for _ in 0..rounds {
            bench.free(ballast);
            ballast = bench.alloc(&pages(256));
        }
        let created = created(&mut bench, &pages(1));
        assert_eq!(created, vec![piece; ahead / piece as usize], "{rounds}");
    }
}

#[test]
fn nothing_is_created_ahead_that_may_not_be_held() {
    for (limit, created_pages) in [(128, 0), (129, 1), (131, 1), (255, 1), (256, 2)] {
        let mut config = config(512, Backing::Billed);
        config.bfc.limit_bytes = limit * PAGE;
        let mut bench = Bench::new(config);
        let _ballast = bench.alloc(&pages(128));
        if created_pages > 0 {
            assert_eq!(created(&mut bench, &pages(1)), [created_pages]);
        }
    }
    let mut bench = Bench::new(config(129, Backing::Billed));
    let _ballast = bench.alloc(&pages(128));
    assert_eq!(created(&mut bench, &pages(1)), [1]);
}

#[test]
fn a_budget_ends_in_small_pieces_and_nothing_ahead() {
    let mut bench = Bench::new(config(1024, Backing::Budget(480 * PAGE)));
    // A 24th of what is left.
    assert_eq!(created(&mut bench, &pages(20)), vec![1; 20]);
    assert_eq!(created(&mut bench, &pages(230))[..2], [18, 18]);
    let rest = created(&mut bench, &pages(192));
    assert_eq!(rest[0], 9);
    // A 64th of the 38 pages left is none ahead.
    assert_eq!(created(&mut bench, &pages(1)), [1]);
    assert_eq!(bench.device.peak_bytes(), bench.held() * PAGE);
}
