//! The numbers of cached blocks in a set.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::growth::FLUSH_EVERY_BYTES;
use super::*;

#[test]
fn a_bin_holds_what_the_policy_allows_but_one_block_at_least_and_256_at_most() {
    for (bytes, blocks) in [(16, 256), (128, 256), (256, 128), (1024, 32), (64 << 10, 1)] {
        let class = SizeClass::of(bytes, 8).unwrap();
        assert_eq!(Policy::BALANCED.bin_blocks(class), blocks, "{bytes}");
    }
}

#[test]
fn a_set_counts_the_blocks_of_its_transfer_caches_and_the_bytes_of_its_spans() {
    let class = SizeClass::of(1024, 8).unwrap();
    let mut set = SpanSet::default();
    let state = set.class(class);
    (state.transfer_blocks, state.spans, state.used) = (96, 5, 200);
    let expected = ClassUsage {
        spans: 5,
        span_bytes: 5 << 16,
        used_blocks: 200,
        transfer_blocks: 96,
    };
    assert_eq!(set.usage(class, 1 << 16), expected);
}

#[test]
fn a_set_counts_more_blocks_than_32_bits_do() {
    // 32 GiB in the shortest blocks are used, and one more span is free.
    let mut state = ClassSpans::NONE;
    state.blocks = u32::MAX.into();
    state.used = state.blocks;
    state.blocks += 8192;
    assert!(state.blocks > state.used);
    let class = SizeClass::of(16, 8).unwrap();
    state.transfer_blocks = 1 << 28;
    assert!(state.transfer_has_room(class, 256));
}

#[test]
fn what_is_at_hand_has_its_turn_once_in_16_mib_of_new_spans() {
    let class = SizeClass::of(1024, 8).unwrap();
    let mut set = SpanSet::default();
    let state = set.class(class);
    (state.transfer_lists, state.transfer_blocks) = (3, 96);
    set.made_bytes = FLUSH_EVERY_BYTES - 1;
    assert!(!set.flush_is_due() && !set.early_flush_is_due(false, || 0));
    set.made_bytes = FLUSH_EVERY_BYTES;
    // A quarter of the cached bytes.
    assert!(!set.early_flush_is_due(false, || 24 << 10 | 1));
    assert!(
        !set.early_flush_is_due(false, || 0),
        "asked again after 1 MiB"
    );
    set.made_bytes += 1 << 20;
    assert!(set.early_flush_is_due(false, || 24 << 10));
    assert_eq!(
        (set.lists_to_flush, set.made_bytes, set.asked_bytes),
        (4, 0, 0)
    );
    set.lists_to_flush = 0;
    // A flush is due however much is free, because the allocation that would grow found none there.
    set.made_bytes = FLUSH_EVERY_BYTES;
    assert!(!set.early_flush_is_due(false, || u64::MAX) && set.flush_is_due());
}

#[test]
fn what_is_at_hand_is_given_up_at_once_under_pressure() {
    let class = SizeClass::of(1024, 8).unwrap();
    let mut set = SpanSet::default();
    assert!(!set.early_flush_is_due(true, || 0), "there is nothing");
    set.class(class).transfer_lists = 3;
    assert!(set.early_flush_is_due(true, || u64::MAX));
    assert_eq!(set.lists_to_flush, 4);
}

#[test]
fn a_transfer_cache_holds_64_kib_or_half_of_what_the_set_owns() {
    let class = SizeClass::of(1024, 8).unwrap();
    let mut state = ClassSpans::NONE;
    for (blocks, most_lists) in [(0, 0), (1, 2), (128, 2), (129, 2), (1024, 16), (1100, 17)] {
        state.blocks = blocks;
        for lists in 0..20 {
            state.transfer_blocks = 32 * lists;
            let has_room = state.transfer_has_room(class, 32);
            assert_eq!(
                has_room,
                lists < most_lists,
                "{lists} lists, {blocks} blocks"
            );
        }
    }
    // A class whose blocks cannot link lists has no transfer cache.
    state.transfer_blocks = 0;
    let has_room = state.transfer_has_room(SizeClass::EIGHT, 256);
    assert_eq!(has_room, size_of::<*mut Slot>() <= 4);
}

#[test]
fn a_set_is_idle_where_something_lies_at_hand_or_has_changed() {
    let class = SizeClass::of(1024, 8).unwrap();
    let has_idle = |change: fn(&mut ClassSpans)| {
        let mut set = SpanSet::default();
        change(set.class(class));
        set.has_idle()
    };
    assert!(!has_idle(|state| (state.spans, state.blocks) = (1, 64)));
    assert!(has_idle(|state| state.transfer_lists = 1));
    assert!(!has_idle(|state| (
        state.transfer_lists,
        state.left_lists
    ) = (1, 1)));
    assert!(has_idle(|state| state.empty = ptr::dangling_mut()));
    assert!(has_idle(|state| state.touched = true));
    assert!(has_idle(|state| state.to_scan = true));
}
