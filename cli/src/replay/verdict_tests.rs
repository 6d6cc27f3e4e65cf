//! The sentence at the end of a report, on invented figures.

use super::Options;
use super::report::ReplayReport;
use super::report_tests::outcome;
use crate::report::Shown;

const MIB: u64 = 1 << 20;

/// Returns the verdict on rows: trace, allocator, live and reserved MiB, whether it completed.
fn verdict(rows: &[(&str, &'static str, u64, u64, bool)]) -> Option<String> {
    let mut report = ReplayReport::new(Options::new(None));
    for &(trace, allocator, live, reserved, completed) in rows {
        report.add(
            trace,
            allocator,
            outcome(live * MIB, reserved * MIB, completed),
        );
    }
    let verdict = report.verdict();
    let text = report.text(&Shown::all()).unwrap();
    match &verdict {
        Some(sentence) => assert!(text.ends_with(&format!("\n\n{sentence}\n")), "{text}"),
        None => assert!(!text.contains("PyTorch"), "{text}"),
    }
    let page = report.page().unwrap();
    let (above, _) = page.split_once("<table").unwrap();
    match &verdict {
        Some(sentence) => assert!(above.contains(sentence), "{above}"),
        None => assert!(!page.contains("PyTorch"), "{page}"),
    }
    verdict
}

#[test]
fn one_trace_has_its_own_bytes_in_the_sentence() {
    let rows = |theirs, ours| {
        let theirs = ("one", "pytorch", 100, theirs, true);
        verdict(&[theirs, ("one", "larder", 100, ours, true)]).unwrap()
    };
    let sentence = rows(8090, 6144);
    assert_eq!(
        sentence,
        "At the peak PyTorch holds 7.9 GiB, Larder (larder) 6 GiB: 24 % less."
    );
    let sentence = rows(103, 100);
    assert_eq!(
        sentence,
        "At the peak PyTorch holds 103 MiB, Larder (larder) 100 MiB: 2.9 % less."
    );
    assert!(rows(100, 125).ends_with(": 25 % more."));
    assert!(rows(100_000, 100_001).ends_with(": as much."));
}

#[test]
fn expandable_segments_have_a_sentence_of_their_own() {
    let rows = |completes| {
        verdict(&[
            ("one", "pytorch", 100, 200, true),
            ("one", "pytorch-expandable", 100, 125, true),
            ("one", "larder", 100, 100, true),
            ("two", "pytorch", 100, 200, true),
            ("two", "pytorch-expandable", 100, 500, completes),
            ("two", "larder", 100, 100, true),
        ])
        .unwrap()
    };
    assert!(rows(true).ends_with(". Larder holds 60 % less than expandable segments."));
    assert!(rows(false).ends_with(". Larder holds 20 % less than expandable segments."));
}

#[test]
fn expandable_segments_are_not_named_twice() {
    let rows = |theirs| {
        verdict(&[
            ("one", "pytorch-expandable", 100, 125, true),
            ("one", "larder", 100, 100, true),
            ("one", "pytorch-set", 100, theirs, true),
        ])
        .unwrap()
    };
    assert!(rows(125).ends_with(": 20 % less."));
    assert!(rows(200).ends_with(" Larder holds 20 % less than expandable segments."));
}

#[test]
fn what_ran_is_compared() {
    let rows = |theirs, ours| {
        verdict(&[
            ("one", theirs, 100, 200, true),
            ("one", ours, 100, 100, true),
        ])
        .unwrap()
    };
    assert_eq!(
        rows("pytorch", "larder-planned"),
        "At the peak PyTorch holds 200 MiB, Larder (larder-planned) 100 MiB: 50 % less."
    );
    assert_eq!(
        rows("pytorch-expandable", "larder-no-moves"),
        "At the peak PyTorch with expandable segments holds 200 MiB, Larder (larder-no-moves) 100 MiB: 50 % less."
    );
}

#[test]
fn a_device_below_what_is_live_fits_no_allocator() {
    let sentence = |device| {
        let mut report = ReplayReport::new(Options::new(Some(device * MIB)));
        for allocator in ["pytorch", "larder"] {
            report.add("one", allocator, outcome(1884 * MIB, 1500 * MIB, false));
        }
        report.verdict().unwrap()
    };
    assert_eq!(
        sentence(1536),
        "The program needs 1.84 GiB live: no allocator fits 1.5 GiB."
    );
    assert!(sentence(1884).starts_with("Both "));
}

#[test]
fn several_traces_are_compared_by_geometric_means() {
    let sentence = verdict(&[
        ("one", "pytorch", 100, 100, true),
        ("one", "larder", 100, 100, true),
        ("two", "pytorch", 100, 400, true),
        ("two", "larder", 100, 100, true),
    ]);
    assert_eq!(
        sentence.unwrap(),
        "At the peak PyTorch holds 2.000 times what is live, Larder (larder) 1.000: 50 % less (geometric means over 2 traces)."
    );
}

#[test]
fn who_runs_out_of_memory_is_named_and_left_out_of_means() {
    let one = |theirs, ours| {
        let theirs = ("one", "pytorch", 100, 100, theirs);
        verdict(&[theirs, ("one", "larder", 100, 100, ours)]).unwrap()
    };
    assert_eq!(
        one(false, true),
        "PyTorch runs out of memory, Larder (larder) does not."
    );
    assert_eq!(
        one(true, false),
        "Larder (larder) runs out of memory, PyTorch does not."
    );
    assert_eq!(
        one(false, false),
        "Both PyTorch and Larder (larder) run out of memory."
    );
    let two = |completed| {
        let rows = [
            ("one", "pytorch", 100, 200, completed),
            ("one", "larder", 100, 100, true),
            ("two", "pytorch", 100, 400, false),
            ("two", "larder", 100, 100, true),
        ];
        verdict(&rows).unwrap()
    };
    let sentence = two(true);
    assert!(
        sentence
            .starts_with("PyTorch completes 1 of 2 traces, Larder (larder) 2. At the peak PyTorch"),
        "{sentence}"
    );
    assert!(
        sentence.ends_with(
            "2.000 times what is live, Larder (larder) 1.000: 50 % less (geometric means over 1 trace)."
        ),
        "{sentence}"
    );
    assert_eq!(
        two(false),
        "PyTorch completes 0 of 2 traces, Larder (larder) 2."
    );
}

#[test]
fn settings_of_ones_own_go_before_the_defaults() {
    let sentence = verdict(&[
        ("one", "pytorch", 100, 800, true),
        ("one", "larder", 100, 100, true),
        ("one", "pytorch-set", 100, 200, true),
    ]);
    let sentence = sentence.unwrap();
    assert!(
        sentence.starts_with("At the peak PyTorch as set holds 200 MiB"),
        "{sentence}"
    );
}

#[test]
fn without_both_there_is_no_sentence() {
    assert_eq!(verdict(&[("one", "larder", 100, 100, true)]), None);
    assert_eq!(verdict(&[("one", "pytorch", 100, 100, true)]), None);
}
