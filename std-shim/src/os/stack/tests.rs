//! Stacks by cached rules equal those of the unwinder. Programs in C have more cases: `walks.c`.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::{ptr, thread};

use super::quick::{UnwindTables, rule_at};
use super::rule::FrameRule;
use super::{quick, unwinder, walk_by};
use crate::tests::random::Random;

/// Walks the stack in both ways. Returns both results.
#[inline(never)]
fn both(wanted: usize) -> Vec<usize> {
    let variable = black_box(0_u64);
    let inner = (&raw const variable).addr();
    let unwinder = unwinder::get().unwrap();
    while !quick::has_looked() {}
    let (mut frames, mut expected) = ([0; 64], [0; 64]);
    let count = quick::walk(inner, &mut frames[..wanted], unwinder.find_entry);
    let expected_count = walk_by(unwinder, inner, &mut expected[..wanted]);
    assert_eq!(count, Some(expected_count));
    assert_eq!(frames, expected);
    frames[..expected_count].to_vec()
}

/// Walks below that many calls of three kinds.
fn below(depth: u32, random: &mut Random, wanted: usize) {
    if depth == 0 {
        both(wanted);
    } else {
        match random.next(3) {
            0 => with_long_frame(depth, random, wanted),
            1 => sorts(depth, random, wanted),
            _ => by_pointer(black_box(&mut || below(depth - 1, random, wanted))),
        }
    }
}

#[inline(never)]
fn with_long_frame(depth: u32, random: &mut Random, wanted: usize) {
    let mut long = black_box([0_u64; 1000]);
    below(depth - 1, random, wanted);
    black_box(&mut long);
}

#[inline(never)]
fn by_pointer(f: &mut dyn FnMut()) {
    f();
    black_box(());
}

/// Calls through the C library, but only once, because sanitizers compare twice.
#[inline(never)]
fn sorts(depth: u32, random: &mut Random, wanted: usize) {
    struct Call<'a>(u32, &'a mut Random, usize);
    extern "C" fn compare(call: *const c_void, _: *const c_void) -> c_int {
        // SAFETY: an element of the array below.
        let call = unsafe { call.cast::<*mut Option<Call>>().read() };
        // SAFETY: of the function below, which waits. Its borrow ends before anything is called.
        if let Some(Call(depth, random, wanted)) = unsafe { (*call).take() } {
            below(depth - 1, random, wanted);
        }
        0
    }
    let mut call = Some(Call(depth, random, wanted));
    let mut two = [ptr::from_mut(&mut call); 2];
    // SAFETY: two elements of that size.
    unsafe {
        libc::qsort(
            two.as_mut_ptr().cast(),
            two.len(),
            size_of_val(&two[0]),
            Some(compare),
        );
    }
}

#[test]
fn stacks_by_rules_are_those_of_the_unwinder() {
    let random_calls = |seed| {
        let mut random = Random(seed);
        for _ in 0..200 {
            let (depth, wanted) = (random.next(60) as u32, 1 + random.next(64));
            below(depth, &mut random, wanted);
        }
    };
    thread::scope(|scope| {
        for seed in 1..4 {
            scope.spawn(move || random_calls(seed));
        }
        random_calls(4);
    });
}

#[test]
fn a_rule_is_remembered_for_its_address_only() {
    let find = unwinder::get().unwrap().find_entry;
    while !quick::has_looked() {}
    let start = (both as fn(usize) -> Vec<usize>) as usize;
    // More calls than there are entries.
    let places = || start - 100_000..start + 100_000;
    for _ in 0..2 {
        for place in places() {
            let expected = UnwindTables::find(place, find).and_then(|tables| tables.rule(place));
            let rule = rule_at(place, find);
            assert_eq!(
                rule,
                expected.unwrap_or(FrameRule::NONE),
                "{:#x}",
                place - start
            );
        }
    }
}
