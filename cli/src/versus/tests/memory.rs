//! Workloads of memory only: resident over live bytes, without times.

use super::*;
use crate::versus::html::html;
use crate::versus::markdown::summary;

fn looked_at(seconds: f64, resident_mib: u64) -> Sample {
    Sample {
        live_bytes: Some(64 << 20),
        live_rss_bytes: Some(resident_mib << 20),
        ..sample(seconds, 1024)
    }
}

fn rows_of_memory() -> Vec<VersusRow> {
    let of = |name| {
        let all = [
            runs("larder", &[looked_at(3.0, 80), looked_at(1.0, 84)]),
            runs("system", &[looked_at(1.0, 128)]),
        ];
        rows(workload(name), &all)
    };
    [of("idle-1"), of("server")].concat()
}

#[test]
fn memory_is_shown_over_what_is_live_and_beside_its_peak() {
    let rows = rows_of_memory();
    assert!(close(rows[0].rss_over_live, 1.28125));
    assert_eq!(rows[0].peak_rss_bytes, Some(1 << 30));
    let text = table(&rows, ANY_WIDTH);
    let (_, of_live) = text.split_once("resident memory over live bytes").unwrap();
    let line = of_live.lines().find(|line| line.contains("idle-1"));
    let cells: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(cells, ["idle-1", "1.28", "2.00"], "{text}");
}

#[test]
fn the_time_of_memory_is_in_no_ratio_no_mean_and_no_contest() {
    let rows = rows_of_memory();
    for row in &rows {
        assert_eq!(
            (row.seconds, row.spread, row.ratio_to_best),
            (None, None, None)
        );
        assert_eq!(row.ns_per_operation, None);
    }
    assert_eq!(means(&rows, "fat"), []);
    let text = table(&rows, ANY_WIDTH);
    for other in ["time over", "means", "best peer"] {
        assert!(!text.contains(other), "{other}\n{text}");
    }
    let results = Results {
        rows: rows.clone(),
        ..Results::default()
    };
    assert!(!html(&results, &[]).contains("on average"));
    let without = all_rows();
    let with = [without.clone(), rows].concat();
    assert_eq!(means(&with, "fat"), means(&without, "fat"));
    assert_eq!(summary(&with), summary(&without));
}
