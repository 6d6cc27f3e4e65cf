//! Entries of blocks, and which of them leave the quarantine. No block has memory here.

use std::collections::{HashSet, VecDeque};

use super::blocks::{Blocks, Known, QUARANTINE_BLOCKS, QUARANTINE_BYTES};
use super::{MAX_KEPT_SLACK, Misuse};
use crate::tests::random::Random;

fn place(number: usize) -> *mut u8 {
    std::ptr::without_provenance_mut((number + 1) * 16)
}

fn known(bytes: usize, granted: usize) -> Known {
    Known::new(bytes, 16, false).granted(granted)
}

#[test]
fn the_oldest_leave_the_quarantine_when_too_many_bytes_or_blocks_wait() {
    let mut random = Random(1);
    for most_bytes in [40, 4000, 1 << 20] {
        let mut blocks = Blocks::new();
        let mut waiting: VecDeque<(*mut u8, usize)> = VecDeque::new();
        let mut waiting_bytes = 0;
        for number in 0..2 * QUARANTINE_BLOCKS {
            let (block, granted) = (place(number), 17 + random.next(most_bytes));
            assert!(
                blocks
                    .enter(block, known(granted - 1, granted), None)
                    .is_ok()
            );
            assert!(blocks.begin_free(block, None).is_ok());
            waiting.push_back((block, granted));
            waiting_bytes += granted;
            let mut leaves = blocks.quarantine(block);
            while let Some(leaver) = leaves {
                let bytes = leaver.known.whole_bytes();
                assert_eq!(waiting.pop_front(), Some((leaver.block, bytes)));
                waiting_bytes -= bytes;
                let is_over =
                    waiting_bytes > QUARANTINE_BYTES || waiting.len() >= QUARANTINE_BLOCKS;
                assert_eq!(leaver.is_last, !is_over);
                assert_eq!(blocks.begin_free(leaver.block, None), Err(Misuse::NoBlock));
                leaves = blocks.excess();
            }
            assert!(waiting_bytes <= QUARANTINE_BYTES && waiting.len() < QUARANTINE_BLOCKS);
            assert_eq!(blocks.begin_free(block, None), Err(Misuse::FreedTwice));
        }
        let is_full = waiting.len() + 1 == QUARANTINE_BLOCKS
            || waiting_bytes + most_bytes + 17 > QUARANTINE_BYTES;
        assert!(is_full, "{most_bytes}: {} {waiting_bytes}", waiting.len());
    }
}

#[test]
fn one_thread_of_two_may_free_a_block() {
    let mut blocks = Blocks::new();
    assert_eq!(blocks.begin_free(place(1), None), Err(Misuse::NoBlock));
    assert!(blocks.enter(place(1), known(10, 16), None).is_ok());
    assert!(blocks.begin_free(place(1), None).is_ok());
    assert_eq!(blocks.begin_free(place(1), None), Err(Misuse::FreedTwice));
    let refused = blocks.set_bytes(place(1), 11);
    let misuse = refused.err().map(|written| written.misuse);
    assert_eq!(misuse, Some(Misuse::ResizedAfterFree));
    assert!(blocks.forget(place(1)).is_some());
    assert_eq!(blocks.begin_free(place(1), None), Err(Misuse::NoBlock));
}

#[test]
fn blocks_of_nothing_have_addresses_of_their_own_that_come_again() {
    let mut blocks = Blocks::new();
    let nothing = Known::new(0, 16, false);
    let kept = blocks.alloc_nothing(nothing, None).unwrap();
    let mut seen = HashSet::new();
    let mut came_again = false;
    for _ in 0..(17 << 20) / 16 {
        let block = blocks.alloc_nothing(nothing, None).unwrap();
        assert_ne!(block, kept);
        came_again |= !seen.insert(block);
        assert!(blocks.begin_free(block, None).is_ok());
        assert_eq!(blocks.begin_free(block, None), Err(Misuse::NoBlock));
    }
    assert!(came_again);
}

#[test]
fn a_block_stays_where_it_is_if_it_holds_the_length_with_a_byte_of_slack_and_not_much_more() {
    let stays = |granted, bytes| known(granted - 1, granted).stays(bytes);
    assert!(stays(16, 15) && stays(16, 1) && stays(1024, 1023) && stays(1024, 760));
    assert!(!stays(16, 16) && !stays(16, 0) && !stays(1024, 700) && !stays(1024, 1024));
    let long = 10 << 20;
    assert!(stays(long, long - MAX_KEPT_SLACK) && !stays(long, long - MAX_KEPT_SLACK - 1));
    assert!(!Known::new(0, 16, false).stays(0));
}
