//! RMM logs, as RMM writes them and as other programs change them.

use std::path::Path;

use crate::rmm::HEADER;
use crate::{Defect, Event, Refusal, Trace, TraceError, read};

const ROWS: &str = "\
    7,10:00:00.000001,allocate,0x7f0000000000,1024,0x2
    7,10:00:00.000002,allocate,0x7f0000000400,100,0x2
    7,10:00:00.000003,free,0x7f0000000000,1024,0x2
    7,10:00:00.000004,allocate,0x7f0000000000,7,0x2
";

fn log(rows: &str) -> String {
    format!("{HEADER}\n{}", rows.replace("    ", ""))
}

fn parsed(text: &str) -> Result<Trace, TraceError> {
    read(Path::new("logs/run.dev0.csv"), text.as_bytes())
}

fn defect(text: &str, line: u64) -> Defect {
    let error = parsed(text).unwrap_err();
    assert_eq!(error.line(), Some(line), "{error}");
    error.into_defect()
}

fn noted(trace: &Trace, text: &str) -> bool {
    trace.notes().iter().any(|note| note.contains(text))
}

fn events() -> [Event; 4] {
    [
        Event::Alloc { id: 0, bytes: 1024 },
        Event::Alloc { id: 1, bytes: 100 },
        Event::Free { id: 0 },
        Event::Alloc { id: 2, bytes: 7 },
    ]
}

#[test]
fn a_log_gives_its_name_and_events_and_one_note() {
    let trace = parsed(&log(ROWS)).unwrap();
    assert_eq!(trace.name(), "run.dev0");
    assert_eq!(trace.events(), events());
    assert_eq!(trace.stream(2), Some(2));
    assert_eq!(trace.stream(3), None, "there is no such block");
    assert_eq!(trace.notes().len(), 1, "{:?}", trace.notes());
    assert!(noted(&trace, "an RMM log has no steps"));
}

#[test]
fn a_failed_allocation_is_a_refused_request_on_an_unknown_device() {
    let rows = format!("{ROWS}7,10:00:00.000005,allocate failure,(nil),4096,0x2\n");
    let trace = parsed(&log(&rows)).unwrap();
    assert_eq!(trace.events(), events());
    let [refusal] = trace.refusals() else {
        panic!("{:?}", trace.refusals());
    };
    let expected = Refusal {
        events_before: 4,
        bytes: 4096,
        live_bytes: 107,
        blocks_after: 0,
        device_bytes: None,
    };
    assert_eq!(*refusal, expected);
}

#[test]
fn ends_of_lines_empty_lines_and_compression_make_no_difference() {
    let plain = log(ROWS);
    let windows = plain.replace('\n', "\r\n");
    let spaced = plain.replace('\n', "\n\n");
    for text in [&windows, &spaced, plain.trim_end()] {
        assert_eq!(parsed(text).unwrap(), parsed(&plain).unwrap());
    }
    let compressed = zstd::encode_all(plain.as_bytes(), 3).unwrap();
    let trace = read(Path::new("logs/run.dev0.csv"), compressed.as_slice());
    assert_eq!(trace.unwrap().events(), events());
}

#[test]
fn a_byte_order_mark_and_quotes_make_no_difference() {
    let plain = log(ROWS);
    let quoted = |text: &str| {
        let rows = text.lines().map(|row| row.replace(',', "\",\""));
        rows.map(|row| format!("\"{row}\"\n")).collect::<String>()
    };
    let header_alone = plain.replace(HEADER, quoted(HEADER).trim_end());
    let marked = format!("\u{feff}{plain}");
    let both = format!("\u{feff}{}", quoted(&plain));
    for text in [header_alone, quoted(&plain), marked, both] {
        assert_eq!(parsed(&text).unwrap(), parsed(&plain).unwrap(), "{text}");
    }
}

#[test]
fn a_last_row_that_is_cut_is_left_out_and_noted() {
    let whole = log(ROWS);
    let start = whole.trim_end().rfind('\n').unwrap() + 1;
    // A row that is cut before its last comma lacks the stream. In a row that is cut after it, only
    // the stream may be incomplete.
    let comma = whole.rfind(',').unwrap();
    for end in start + 1..=comma {
        let trace = parsed(&whole[..end]).unwrap();
        assert_eq!(trace.events(), &events()[..3], "{}", &whole[start..end]);
        assert!(noted(&trace, "the last row is cut"));
    }
    // In the middle of a log, such a row is an error.
    let text = log("7,10:00:00.1,allocate,0x7f,10\n7,10:00:00.1,allocate,0x7f,1024,0x2\n");
    assert!(matches!(defect(&text, 2), Defect::RowFields { found: 5 }));
}

#[test]
fn a_log_without_allocations_or_with_other_columns_is_refused() {
    assert!(matches!(
        defect(&format!("{HEADER}\n"), 1),
        Defect::NothingAllocated { .. }
    ));
    assert!(matches!(
        defect(&format!("{HEADER},Extra\n"), 1),
        Defect::UnknownColumns { .. }
    ));
    let long = format!("{HEADER}\n{}\n", "x".repeat(70_000));
    assert!(matches!(defect(&long, 2), Defect::LineTooLong { .. }));
}
