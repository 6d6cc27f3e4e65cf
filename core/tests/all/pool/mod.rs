//! The LRU pool: upstream's behaviour by its ids (docs/CONFORMANCE.md), our own promises, and random operations
//! compared with the model.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "tests"
)]

mod growth;
mod limits;
mod player;
mod random;
mod refusals;
mod rig;
mod rounders;
mod threads;
mod upstream_cases;

mod ours {
    use super::player::Player;
    use super::rig::Rig;

    crate::golden::cases! {
        Player<Rig>, "pool/scripts/ours.txt":
        s2_10_the_byte_cap_is_exact,
        s2_10_the_byte_cap_evicts_the_oldest_as_many_as_it_takes,
        s2_10_a_buffer_above_the_byte_cap_goes_alone,
        s2_10_evictions_for_bytes_do_not_grow_the_limit_of_buffers,
        s2_4_the_limit_of_buffers_is_exact_and_the_oldest_goes,
        s2_10_what_is_idle_for_so_many_steps_goes_and_not_a_step_earlier,
        s2_10_a_lowered_limit_holds_at_once_and_is_no_eviction,
        s2_6_clearing_gives_back_what_is_idle_and_only_that,
        s2_10_the_limit_grows_by_one_for_each_miss_of_an_evicted_size_and_not_above_its_bound,
        s2_10_a_limit_that_rose_comes_down_as_buffers_age_and_not_below_its_beginning,
        s2_9_zero_bytes_are_an_error_that_counts_nothing,
        s2_9_a_limit_of_0_passes_everything_through_and_counts_nothing,
        s2_3_the_oldest_of_equal_sizes_serves_upstream_and_the_newest_here,
        s2_3_no_larger_buffer_serves,
        s2_7_sizes_that_round_to_one_share_buffers,
        one_record_serves_one_buffer_after_another,
        a_full_table_gives_its_oldest_idle_buffer_back_and_refuses_when_all_are_out,
        a_refusal_says_why_with_the_numbers_and_leaves_blocks_alone,
    }
}

mod upstreams {
    use super::player::Player;
    use super::rig::Upstream;

    crate::golden::cases! {
        Player<Upstream>, "pool/scripts/upstreams.txt":
        s2_4_the_limit_of_buffers_is_exact_and_the_oldest_goes,
        s2_6_clearing_gives_back_what_is_idle_and_only_that,
        s2_9_zero_bytes_are_an_error_that_counts_nothing,
        s2_9_a_limit_of_0_passes_everything_through_and_counts_nothing,
        s2_9_the_counted_sub_allocator_sees_these_calls_and_bytes,
        s2_2_an_aligned_block_starts_strictly_above_its_prefix,
        s2_3_the_same_buffer_serves_another_alignment_of_equal_size,
        s2_3_the_oldest_of_equal_sizes_serves_upstream_and_the_newest_here,
        s2_3_no_larger_buffer_serves,
        s2_7_sizes_that_round_to_one_share_buffers,
    }
}
