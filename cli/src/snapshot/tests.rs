//! The written pickle, read back by independent code.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "one range of held memory is a list like any other"
)]

use serde_json::{Value, json};

use super::pickle::PickleWriter;
use super::{Snapshot, TracePosition, joined, without};

fn read(bytes: &[u8]) -> Value {
    serde_pickle::from_slice(bytes, serde_pickle::DeOptions::new()).unwrap()
}

fn event(event: u64) -> TracePosition {
    TracePosition { event, pass: 1 }
}

/// Returns a snapshot of four blocks in two segments: one freed, one rounded up, one without a
/// piece of its own, one refused.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.hold([1000..1400].into(), event(1));
    snapshot.alloc(1000, 100, event(1));
    snapshot.alloc(1200, 90, event(2));
    snapshot.free(1000, event(3));
    snapshot.hold([1000..1400, 5000..5100].into(), event(4));
    snapshot.alloc(5010, 20, event(4));
    snapshot.refuse(4096, 77, event(5));
    // The memory held is the second block's granted bytes and the free pieces around it.
    snapshot.hold(
        [1000..1200, 1200..1300, 1300..1350, 5000..5100].into(),
        event(5),
    );
    snapshot
}

fn written(snapshot: &Snapshot) -> Value {
    let mut bytes = Vec::new();
    snapshot
        .write("the trace", "the allocator", &mut bytes)
        .unwrap();
    read(&bytes)
}

/// The blocks of a segment leave no gap, and the history has the fields that the viewer reads.
#[test]
fn a_snapshot_is_what_the_viewer_reads() {
    let expected: Value = serde_json::from_str(include_str!("snapshot.json")).unwrap();
    let found = written(&snapshot());
    let pretty = serde_json::to_string_pretty(&found).unwrap();
    assert_eq!(
        found, expected,
        "if it is right, keep it in snapshot.json:\n{pretty}"
    );
}

#[test]
fn a_block_outside_of_held_memory_is_found() {
    let mut snapshot = snapshot();
    assert_eq!(snapshot.held_bytes(), 450);
    assert!(snapshot.holds_all_blocks());
    for (address, bytes) in [
        (900, 50),
        (950, 60),
        (1340, 11),
        (1400, 1),
        (5090, 11),
        (6000, 1),
    ] {
        snapshot.alloc(address, bytes, event(6));
        assert!(!snapshot.holds_all_blocks(), "{address}");
        snapshot.free(address, event(7));
    }
}

#[test]
fn later_passes_are_named() {
    let mut snapshot = Snapshot::default();
    snapshot.hold([0..10].into(), event(1));
    snapshot.alloc(0, 10, TracePosition { event: 8, pass: 3 });
    let value = written(&snapshot);
    assert_eq!(
        value["device_traces"][0][1]["frames"][0]["name"],
        "event of pass 3"
    );
}

#[test]
fn ranges_that_touch_are_one_and_differences_are_exact() {
    assert_eq!(joined(&[0..5, 5..9, 10..12]), [0..9, 10..12]);
    let spans = [0..10, 20..30, 40..50];
    for (others, rest) in [
        (vec![], spans.to_vec()),
        (spans.to_vec(), vec![]),
        (vec![0..100], vec![]),
        (vec![3..4, 6..7], vec![0..3, 4..6, 7..10, 20..30, 40..50]),
        (vec![5..25], vec![0..5, 25..30, 40..50]),
        (vec![10..20, 30..40], spans.to_vec()),
        (vec![0..1, 9..45], vec![1..9, 45..50]),
        (vec![25..26, 60..70], vec![0..10, 20..25, 26..30, 40..50]),
    ] {
        assert_eq!(without(&spans, &others), rest, "{others:?}");
    }
}

#[test]
fn numbers_texts_and_lists_of_all_sizes_come_back() {
    let numbers = [
        0,
        1,
        255,
        256,
        65_536,
        (1 << 31) - 1,
        1 << 31,
        u64::from(u32::MAX),
        1 << 32,
        (1 << 55) - 1,
        1 << 55,
        i64::MAX as u64,
    ];
    let texts: Vec<String> = (0..300).map(|number| format!("text {number} é")).collect();
    for count in [0, 1, 999, 1000, 1001, 2500] {
        let mut bytes = Vec::new();
        let mut out = PickleWriter::begin(&mut bytes).unwrap();
        out.dict(|out| {
            out.text("numbers")?;
            out.list(numbers.iter(), |out, number| out.number(*number))?;
            out.text("twice")?;
            out.list(
                texts.iter().chain(&texts).collect::<Vec<_>>().iter(),
                |out, text| out.text(text),
            )?;
            out.text("counted")?;
            out.list(0..count, |out, item| out.number(u64::from(item)))
        })
        .unwrap();
        out.end().unwrap();
        let twice: Vec<_> = texts.iter().chain(&texts).collect();
        let counted: Vec<u32> = (0..count).collect();
        assert_eq!(
            read(&bytes),
            json!({"numbers": numbers, "twice": twice, "counted": counted})
        );
    }
}

/// Numbers of 2^63 or more have an additional zero byte, as in Python.
#[test]
fn a_large_number_is_not_negative() {
    let mut bytes = Vec::new();
    let mut out = PickleWriter::begin(&mut bytes).unwrap();
    out.number(u64::MAX).unwrap();
    out.end().unwrap();
    let value = serde_pickle::value_from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
    assert_eq!(value.to_string(), u64::MAX.to_string());
}
