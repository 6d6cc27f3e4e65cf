//! Order, medians, answers, tables and pages, for invented samples.

mod frames;
mod memory;
mod ours;

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::frames::Frames;
use super::page::{ResultOrigin, Results, page, write};
use super::process::parse;
use super::process::{RunFault, Sample};
use super::rounds::Runs;
use super::rounds::{compare_answers, order};
use super::summary::means;
use super::table::table;
use super::*;
use crate::numbers::median;
use crate::report::ANY_WIDTH;

const SETTINGS: Settings = Settings {
    rounds: 3,
    scale: 1.0,
    limit: Duration::from_secs(1),
};

const LINE: &str = r#"{"workload":"boxes","allocator":"system","seconds":0.5,"operations":10,"answer":7,"peak_rss_bytes":4096,"end_rss_bytes":2048,"live_bytes":null,"live_rss_bytes":null}"#;

fn sample(seconds: f64, peak_mib: u64) -> Sample {
    Sample {
        seconds,
        peak_rss_bytes: Some(peak_mib << 20),
        end_rss_bytes: Some(peak_mib << 19),
        live_bytes: Some(1 << 20),
        live_rss_bytes: Some(peak_mib << 20),
        ..parse(LINE, "system", "boxes").unwrap()
    }
}

fn runs(allocator: &'static str, samples: &[Sample]) -> Runs {
    Runs {
        allocator,
        profile: Profile::Fat,
        samples: samples.to_vec(),
        fault: None,
    }
}

fn answers(allocator: &'static str, answers: &[u64]) -> Runs {
    let with = |answer: &u64| Sample {
        answer: *answer,
        ..sample(1.0, 1)
    };
    runs(allocator, &answers.iter().map(with).collect::<Vec<_>>())
}

fn workload(name: &str) -> &'static Workload {
    workloads::find(name).unwrap()
}

/// Returns rows of two workloads with one thread and one workload with two; `talc` fails the second
/// and does not run the third.
fn all_rows() -> Vec<VersusRow> {
    let steady = [sample(0.20, 2), sample(0.21, 2), sample(0.20, 2)];
    let shaky = [sample(0.40, 8), sample(0.30, 8), sample(0.90, 8)];
    let slow = [sample(0.80, 4), sample(0.80, 4), sample(0.80, 4)];
    let mut broken = runs("talc", &slow);
    broken.fault = Some(RunFault::TimedOut { seconds: 9 });
    let mut rows = rows(
        workload("boxes"),
        &[
            runs("larder", &steady),
            runs("system", &shaky),
            runs("talc", &slow),
        ],
    );
    rows.extend(super::rows(
        workload("map"),
        &[runs("larder", &slow), runs("system", &steady), broken],
    ));
    rows.extend(super::rows(
        workload("pipe-1"),
        &[runs("larder", &steady), runs("system", &slow)],
    ));
    rows
}

/// Compares a text with a file of this folder, or writes the text to the file if `LARDER_REWRITE`
/// is set.
fn golden(name: &str, found: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/versus/tests");
    if std::env::var_os("LARDER_REWRITE").is_some() {
        return fs::write(folder.join(name), found).unwrap();
    }
    let expected = fs::read_to_string(folder.join(name)).unwrap();
    let rewrite = "LARDER_REWRITE=1 cargo test -p larder-cli --lib versus::";
    assert!(
        found == expected,
        "{name} is not:\n{found}\nif that is right: {rewrite}"
    );
}

fn close(figure: Option<f64>, expected: f64) -> bool {
    figure.is_some_and(|figure| (figure - expected).abs() < 1e-9)
}

#[test]
fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0]), Some(3.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
}

#[test]
fn every_other_round_goes_back() {
    assert_eq!(order(0, 3), [0, 1, 2]);
    assert_eq!(order(1, 3), [2, 1, 0]);
    assert_eq!(order(2, 3), [0, 1, 2]);
}

#[test]
fn a_row_has_medians_spread_and_ratios_to_the_best() {
    let rows = all_rows();
    let [larder, system] = [&rows[0], &rows[1]];
    assert_eq!(larder.seconds, Some(0.20));
    assert!(close(larder.spread, 0.05));
    assert!(close(larder.ns_per_operation, 2e7));
    assert!(close(larder.ratio_to_best, 1.0));
    assert_eq!(system.seconds, Some(0.40));
    assert_eq!(system.seconds_min, Some(0.30));
    assert_eq!(system.seconds_max, Some(0.90));
    assert!(close(system.ratio_to_best, 2.0));
    assert!(close(system.peak_rss_ratio_to_best, 4.0));
    assert!(close(system.end_rss_ratio_to_best, 4.0));
    assert!(close(system.rss_over_live, 8.0));
}

#[test]
fn profiles_are_not_compared_with_each_other() {
    let mut plain = runs("larder", &[sample(0.1, 1)]);
    plain.profile = Profile::Plain;
    let rows = rows(
        workload("boxes"),
        &[
            runs("larder", &[sample(0.2, 2)]),
            plain,
            runs("system", &[sample(0.4, 1)]),
        ],
    );
    assert!(close(rows[0].ratio_to_best, 1.0));
    assert!(close(rows[1].ratio_to_best, 1.0));
    assert!(close(rows[2].ratio_to_best, 2.0));
    assert!(close(rows[0].peak_rss_ratio_to_best, 2.0));
}

#[test]
fn what_failed_has_no_figures_and_is_nobodys_best() {
    let mut fast = runs("talc", &[sample(0.01, 1)]);
    fast.fault = Some(RunFault::NotRun("no".to_owned()));
    let rows = rows(
        workload("boxes"),
        &[runs("larder", &[sample(0.2, 2)]), fast],
    );
    assert!(close(rows[0].ratio_to_best, 1.0));
    assert_eq!(rows[1].seconds, None);
    assert_eq!(rows[1].failed.as_deref(), Some("cannot be run: no"));
}

#[test]
fn a_system_that_tells_no_memory_still_gives_times() {
    let blind = Sample {
        peak_rss_bytes: None,
        end_rss_bytes: None,
        live_rss_bytes: None,
        ..sample(0.2, 1)
    };
    let rows = rows(workload("boxes"), &[runs("larder", &[blind])]);
    assert!(close(rows[0].ratio_to_best, 1.0));
    assert_eq!(rows[0].peak_rss_bytes, None);
    let text = table(&rows, ANY_WIDTH);
    assert!(!text.contains("resident"), "{text}");
}

#[test]
fn means_are_geometric_and_apart_by_threads() {
    let means = means(&all_rows(), "fat");
    let find = |allocator, one_thread| {
        let mut found = means.iter();
        found.find(|mean| mean.allocator == allocator && mean.one_thread == one_thread)
    };
    let larder = find("larder", true).unwrap();
    assert!(close(larder.time, 2.0), "{larder:?}");
    assert!(close(larder.peak_rss, 2_f64.sqrt()), "{larder:?}");
    assert_eq!((larder.workloads, larder.of), (2, 2));
    let talc = find("talc", true).unwrap();
    assert!(close(talc.time, 4.0), "{talc:?}");
    assert_eq!((talc.workloads, talc.of), (1, 2));
    assert!(close(find("system", false).unwrap().time, 4.0));
    assert_eq!(find("talc", false), None);
}

#[test]
fn the_answer_of_the_system_is_the_right_one() {
    let mut all = [
        answers("larder", &[8, 8]),
        answers("talc", &[8]),
        answers("system", &[7, 7]),
    ];
    compare_answers(&mut all);
    let fault = Some(RunFault::WrongAnswer {
        answer: 8,
        expected: 7,
    });
    assert_eq!(all[0].fault, fault);
    assert_eq!(all[1].fault, fault);
    assert_eq!(all[2].fault, None);
}

#[test]
fn without_the_system_most_are_right_and_one_wrong_round_is_enough() {
    let mut all = [
        answers("larder", &[7, 7, 9]),
        answers("talc", &[7]),
        answers("rlsf", &[8]),
    ];
    compare_answers(&mut all);
    let wrong = |answer| {
        Some(RunFault::WrongAnswer {
            answer,
            expected: 7,
        })
    };
    assert_eq!(all[0].fault, wrong(9));
    assert_eq!(all[1].fault, None);
    assert_eq!(all[2].fault, wrong(8));
}

#[test]
fn the_line_of_a_worker_is_read() {
    let sample = parse(&format!("{LINE}\n"), "system", "boxes").unwrap();
    assert_eq!((sample.operations, sample.answer), (10, 7));
    assert_eq!(sample.peak_rss_bytes, Some(4096));
    assert_eq!(sample.live_bytes, None);
}

#[test]
fn a_line_that_is_no_measurement_of_this_run_is_refused() {
    let refused = |line: &str, allocator, workload| {
        let fault = parse(line, allocator, workload);
        matches!(fault, Err(RunFault::NoSample(_)))
    };
    assert!(refused("", "system", "boxes"));
    assert!(refused("segmentation fault", "system", "boxes"));
    assert!(refused(LINE, "larder", "boxes"));
    assert!(refused(LINE, "system", "map"));
    let zero = LINE.replace("0.5", "0.0");
    assert!(refused(&zero, "system", "boxes"));
    let nothing = LINE.replace("\"operations\":10", "\"operations\":0");
    assert!(refused(&nothing, "system", "boxes"));
}

#[test]
fn the_tables_show_ratios_shaky_rounds_means_and_failures() {
    golden("all.txt", &table(&all_rows(), ANY_WIDTH));
}

#[test]
fn one_workload_has_no_means() {
    let rows = rows(workload("boxes"), &[runs("larder", &[sample(0.2, 2)])]);
    assert!(!table(&rows, ANY_WIDTH).contains("means"));
}

#[test]
fn a_page_says_where_it_comes_from_and_overwrites_nothing() {
    let origin = ResultOrigin {
        command: "larder versus".to_owned(),
        commit: "abc1234 with local changes".to_owned(),
        date: "2026-01-02".to_owned(),
        machine: "two cores".to_owned(),
        versions: "talc 5.1.1".to_owned(),
        skipped: vec!["snmalloc (fat): does not build here".to_owned()],
    };
    let results = Results {
        rows: all_rows(),
        ..Results::default()
    };
    let text = page(&results, &SETTINGS, &origin);
    for part in [
        "larder versus",
        "abc1234 with local",
        "2026-01-02",
        "two cores",
        "talc 5.1.1",
        "| boxes | system |",
        "geometric mean",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(text.contains("Left out: snmalloc (fat)"), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("results");
    let write = |results| write(&kept, results, &SETTINGS, &origin).unwrap();
    let [first, lines] = &write(&results);
    assert!(first.ends_with("2026-01-02-versus.md"));
    assert_eq!(fs::read_to_string(first).unwrap(), text);
    let json = fs::read_to_string(lines).unwrap();
    assert_eq!(json.lines().count(), results.rows.len());
    let fewer = Results::default();
    assert!(write(&fewer)[0].ends_with("2026-01-02-versus-2.md"));
    assert!(write(&fewer)[0].ends_with("2026-01-02-versus-3.md"));
    assert_eq!(fs::read_to_string(first).unwrap(), text);
}

#[test]
fn names_are_unique() {
    for (index, workload) in WORKLOADS.iter().enumerate() {
        let before = &WORKLOADS[..index];
        assert!(before.iter().all(|other| other.name != workload.name));
        assert!(workload.threads > 0, "{}", workload.name);
    }
    for (index, allocator) in ALLOCATORS.iter().enumerate() {
        let before = &ALLOCATORS[..index];
        assert!(before.iter().all(|other| other.name != allocator.name));
    }
}
