//! The three faces of a report, on figures made up here.

use super::html::page;
use super::{Report, table};
use crate::replay::{Curve, Outcome};

fn outcome(live: u64, reserved: u64, completed: bool) -> Outcome {
    let mut curve = Curve::new(2);
    curve.note(0, live / 2, reserved / 2);
    curve.note(1, live, reserved);
    Outcome {
        allocations: 7,
        peak_live_bytes: live,
        peak_reserved_bytes: reserved,
        driver_allocations: 3,
        driver_frees: 1,
        ns_per_operation: Some(12.34),
        completed,
        stopped_at_event: (!completed).then_some(123),
        curve,
    }
}

fn report() -> Report {
    let mut report = Report::new(Some(1 << 30));
    report.add("one", "first", outcome(1 << 20, 2 << 20, true));
    report.add("one", "second", outcome(1 << 20, 3 << 20, true));
    report.add("<two> & co", "first", outcome(1 << 20, 8 << 20, true));
    report.add("<two> & co", "second", outcome(1 << 20, 9 << 20, false));
    report
}

#[test]
fn the_mean_is_geometric_and_counts_completed_traces_only() {
    let means = report().means();
    assert_eq!(means.len(), 2);
    assert!((means[0].reserved_over_live.unwrap() - 4.0).abs() < 1e-12);
    assert_eq!((means[0].completed, means[0].traces), (2, 2));
    assert!((means[1].reserved_over_live.unwrap() - 3.0).abs() < 1e-12);
    assert_eq!((means[1].completed, means[1].traces), (1, 2));
}

#[test]
fn one_trace_has_no_mean() {
    let mut report = Report::new(None);
    report.add("one", "first", outcome(1, 2, true));
    assert!(report.means().is_empty());
    assert!(!table(&report).contains("mean"));
}

#[test]
fn a_json_line_has_the_promised_keys() {
    let report = report();
    let value = serde_json::to_value(&report.rows()[0]).unwrap();
    assert_eq!(value["trace"], "one");
    assert_eq!(value["allocator"], "first");
    assert_eq!(value["allocations"], 7);
    assert_eq!(value["peak_live_bytes"], 1 << 20);
    assert_eq!(value["peak_reserved_bytes"], 2 << 20);
    assert_eq!(value["reserved_over_live"], 2.0);
    assert_eq!(value["driver_allocations"], 3);
    assert_eq!(value["driver_frees"], 1);
    assert_eq!(value["ns_per_operation"], 12.34);
    assert_eq!(value["completed"], true);
    assert_eq!(value["device_bytes"], 1 << 30);
}

#[test]
fn the_table_has_a_line_for_each_replay_and_each_mean() {
    let text = table(&report());
    assert_eq!(text.lines().count(), 2 + 4 + 2 + 2, "{text}");
    let last = text.lines().last().unwrap();
    assert_eq!(last, "  second  3.0000 over 1 completed of 2 traces");
    assert_eq!(text.matches("no, event 123").count(), 1, "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
}

#[test]
fn the_page_escapes_names_and_fetches_nothing() {
    let page = page(&report()).unwrap();
    assert!(page.contains("&lt;two&gt; &amp; co"));
    assert!(!page.contains("<two>"));
    assert!(page.contains("<td class=\"text no\">no, event 123</td>"));
    assert_eq!(page.matches("<svg").count(), 2);
    assert_eq!(page.matches("</svg>").count(), 2);
    for fetching in ["<script", "<link", "src=", "href=", "url("] {
        assert!(!page.contains(fetching), "{fetching}");
    }
}

#[test]
fn a_page_about_nothing_but_refusals_can_be_drawn() {
    let mut report = Report::new(Some(1));
    let mut refused = outcome(0, 0, false);
    refused.curve = Curve::new(5);
    report.add("one", "first", refused);
    assert!(page(&report).unwrap().contains("</svg>"));
}
