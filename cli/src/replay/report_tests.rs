//! The three forms of a report, on invented figures.

use std::num::NonZeroU32;

use super::report::ReplayReport;
use super::{DriverCalls, Options, Outcome, ReplayHistory, SmallestDevice};
use crate::report::Shown;

pub(super) fn outcome(live: u64, reserved: u64, completed: bool) -> Outcome {
    Outcome {
        allocations: 7,
        streams: 1,
        peak_live_bytes: live,
        trace_live_bytes: live,
        peak_reserved_bytes: reserved,
        driver_allocations: 3,
        driver_frees: 1,
        driver_calls: None,
        calls_by_pass: None,
        driver: None,
        calls_by_name: None,
        calls_by_name_by_pass: None,
        reserved_by_pass: vec![reserved],
        steps: None,
        plans: None,
        ns_per_operation: Some(12.34),
        worst_ns: Some(5678),
        completed,
        stopped_at_event: (!completed).then_some(123),
        stopped_in_pass: (!completed).then_some(1),
        refused: None,
        notes: Vec::new(),
        smallest_device: None,
        refused_requests: None,
        pytorch_settings: None,
        recorded_held_bytes: None,
        history: Some(ReplayHistory::default()),
    }
}

fn report() -> ReplayReport {
    let mut report = ReplayReport::new(Options::new(Some(1 << 30)));
    report.add("one", "first", outcome(1 << 20, 2 << 20, true));
    report.add("one", "second", outcome(1 << 20, 3 << 20, true));
    report.add("<two> & co", "first", outcome(1 << 20, 8 << 20, true));
    report.add("<two> & co", "second", outcome(1 << 20, 9 << 20, false));
    report
}

#[test]
fn calls_are_the_same_in_the_table_and_on_the_page() {
    let mut report = ReplayReport::new(Options::new(None));
    let of_regions = Outcome {
        driver_allocations: 225,
        driver_frees: 52,
        ..outcome(1 << 20, 2 << 20, true)
    };
    report.add("one", "pytorch", of_regions);
    let text = report.text(&Shown::all()).unwrap();
    let row = text.lines().find(|line| line.starts_with("  pytorch "));
    assert!(row.unwrap().contains(" 277 "), "{text}");
    let page = report.page().unwrap();
    assert!(page.contains("<td data-of=\"driver calls\">277</td>"));
}

#[test]
fn an_allocator_without_a_row_on_one_trace_is_compared_on_the_others() {
    let mut report = ReplayReport::new(Options::new(None));
    let mut add = |allocator, mib: u64| {
        report.add("same name", allocator, outcome(1 << 20, mib << 20, true));
    };
    // Three traces; the first marks no steps.
    for (theirs, planned) in [(100, None), (500, Some(200)), (500, Some(400))] {
        add("pytorch-expandable", theirs);
        if let Some(planned) = planned {
            add("larder-planned", planned);
        }
    }
    let pairs = report.pairs("larder-planned", "pytorch-expandable");
    let numbers = pairs.iter().map(|(one, other)| {
        assert_eq!(one.trace_number, other.trace_number);
        one.trace_number
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
    let text = report.text(&Shown::all()).unwrap();
    assert!(
        text.contains("  larder-planned      memory on 0, calls on 0, time on 0 of 2 traces\n"),
        "{text}"
    );
}

#[test]
fn one_trace_has_no_mean() {
    let mut report = ReplayReport::new(Options::new(None));
    report.add("one", "first", outcome(1, 2, true));
    assert!(report.means().is_empty());
    assert!(!report.text(&Shown::all()).unwrap().contains("mean"));
}

/// Returns a report of three passes of an allocator whose calls are known, with a search for the
/// smallest device. The search fails for the second trace, and the third trace stops in its second
/// pass.
fn paged_report() -> ReplayReport {
    let mut report = ReplayReport::new(Options {
        passes: NonZeroU32::new(3).unwrap(),
        smallest_device: true,
        ..Options::new(None)
    });
    let paged = |create, completed| Outcome {
        driver_calls: Some(DriverCalls {
            create,
            map: 2,
            unmap: 3,
            release: 4,
            set_access: 5,
        }),
        calls_by_pass: Some(vec![create + 13, 0, 1]),
        ..outcome(1 << 20, 2 << 20, completed)
    };
    let smallest_device = Some(SmallestDevice {
        bytes: 1_100_000,
        over_live: 1.049,
        calls: 77,
    });
    let found = Outcome {
        smallest_device,
        ..paged(1, true)
    };
    report.add("one", "paged", found);
    report.add("two", "paged", paged(1000, true));
    let mut stopped = paged(5000, false);
    stopped.stopped_in_pass = Some(2);
    report.add("three", "paged", stopped);
    report
}

#[test]
fn a_json_line_has_the_calls_by_kind_and_pass_and_the_smallest_device() {
    let report = paged_report();
    let value = serde_json::to_value(&report.rows[0]).unwrap();
    assert_eq!(value["driver_calls"], 15);
    let kinds =
        serde_json::json!({"create": 1, "map": 2, "unmap": 3, "release": 4, "set_access": 5});
    assert_eq!(value["driver_calls_by_kind"], kinds);
    assert_eq!(value["passes"], 3);
    assert_eq!(value["calls_by_pass"], serde_json::json!([14, 0, 1]));
    assert_eq!(value["calls_last_pass"], 1);
    assert_eq!(value["smallest_device_bytes"], 1_100_000);
    assert_eq!(value["smallest_over_live"], 1.049);
    assert_eq!(value["smallest_device_calls"], 77);
    assert!(value["stopped_in_pass"].is_null());
    let stopped = serde_json::to_value(&report.rows[2]).unwrap();
    assert!(stopped["calls_last_pass"].is_null() && stopped["smallest_device_bytes"].is_null());
    assert_eq!(stopped["stopped_in_pass"], 2);
}

#[test]
fn the_table_has_a_line_for_each_replay_and_means_of_what_completed() {
    let expected = "
  allocator  allocations  live MiB  reserved MiB  reserved/live  driver allocs  driver frees  calls  ns/op  worst us  completed
───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
one
  first                7       1.0           2.0         2.0000              3             1      4   12.3       5.7  yes
  second               7       1.0           3.0         3.0000              3             1      4   12.3       5.7  yes
<two> & co
  first                7       1.0           8.0         8.0000              3             1      4   12.3       5.7  yes
  second               7       1.0           9.0         9.0000              3             1      4   12.3       5.7  no, event 123

geometric mean of reserved/live
  first   4.0000 over 2 completed of 2 traces
  second  3.0000 over 1 completed of 2 traces
";
    let text = report().text(&Shown::all()).unwrap();
    assert_eq!(format!("\n{text}"), expected);
}

#[test]
fn calls_and_smallest_devices_stand_in_the_table_and_its_mean() {
    let expected = "
  allocator  allocations  live MiB  reserved MiB  reserved/live  driver allocs  driver frees  calls  last pass  ns/op  worst us  smallest/live  its calls  completed
──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
one
  paged                7       1.0           2.0         2.0000              3             1     15          1   12.3       5.7         1.0490         77  yes
two
  paged                7       1.0           2.0         2.0000              3             1   1014          1   12.3       5.7              -          -  yes
three
  paged                7       1.0           2.0         2.0000              3             1   5014          -   12.3       5.7              -          -  no, event 123 of pass 2

geometric mean of reserved/live
  paged  2.0000 over 2 completed of 3 traces, 1029 calls, smallest/live 1.0490 over 1
";
    let text = paged_report().text(&Shown::all()).unwrap();
    assert_eq!(format!("\n{text}"), expected);
}

#[test]
fn the_page_escapes_names_and_fetches_nothing() {
    let page = report().page().unwrap();
    assert!(page.contains("&lt;two&gt; &amp; co"));
    assert!(!page.contains("<two>"));
    assert!(page.contains("<td class=\"text bad\" data-of=\"completed\">no, event 123</td>"));
    assert_eq!(page.matches("<script type=\"application/json\"").count(), 2);
    for fetching in [
        "<link", "src=", "href=", "url(", "fetch(", "import", "http:",
    ] {
        let own = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains(fetching), "{fetching}");
    }
}

#[test]
fn no_name_ends_the_data_of_a_page() {
    let mut report = ReplayReport::new(Options::new(None));
    report.add("one", "</script><b>", outcome(1, 2, true));
    let page = report.page().unwrap();
    assert!(!page.contains("</script><b>"), "{page}");
    assert!(page.contains("\\u003c/script>\\u003cb>") || page.contains("u003c/script>"));
}

#[test]
fn each_allocator_says_on_how_many_traces_it_is_worse_than_expandable_segments() {
    let mut report = ReplayReport::new(Options::new(None));
    for (trace, over, streams, calls, ns) in [
        ("one", (2 << 20) + 1, 1, 4, 12.34),
        ("two", 4 << 20, 2, 5, 12.35),
    ] {
        let peer = outcome(1 << 20, 9 << 20, true);
        report.add(trace, "pytorch-expandable", peer);
        let ours = Outcome {
            streams,
            driver_allocations: calls,
            driver_frees: 0,
            ns_per_operation: Some(ns),
            ..outcome(1 << 20, (9 << 20) + over, true)
        };
        report.add(trace, "first", ours);
    }
    let text = report.text(&Shown::all()).unwrap();
    let line = "memory on 1, calls on 1, time on 1 of 2 traces";
    assert!(text.contains(line), "{text}");
    assert_eq!(text.matches(", time on").count(), 1, "{text}");
    report.rows.retain(|row| row.allocator == "first");
    let text = report.text(&Shown::all()).unwrap();
    assert!(!text.contains(", time on"), "{text}");
}
