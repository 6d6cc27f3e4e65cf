//! Ten programs, each right as it is and wrong with one defect planted.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};

use super::gpu::{BYTES, Gpu};

/// Seeds within which a defect must show.
const SEEDS: u64 = 100;
/// Seeds under which the right program is tried.
const RIGHT_SEEDS: u64 = 1000;

/// A program. It says what to look at in the end; `planted` leaves a wait out.
type Program = fn(gpu: &Gpu, planted: bool) -> Vec<u8>;

/// Runs a program under all seeds, as it is and with its defect.
fn check(program: Program, expected: u8, races: bool) {
    let gpu = Gpu::new(3, 4, 4);
    let expected = vec![expected; BYTES];
    for seed in 0..RIGHT_SEEDS {
        gpu.start(seed);
        assert_eq!(program(&gpu, false), expected, "right program, seed {seed}");
        gpu.finish();
        assert_eq!(gpu.findings(), "", "right program, seed {seed}");
    }
    let mut wrong = 0;
    for seed in 0..SEEDS {
        gpu.start(seed);
        wrong += u64::from(program(&gpu, true) != expected);
        gpu.finish();
        assert_eq!(
            gpu.findings().contains("race"),
            races,
            "planted, seed {seed}"
        );
    }
    assert!(wrong > 0, "the defect never showed");
    assert!(wrong < SEEDS, "the schedule has only one order");
}

fn all(gpu: &Gpu, buffer: usize) -> Vec<u8> {
    gpu.finish().swap_remove(buffer)
}

#[test]
fn a_reader_that_does_not_wait_for_the_writer() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            if !planted {
                gpu.wait(1, 0);
            }
            gpu.copy(1, 0, 0, BYTES, 1);
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn a_writer_that_does_not_wait_for_the_reader() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            gpu.wait(1, 0);
            gpu.copy(1, 0, 0, BYTES, 1);
            gpu.record(1, 1);
            if !planted {
                gpu.wait(0, 1);
            }
            gpu.fill(0, 0, BYTES, 9, 0);
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn two_writers_that_nothing_orders() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            if !planted {
                gpu.wait(1, 0);
            }
            gpu.fill(0, 0, BYTES, 9, 1);
            all(gpu, 0)
        },
        9,
        true,
    );
}

#[test]
fn an_event_recorded_before_the_work_it_stands_for() {
    check(
        |gpu, planted| {
            if planted {
                gpu.record(0, 0);
            }
            gpu.fill(0, 0, BYTES, 7, 0);
            if !planted {
                gpu.record(0, 0);
            }
            gpu.wait(1, 0);
            gpu.copy(1, 0, 0, BYTES, 1);
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn a_wait_for_the_event_of_another_stream() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            gpu.fill(2, 0, BYTES, 3, 2);
            gpu.record(2, 2);
            gpu.wait(1, if planted { 2 } else { 0 });
            gpu.copy(1, 0, 0, BYTES, 1);
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn a_wait_that_comes_behind_the_use() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            if planted {
                gpu.copy(1, 0, 0, BYTES, 1);
                gpu.wait(1, 0);
            } else {
                gpu.wait(1, 0);
                gpu.copy(1, 0, 0, BYTES, 1);
            }
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn a_default_stream_that_does_not_wait_for_a_non_blocking_one() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            if !planted {
                gpu.wait(3, 0);
            }
            gpu.copy(1, 0, 0, BYTES, 3);
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn a_chain_of_three_streams_with_its_middle_link_missing() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            if !planted {
                gpu.wait(1, 0);
            }
            gpu.fill(2, 0, BYTES, 1, 1);
            gpu.record(1, 1);
            gpu.wait(2, 1);
            gpu.copy(1, 0, 0, BYTES, 2);
            all(gpu, 1)
        },
        7,
        true,
    );
}

#[test]
fn a_host_that_waits_for_the_wrong_stream() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            gpu.fill(1, 0, BYTES, 1, 1);
            if planted {
                gpu.sync(1);
            } else {
                gpu.sync_event(0);
            }
            gpu.read(0)
        },
        7,
        true,
    );
}

#[test]
fn a_wait_made_before_the_event_was_recorded_again() {
    check(
        |gpu, planted| {
            gpu.fill(0, 0, BYTES, 5, 0);
            gpu.record(0, 0);
            if planted {
                gpu.wait(1, 0);
            }
            gpu.fill(0, 0, BYTES, 7, 0);
            gpu.record(0, 0);
            if !planted {
                gpu.wait(1, 0);
            }
            gpu.copy(1, 0, 0, BYTES, 1);
            all(gpu, 1)
        },
        7,
        true,
    );
}

static TURN: AtomicU8 = AtomicU8::new(0);

extern "C" fn first(_: *mut c_void) {
    TURN.store(1, Ordering::SeqCst);
}

extern "C" fn second(_: *mut c_void) {
    // Only if the first one ran already.
    let _ = TURN.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst);
}

/// The driver sees no memory here, so it can't name the race; the order alone shows it.
#[test]
fn host_functions_on_two_streams_without_a_wait() {
    check(
        |gpu, planted| {
            TURN.store(0, Ordering::SeqCst);
            gpu.host(0, first);
            gpu.record(0, 0);
            if !planted {
                gpu.wait(1, 0);
            }
            gpu.host(1, second);
            gpu.finish();
            vec![TURN.load(Ordering::SeqCst); BYTES]
        },
        2,
        false,
    );
}
