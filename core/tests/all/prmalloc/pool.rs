//! PR-4 to PR-8: the pool over a backend that counts, mostly as scripts.

use larder_core::prmalloc::{PlannedPoolConfig, Replan};
use larder_model::prmalloc::{Form, Window};

use crate::prmalloc::books::{KIB, align};
use crate::prmalloc::player::Player;
use crate::prmalloc::rig::{CountedBackend, InUse, planned_pool, pool, soon, until_planned};

mod both {
    use super::Player;

    crate::golden::cases! {
        Player, "prmalloc/scripts/pool.txt":
        pr_4_4276545_bytes_go_out_and_come_back_in_every_state,
        defect_1_a_block_of_4276545_bytes_is_freed_as_what_it_is,
        defect_2_null_foreign_and_double_frees_are_errors_and_so_is_a_refusing_backend,
        a_full_table_of_the_backends_blocks_is_an_error_and_gives_the_range_back,
        pr_5_a_block_of_a_bin_planned_with_64_is_not_given_for_4096,
        pr_5_a_borrowed_block_is_aligned_as_the_borrower_wants,
        defect_5_alignments_above_the_chunks_own_are_planned_for,
        pr_6_after_init_a_repeating_step_asks_nobody_and_takes_what_was_planned,
        pr_6_sizes_up_to_32_kib_go_to_the_backend_and_count_nowhere,
        defect_6_a_bin_without_blocks_gets_no_slab,
        pr_8_blocks_are_freed_in_any_state_whatever_it_was_when_they_were_allocated,
        defect_12_no_memory_for_the_plan_is_an_error_and_the_pool_goes_on_without_it,
        defect_12_the_end_of_a_slab_belongs_to_nobody,
        a_plan_above_the_cap_or_the_tables_is_refused,
        defect_4_all_blocks_that_were_planned_for_sharing_are_tried,
        defect_4_a_block_in_use_does_not_hide_another_that_may_be_borrowed,
        defect_12_the_end_of_one_bin_is_no_block_of_another,
        defect_9_counting_needs_no_signal,
        the_gap_between_two_bins_belongs_to_nobody,
    }
}

mod replan {
    use super::Player;

    crate::golden::cases! {
        Player, "prmalloc/scripts/replan.txt":
        pr_7_a_changed_step_is_counted_planned_again_and_the_old_slabs_go_home_with_the_last_block,
        pr_7_a_new_plan_knows_the_alignments_of_blocks_that_came_from_the_old_one,
        pr_10_small_sizes_share_no_blocks_with_larger_ones,
        a_few_misses_do_not_wear_a_plan_out,
        slabs_that_the_backend_refuses_are_offered_again_at_the_end_of_a_step,
        slabs_of_a_plan_that_did_not_fit_are_offered_again_too,
        a_plan_without_blocks_in_use_goes_before_the_next_one_comes,
    }
}

mod gpu_form {
    use super::Player;

    crate::golden::cases! {
        Player, "prmalloc/scripts/gpu_form.txt":
        pr_gpu_a_block_of_the_backend_goes_back_when_the_next_step_begins,
        pr_gpu_a_queued_block_that_is_refused_is_offered_with_the_step_after,
        pr_gpu_a_queued_block_counts_as_freed_when_it_was,
        pr_gpu_virtual_blocks_take_turns_from_the_oldest_in_each_step,
        pr_gpu_a_turn_whose_block_is_in_use_is_a_miss,
        pr_gpu_a_bin_may_borrow_more_than_was_planned,
        pr_10_small_blocks_of_the_gpu_form_come_from_the_second_slab,
    }
}

#[test]
fn pr_gpu_presets_are_those_of_the_forms() {
    let of = |form: Form| (form.late_frees, form.one_slab, form.unit);
    assert_eq!(of(Form::CPU), (false, false, align(64)));
    assert_eq!(of(Form::GPU), (false, true, align(256)));
    assert_eq!(Form::GPU.window, Window::EACH_START);
}

#[test]
fn defect_10_each_pool_has_its_own_planner() {
    let (first, second) = (pool(soon()), pool(soon()));
    until_planned(&first, "0=200000 -0");
    assert_eq!(second.planner().steps(), 0);
    until_planned(&second, "0=200000 -0");
    assert!(first.serving().is_some() && second.serving().is_some());
}

#[test]
fn defect_3_a_plan_without_blocks_in_use_goes_home_at_the_switch_again_and_again() {
    let adaptive = PlannedPoolConfig {
        replan: Some(Replan {
            miss_percent: 10,
            steps: 3,
        }),
        ..soon()
    };
    let pool = planned_pool(adaptive, "0=200000 -0");
    let mut in_use = InUse::default();
    for size in 1..20_u64 {
        let step = &format!("0={} -0", size * 300_000);
        for _ in 0..8 {
            in_use.step(&pool, step).unwrap();
        }
        let planned = pool.planner().best().unwrap().bytes;
        assert_eq!(pool.backend().out_bytes(), planned);
        assert_eq!(planned, 4 * KIB * (size * 300_000).div_ceil(4 * KIB));
    }
}
