//! Scripts: cases of allocators in the order of streams, arenas, buffers, releases, steps, windows, sleep, limits,
//! exports, and memory with a host side. The [`programs`](crate::programs) module describes their language.

use crate::programs::scripts::{play_anywhere, play_case, play_others};

/// Defines one test for the cases of each file, one for each case named here, and one for all cases that run on any
/// device.
macro_rules! scripts {
    ($($file:ident: $($case:ident)*;)*) => {
        $(
            mod $file {
                const TEXT: &str = include_str!(concat!("scripts/", stringify!($file), ".txt"));

                #[test]
                fn cases() {
                    super::play_others(TEXT, &[$(stringify!($case)),*]);
                }

                $(
                    #[test]
                    fn $case() {
                        super::play_case(TEXT, stringify!($case));
                    }
                )*
            }
        )*

        #[test]
        fn cases_of_any_device() {
            $(play_anywhere(include_str!(concat!("scripts/", stringify!($file), ".txt")));)*
        }
    };
}

scripts! {
    allocator: ;
    arenas: ;
    buffers: ;
    limits:
        am_3_a_limit_is_lowered_and_raised_in_every_way
        am_3_the_limit_of_pinned_memory_is_lowered_and_raised
        am_3_no_pool_of_a_lowered_tenant_grants_until_memory_has_gone_back;
    regions: ;
    releases: ;
    sharing: ;
    sleep: ;
    steps: ;
    streams: ;
    vmem:
        am_1_what_does_not_fit_the_device_goes_to_the_host_and_back_there_when_it_fits
        am_1_without_a_host_side_the_devices_refusal_is_the_answer
        am_1_when_both_sides_are_full_the_error_has_the_numbers_of_both
        am_1_a_joint_peak_above_the_plan_refuses_the_host_with_the_numbers
        am_3_the_hosts_side_is_lowered_and_raised_while_blocks_come_and_go;
    windows: ;
}
