//! The comparison of ours with the peers, the summary of kept rows, and instructions.

use super::*;
use crate::versus::instructions::{Count, collected, counts_table};
use crate::versus::markdown::{join, read, summary};
use crate::versus::peers::{Contest, Measure, Score, contest, contest_table};

fn named(workload_name: &str, all: &[(&'static str, f64, u64)]) -> Vec<VersusRow> {
    let all: Vec<Runs> = all
        .iter()
        .map(|(allocator, seconds, mib)| runs(allocator, &[sample(*seconds, *mib)]))
        .collect();
    rows(workload(workload_name), &all)
}

/// Returns rows in which ours are the best on `boxes`, while on `map` one of ours is slower and one
/// has failed.
fn rows_of_ours() -> Vec<VersusRow> {
    let mut all = named(
        "boxes",
        &[
            ("system", 0.4, 2),
            ("larder", 0.2, 4),
            ("larder-speed", 0.1, 8),
            ("larder-memory", 0.3, 1),
            ("talc", 0.5, 4),
        ],
    );
    let mut broken = runs("larder-memory", &[sample(0.1, 1)]);
    broken.fault = Some(RunFault::TimedOut { seconds: 9 });
    all.extend(rows(
        workload("map"),
        &[
            runs("system", &[sample(0.8, 8)]),
            runs("larder", &[sample(0.8, 2)]),
            runs("larder-speed", &[sample(0.4, 4)]),
            broken,
            runs("talc", &[sample(0.4, 4)]),
        ],
    ));
    // No peer has steps, so no allocator is compared on these rows.
    all.extend(named(
        "steps-one",
        &[("system", 0.1, 1), ("larder", 9.0, 99)],
    ));
    all
}

fn of(contest: &Contest, allocator: &str) -> Score {
    let mut scores = contest.scores.iter();
    scores
        .find(|score| score.allocator == allocator)
        .cloned()
        .unwrap()
}

#[test]
fn ours_are_measured_by_the_best_peer_and_not_by_each_other() {
    let rows = rows_of_ours();
    let time = contest(&rows, "fat", Measure::Time);
    let workloads: Vec<_> = time.lines.iter().map(|line| line.workload).collect();
    assert_eq!(workloads, ["boxes", "map"]);
    let [boxes, map] = [&time.lines[0], &time.lines[1]];
    assert_eq!((boxes.peer, map.peer), ("system", "talc"));
    assert_eq!(boxes.ratios, [0.5, 0.25, 0.75].map(Some));
    assert_eq!(map.ratios, [Some(2.0), Some(1.0), None]);
    let larder = of(&time, "larder");
    assert!(close(larder.mean, 1.0));
    assert_eq!(larder.workloads, 2);
    assert_eq!(larder.behind, [("map", 2.0)]);
    assert!(close(of(&time, "larder-speed").mean, 0.5));
    assert_eq!(of(&time, "larder-speed").behind, []);
    let memory = of(&time, "larder-memory");
    assert!(close(memory.mean, 0.75));
    assert_eq!(memory.workloads, 1);
}

#[test]
fn the_peak_has_a_best_peer_of_its_own() {
    let peak = contest(&rows_of_ours(), "fat", Measure::Peak);
    assert_eq!((peak.lines[0].peer, peak.lines[1].peer), ("system", "talc"));
    assert_eq!(peak.lines[0].ratios, [2.0, 4.0, 0.5].map(Some));
    assert!(close(of(&peak, "larder").mean, 1.0));
    let none = contest(&rows_of_ours(), "plain", Measure::Peak);
    assert_eq!((none.lines.len(), none.scores.len()), (0, 0));
    assert_eq!(contest_table(&none, ANY_WIDTH), "");
}

#[test]
fn the_worst_is_named_first_and_what_is_close_is_not_named() {
    let mut all = named("boxes", &[("system", 1.0, 1), ("larder", 1.04, 1)]);
    all.extend(named("map", &[("system", 1.0, 1), ("larder", 1.5, 1)]));
    all.extend(named("vec", &[("system", 1.0, 1), ("larder", 3.0, 1)]));
    let text = contest_table(&contest(&all, "fat", Measure::Time), ANY_WIDTH);
    let expected = "larder: geometric mean 1.67 over 3 workloads; above 1.05: vec 3.00, map 1.50\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_summary_has_a_line_for_each_workload_and_a_column_for_each_of_ours() {
    let mut rows = rows_of_ours();
    let mut plain = runs("larder", &[sample(0.9, 1)]);
    plain.profile = Profile::Plain;
    let mut peer = runs("talc", &[sample(0.6, 1)]);
    peer.profile = Profile::Plain;
    rows.extend(super::rows(workload("map"), &[plain, peer]));
    golden("summary.txt", &summary(&rows));
}

#[test]
fn kept_rows_are_read_back_and_other_measures_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let rows = rows_of_ours();
    let mut text = "{\"measure\":\"idle\",\"allocator\":\"talc\"}\n".to_owned();
    for row in &rows {
        text.push_str(&format!("{}\n", serde_json::to_string(row).unwrap()));
    }
    fs::write(&path, &text).unwrap();
    assert_eq!(read(&path).unwrap(), rows);
    fs::write(&path, text.replace("\"talc\"", "\"unheard-of\"")).unwrap();
    let message = read(&path).unwrap_err();
    assert!(message.contains("line 6"), "{message}");
    assert!(
        message.contains("no allocator is called `unheard-of`"),
        "{message}"
    );
    let message = read(&folder.path().join("gone")).unwrap_err();
    assert!(message.contains("gone"), "{message}");
}

#[test]
fn what_was_measured_again_replaces_the_workload_for_all_allocators() {
    let earlier = rows_of_ours();
    let later = named("boxes", &[("system", 2.0, 1), ("larder", 1.0, 1)]);
    let joined = join(earlier.clone(), later);
    assert_eq!(joined.len(), earlier.len() - 5 + 2);
    let boxes = joined.iter().filter(|row| row.workload == "boxes");
    let seconds: Vec<_> = boxes.map(|row| row.seconds).collect();
    assert_eq!(seconds, [Some(2.0), Some(1.0)]);
}

#[test]
fn a_count_is_found_in_what_valgrind_says() {
    let said = "==7== Events    : Ir\n==7== Collected : 6622291\n==7== I refs: 6,622,291\n";
    assert_eq!(collected(said), Some(6_622_291));
    assert_eq!(collected("Collected : 5\n"), None);
    assert_eq!(collected("==7== Collected : many\n"), None);
}

#[test]
fn counts_are_a_table_and_who_does_not_run_is_named_below() {
    let count = |allocator, workload, figure: Option<f64>| Count {
        measure: "instructions",
        workload,
        allocator,
        profile: "fat",
        instructions_per_operation: figure,
        failed: figure.is_none().then(|| "it aborted".to_owned()),
    };
    let counts = [
        count("larder", "pairs-64", Some(40.96)),
        count("snmalloc", "pairs-64", None),
        count("larder", "boxes", Some(31.0)),
    ];
    golden("counts.txt", &counts_table(&counts, ANY_WIDTH));
    assert_eq!(counts_table(&[], ANY_WIDTH), "");
    // A peer that Valgrind cannot run does not count as failed.
    let results = |counts: &[Count]| Results {
        counts: counts.to_vec(),
        ..Results::default()
    };
    assert_eq!(results(&counts).failed(), (0, 3));
    assert_eq!(results(&[count("larder", "boxes", None)]).failed(), (1, 1));
}
