//! The sentence at the end of a report, for invented figures: the cases of `verdicts.txt`.

use super::report::ReplayReport;
use super::report_tests::outcome;
use super::would_fit_tests::REFUSED;
use super::{CONTENDERS, Options, Outcome, PYTORCH_SET, RefusedRequests};
use crate::report::Shown;

const MIB: u64 = 1 << 20;

fn report(rows: &str) -> ReplayReport {
    let device = rows
        .strip_prefix("on ")
        .and_then(|rows| rows.split_once(", "));
    let bytes = device.map(|(device, _)| device.parse::<u64>().unwrap() * MIB);
    let mut report = ReplayReport::new(Options::new(bytes));
    for row in device.map_or(rows, |(_, rows)| rows).split(", ") {
        let words: Vec<&str> = row.split(' ').collect();
        let mib = |place: usize| words[place].parse::<u64>().unwrap() * MIB;
        let names = CONTENDERS.iter().map(|spec| spec.name);
        let name = names
            .chain([PYTORCH_SET.name])
            .find(|name| *name == words[1]);
        let completed = words.get(4).is_none();
        report.add(words[0], name.unwrap(), outcome(mib(2), mib(3), completed));
    }
    report
}

#[test]
fn a_report_ends_with_a_sentence_that_compares() {
    let cases = include_str!("verdicts.txt").replace("\n    ", "\t");
    let mut wrong = Vec::new();
    for (rows, expected) in cases.lines().filter_map(|case| case.split_once('\t')) {
        let report = report(rows);
        let (start, end) = expected.split_once("[..]").unwrap_or((expected, expected));
        let verdict = report.verdict();
        let said = verdict.as_deref().unwrap_or("none");
        let is_so = match expected.contains("[..]") {
            true => said.starts_with(start) && said.ends_with(end),
            false => said == expected,
        };
        if !is_so {
            wrong.push(format!("{rows}\n  {said}"));
        }
        let (text, page) = (report.text(&Shown::all()).unwrap(), report.page().unwrap());
        let (above, _) = page.split_once("<table").unwrap();
        match &verdict {
            Some(sentence) => {
                assert!(text.ends_with(&format!("\n\n{sentence}\n")), "{text}");
                assert!(above.contains(sentence), "{above}");
            }
            None => assert!(
                !text.contains("PyTorch") && !page.contains("PyTorch"),
                "{text}"
            ),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the sentence on a trace of which PyTorch held 125 MiB when it was recorded.
fn beside_what_was_recorded(
    device_bytes: Option<u64>,
    refused_requests: Option<RefusedRequests>,
) -> String {
    let mut report = ReplayReport::new(Options::new(device_bytes));
    for (name, reserved) in [("pytorch", 150), ("larder", 120)] {
        let outcome = Outcome {
            recorded_held_bytes: Some(125 * MIB),
            refused_requests,
            ..outcome(100 * MIB, reserved * MIB, true)
        };
        report.add("run", name, outcome);
    }
    report.verdict().unwrap()
}

#[test]
fn what_the_snapshot_records_stands_beside_a_replay_without_a_limit() {
    let without = "At the peak, on a device without a limit, PyTorch holds 150 MiB, Larder (larder) 120 MiB: 20 % less. The snapshot records that PyTorch held 125 MiB at most";
    assert_eq!(
        beside_what_was_recorded(None, None),
        format!("{without}; give --device-bytes to compare on a device with a limit.")
    );
    assert_eq!(
        beside_what_was_recorded(None, Some(REFUSED)),
        format!(
            "{without} of the 100 MiB that it could use; give --device-bytes to compare on a device of that size."
        )
    );
    assert_eq!(
        beside_what_was_recorded(Some(200 * MIB), Some(REFUSED)),
        "At the peak PyTorch holds 150 MiB, Larder (larder) 120 MiB: 20 % less."
    );
}
