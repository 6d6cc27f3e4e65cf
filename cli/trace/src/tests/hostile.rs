//! Short files that would need much memory or time without a limit. Each case checks the limit; the
//! tests of the program check the memory.

use std::path::Path;

use serde_json::{Value, json};

use super::cases::{history, pickled};
use crate::{Trace, read_to_last_line};

/// Reads all traces of a file, or returns the message of its defect.
fn read_all(bytes: &[u8]) -> Result<Vec<Trace>, String> {
    let read = read_to_last_line(Path::new("t"), bytes);
    read.map(|(traces, _)| traces)
        .map_err(|error| error.to_string())
}

/// Asserts that a file is refused with a message that has these words.
fn assert_refused(bytes: &[u8], words: &str) {
    let message = read_all(bytes).unwrap_err();
    assert!(message.contains(words), "{words}: {message}");
}

/// Returns a pickle of these instructions.
fn pickle(instructions: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04", instructions.concat().as_slice(), b"."].concat()
}

/// Returns the instructions that push a dictionary with these keys, and values pushed by
/// instructions.
fn dict(pairs: &[(&str, &[u8])]) -> Vec<u8> {
    let pairs = pairs.iter().map(|(key, value)| {
        let len = key.len() as u8;
        [&[0x8c, len], key.as_bytes(), value].concat()
    });
    [b"}(", pairs.collect::<Vec<_>>().concat().as_slice(), b"u"].concat()
}

/// Returns the instructions that push a list of a value and its repetitions.
fn repeated(value: &[u8], repetitions: usize) -> Vec<u8> {
    [b"](", value, b"\x94", &b"h\0".repeat(repetitions), b"e"].concat()
}

fn snapshot(segments: &[u8], histories: &[u8]) -> Vec<u8> {
    let root = dict(&[("segments", segments), ("device_traces", histories)]);
    pickle(&[&root])
}

fn entry() -> Vec<u8> {
    let action = b"\x8c\x05alloc";
    dict(&[("action", action), ("addr", b"K\x01"), ("size", b"K\x08")])
}

#[test]
fn a_pickle_has_bounded_values_stack_marks_and_memo() {
    assert_refused(&pickle(&[&b"]".repeat(1000)]), "more values than");
    let too_many = (1 << 20) + 1;
    for (instructions, words) in [
        (b"N".repeat(too_many), "more than 1048576 values"),
        (
            [b"N\x94".as_slice(), &b"h\0".repeat(too_many)].concat(),
            "more than 1048576 values",
        ),
        (b"(".repeat(too_many), "more than 1048576 marks"),
        (b"Nr\xff\xff\xff\x7f".to_vec(), "far ahead"),
        (b"Np99999999999\n".to_vec(), "far ahead"),
        ([b"N".as_slice(), &[0x94; 1000]].concat(), "far ahead"),
        (
            b"\x95\xff\xff\xff\xff\xff\xff\xff\xffX\xff\xff\xff\xff".to_vec(),
            "cut short",
        ),
        (
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
            "cut short",
        ),
    ] {
        assert_refused(&pickle(&[&instructions]), words);
    }
}

#[test]
fn a_list_that_is_used_repeatedly_counts_each_time() {
    let words = "more entries and blocks than";
    let list = |items: Vec<u8>| [b"](", items.as_slice(), b"e"].concat();
    let one_entry = repeated(&entry(), 1000);
    assert_refused(&snapshot(b"]", &list(one_entry)), words);
    let histories = repeated(&list(entry().repeat(20)), 100);
    assert_refused(&snapshot(b"]", &histories), words);
    let blocks = list(dict(&[("size", b"K\x08")]).repeat(20));
    let address: (&str, &[u8]) = ("address", b"K\x01");
    let segment = dict(&[address, ("total_size", b"K\x08"), ("blocks", &blocks)]);
    assert_refused(&snapshot(&repeated(&segment, 50), b"]"), words);
}

#[test]
fn a_snapshot_has_at_most_128_devices() {
    let histories = |count: usize| {
        let mut value = history("alloc 512 10");
        value["device_traces"] = vec![value["device_traces"][0].clone(); count].into();
        read_all(&pickled(&value))
    };
    assert_eq!(histories(128).unwrap().len(), 128);
    assert!(
        histories(129)
            .unwrap_err()
            .contains("more than 128 devices")
    );
    let segment = |device: u64| {
        let blocks = json!([{"size": 8, "state": "active_allocated"}]);
        let segment = json!({"device": device, "address": 1, "total_size": 8, "blocks": blocks});
        read_all(&pickled(&json!([segment])))
    };
    assert_eq!(segment(127).unwrap().len(), 1);
    assert!(segment(128).unwrap_err().contains("more than 128 devices"));
}

#[test]
fn settings_that_are_long_are_not_repeated_for_each_device() {
    let noted = |bytes: usize| {
        let mut value = history("alloc 512 10");
        value["allocator_settings"] = json!({"PYTORCH_ALLOC_CONF": "x".repeat(bytes)});
        read_all(&pickled(&value)).unwrap()[0]
            .pytorch_settings()
            .is_some()
    };
    assert!(noted(4096) && !noted(4097));
}

#[test]
fn a_key_is_looked_up_among_64_pairs() {
    let with = |keys: usize| {
        let mut value = history("alloc 512 10");
        let entry = value["device_traces"][0][0].as_object_mut().unwrap();
        // Before the other keys, whether keys are written in the order of the alphabet or in theirs.
        let others = std::mem::take(entry);
        entry.extend((0..keys).map(|key| (format!("a{key:03}"), Value::Bool(true))));
        entry.extend(others);
        read_all(&pickled(&value))
    };
    assert!(with(50).is_ok());
    assert!(with(100).unwrap_err().contains("no `"));
}

#[test]
fn a_header_has_at_most_1000_lines() {
    let lines = |count| "# a: b\n".repeat(count) + "a 0 4\n";
    assert_eq!(
        read_all(lines(1000).as_bytes()).unwrap()[0].header().len(),
        1000
    );
    assert_refused(
        lines(1001).as_bytes(),
        "t:1001: the header has more than 1000 lines",
    );
}

#[test]
fn content_that_is_64_times_as_large_as_its_file_is_refused_beyond_16_mib() {
    let mut bytes = pickled(&history("alloc 512 10"));
    let packed = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
    bytes.resize(16 << 20, 0);
    assert!(read_all(&packed(&bytes)).is_ok());
    bytes.resize(17 << 20, 0);
    assert_refused(&packed(&bytes), "decompress it first");
    assert!(read_all(&bytes).is_ok());
}
