//! Workloads of frames: their figures, their table, and their absence from everything else.

use super::*;
use crate::versus::markdown::{read, summary};
use crate::versus::peers::{Measure, contest};

fn framed(p50_us: f64, max_us: f64, done: u64) -> Sample {
    Sample {
        frames: Some(Frames {
            planned: 800,
            done,
            p50_us,
            p99_us: 2.0 * p50_us,
            max_us,
        }),
        ..sample(2.4, 64)
    }
}

fn skipped(allocator: &'static str) -> Runs {
    Runs {
        fault: Some(RunFault::Skipped("the system refuses it".to_owned())),
        ..runs(allocator, &[])
    }
}

/// Returns rows of three rounds, on a system that does not allow the second workload.
fn rows_of_frames() -> Vec<VersusRow> {
    let mut broken = runs("talc", &[framed(1.0, 1.0, 800)]);
    broken.fault = Some(RunFault::TimedOut { seconds: 9 });
    let ours = [
        framed(9000.0, 60_000.0, 300),
        framed(8000.0, 10_000.0, 280),
        framed(4000.0, 9000.0, 320),
    ];
    let mut all = rows(
        workload("frames-one-cpu"),
        &[
            runs("system", &[framed(50.0, 120.0, 800)]),
            runs("larder", &ours),
            broken,
        ],
    );
    all.extend(rows(
        workload("frames-fifo"),
        &[skipped("system"), skipped("larder")],
    ));
    all
}

fn rows_of_times() -> Vec<VersusRow> {
    let mut all = rows(
        workload("boxes"),
        &[
            runs("system", &[sample(0.4, 2)]),
            runs("larder", &[sample(0.2, 4)]),
        ],
    );
    all.extend(rows(
        workload("pipe-1"),
        &[
            runs("system", &[sample(0.4, 2)]),
            runs("larder", &[sample(0.8, 2)]),
        ],
    ));
    all
}

#[test]
fn the_median_of_the_rounds_counts_and_of_the_slowest_frames_the_slowest() {
    let rows = rows_of_frames();
    let expected = Frames {
        planned: 800,
        done: 300,
        p50_us: 8000.0,
        p99_us: 16_000.0,
        max_us: 60_000.0,
    };
    assert_eq!(rows[1].frames, Some(expected));
    assert_eq!(rows[2].frames, None);
    assert_eq!(rows[3].frames, None);
    assert!(rows_of_times().iter().all(|row| row.frames.is_none()));
}

#[test]
fn what_is_skipped_has_not_failed_and_has_no_figures() {
    let row = &rows_of_frames()[3];
    assert_eq!(row.skipped.as_deref(), Some("the system refuses it"));
    assert_eq!((&row.failed, row.seconds, row.rounds), (&None, None, 0));
    let results = Results {
        rows: rows_of_frames(),
        ..Results::default()
    };
    // The run that did not end counts as failed.
    assert_eq!(results.failed(), (1, 5));
}

#[test]
fn a_worker_says_that_it_was_skipped() {
    let line = r#"{"workload":"frames-fifo","allocator":"larder","skipped":"not here"}"#;
    let fault = parse(line, "larder", "frames-fifo").unwrap_err();
    assert_eq!(fault, RunFault::Skipped("not here".to_owned()));
    let fault = parse(line, "larder", "boxes").unwrap_err();
    assert!(matches!(fault, RunFault::NoSample(_)), "{fault}");
}

#[test]
fn frames_have_a_table_of_their_own_with_ratios_to_the_system() {
    golden("frames.txt", &table(&rows_of_frames(), ANY_WIDTH));
}

#[test]
fn without_the_system_frames_have_no_ratios() {
    let rows = rows(
        workload("frames-loaded"),
        &[runs("larder", &[framed(5.5, 9.0, 800)])],
    );
    let text = table(&rows, ANY_WIDTH);
    let line = text.lines().find(|line| line.contains("p50")).unwrap();
    assert!(line.trim_end().ends_with(" 5.5"), "{text}");
}

#[test]
fn frames_change_no_ratio_no_mean_and_no_contest() {
    let without = rows_of_times();
    let mut with = without.clone();
    with.extend(rows_of_frames());
    for row in &with[without.len()..] {
        assert_eq!(row.ratio_to_best, None);
        assert_eq!(row.peak_rss_ratio_to_best, None);
    }
    assert_eq!(means(&with, "fat"), means(&without, "fat"));
    for measure in Measure::ALL {
        let contest = |rows: &[VersusRow]| contest(rows, "fat", measure);
        assert_eq!(contest(&with), contest(&without));
    }
    assert_eq!(summary(&with), summary(&without));
    let before_frames = |rows: &[VersusRow]| {
        let text = table(rows, ANY_WIDTH);
        let end = text.find("time of a frame").unwrap_or(text.len());
        text[..end].to_owned()
    };
    assert_eq!(before_frames(&with), before_frames(&without));
}

#[test]
fn rows_of_frames_are_read_back_and_so_are_rows_from_before_there_were_any() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let mut rows = rows_of_frames();
    rows.extend(rows_of_times());
    let line = |row: &VersusRow| serde_json::to_string(row).unwrap();
    let lines: Vec<String> = rows.iter().map(line).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    assert_eq!(read(&path).unwrap(), rows);
    let value = serde_json::to_value(&rows[1]).unwrap();
    assert_eq!(value["frames"]["p50_us"], 8000.0);
    assert_eq!(value["frames"]["done"], 300);
    let value = serde_json::to_value(&rows[3]).unwrap();
    assert_eq!(value["skipped"], "the system refuses it");
    let earlier = lines[5].replace("\"frames\":null,", "");
    assert_ne!(earlier, lines[5]);
    fs::write(&path, earlier).unwrap();
    assert_eq!(read(&path).unwrap(), rows[5..6]);
}
