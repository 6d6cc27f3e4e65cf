//! Changed limits and conformance with AntMan: the effect of each goal, releases under way, and the allocator over
//! device and host memory, with the adjuster's sequences A, B and C number by number.

mod given_again;
mod release;
mod vmem;

use crate::script::script;

script!(
    "../scripts/adjust.txt",
    a_range_is_cut_at_its_end_in_whole_units,
    am_3_a_higher_limit_and_a_lower_one_above_what_is_held_release_nothing,
    am_3_a_goal_that_free_regions_meet_is_met_exactly,
    am_3_a_goal_met_in_part_keeps_what_was_freed,
    am_3_a_limit_of_0_gives_everything_back_that_is_free,
    am_3_a_limit_below_what_is_in_use_releases_nothing_and_takes_no_block_away,
    am_3_10_000_changes_of_the_limit_need_no_more_records_than_one,
    s7_2_the_limit_may_rise_at_any_time_and_lowering_above_what_is_held_releases_nothing,
    s7_2_regions_are_released_in_address_order_until_enough_is_free,
    s7_2_a_shrink_that_fails_keeps_what_it_freed_and_clamps_the_limit,
    s7_2_growth_restarts_after_a_release_from_the_room_left_at_most_1_mib,
    s7_2_growth_restarts_after_a_release_of_everything_from_the_limit,
    s7_2_without_a_release_pass_the_step_is_kept,
    s7_2_stable_is_the_sum_of_regions_with_something_in_use,
    s9_5_a_failed_shrink_stays_pending_and_completes_as_blocks_come_home,
    s9_5_no_block_passes_a_pending_limit_and_what_is_held_serves_below_it,
    s9_5_raising_the_limit_ends_a_pending_shrink,
    s9_5_growth_goes_on_as_before_after_a_shrink,
    s7_10_regions_go_in_the_order_of_least_excess,
    s7_2_records_of_released_regions_are_used_again_over_10_000_rounds,
    s7_2_records_of_trimmed_ends_are_used_again_over_1000_rounds,
    s7_2_a_refused_release_leaves_everything_usable
);

mod both_sides {
    use crate::script::script;

    script!(
        "../scripts/sides.txt",
        the_host_serves_what_the_device_refuses,
        am_1_a_host_limit_of_1025_mib_serves_what_the_device_cannot_and_1024_mib_does_not,
        am_1_without_a_host_side_the_device_alone_answers,
        am_1_no_dups_through_the_fallback_stay_on_the_device,
        am_1_out_of_device_memory_goes_to_the_host_and_clearing_keeps_what_is_in_use,
        am_1_zero_bytes_are_refused_and_the_host_is_not_asked,
        am_1_a_joint_peak_above_the_plan_refuses_the_host_and_one_at_the_plan_does_not,
        am_2_sequence_a_shrinking_to_2_mib_sends_what_no_longer_fits_to_the_host,
        am_2_sequence_b_shrinking_to_exactly_what_is_in_use_and_growing_again,
        am_2_sequence_c_the_limit_goes_down_and_up_and_stays_at_what_is_held
    );
}
