//! Upstream's own cases of the tracking, guard and reset allocators, as a script.

use super::player::Player;

crate::golden::cases! {
    Player, "decorate/scripts/upstream_cases.txt":
    s3_8_tracking_by_nobody_counts_what_was_requested_and_no_frees,
    s3_8_tracking_by_a_table_numbers_blocks_and_knows_their_sizes,
    s3_8_tracking_over_an_allocator_that_tracks_sizes_uses_those,
    s3_8_an_allocator_that_always_fails_leaves_nothing_but_a_count_of_failures,
    s3_8_after_the_records_were_taken_blocks_come_home_and_none_are_given,
    s4_4_writing_the_whole_block_hurts_no_guard,
    s4_4_a_float_in_front_of_the_block_is_found_by_the_free,
    s4_4_a_float_behind_the_block_is_found_by_the_free,
    s4_4_every_float_is_reset_by_an_allocation_and_by_a_free,
    s4_4_the_same_around_guards_leaves_the_guards_alone,
    s4_4_a_float_through_resets_and_guards_is_four_bytes_of_256,
    s4_4_upstreams_form_has_16_bytes_on_each_side_and_gives_blocks_of_no_bytes,
}
