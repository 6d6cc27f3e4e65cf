//! Snapshots as Python pickles them, and unusual ones; pickles that are cut, damaged or hostile.

use std::path::Path;

use serde_json::{Value, json};

use super::cases::{events, history, pickled};
use crate::{Defect, MAX_BYTES, Refusal, Trace, TraceError, read};

const FIXTURES: [(&str, &[u8]); 5] = [
    ("2", include_bytes!("../../fixtures/protocol2.pickle")),
    ("4", include_bytes!("../../fixtures/protocol4.pickle")),
    ("5", include_bytes!("../../fixtures/protocol5.pickle")),
    ("0", include_bytes!("../../fixtures/protocol0.pickle")),
    ("1", include_bytes!("../../fixtures/protocol1.pickle")),
];

fn read_all(bytes: &[u8]) -> Result<Vec<Trace>, Defect> {
    crate::parse::read_all(Path::new("run/train.pickle"), bytes).map_err(TraceError::into_defect)
}

fn one(value: &Value) -> Trace {
    read(Path::new("train.pickle"), pickled(value).as_slice()).unwrap()
}

fn noted(trace: &Trace, text: &str) -> bool {
    trace.notes().iter().any(|note| note.contains(text))
}

#[test]
fn what_python_pickles_is_read_in_each_protocol() {
    for (protocol, bytes) in FIXTURES {
        let traces = read_all(bytes).unwrap();
        let [first, second] = traces.as_slice() else {
            panic!("protocol {protocol}: {} traces", traces.len());
        };
        assert_eq!((first.name(), second.name()), ("train.dev0", "train.dev1"));
        // Blocks 0 and 1 are older than the history: block 0 stays live, and the free of block 1 is
        // the first entry. The free of block 2 is requested before block 4 is allocated, and
        // completed after it.
        let expected = "a0:2000 a1:700 f1 a2:1000 a3:3000 a4:512 f2";
        assert_eq!(events(first), expected, "protocol {protocol}");
        assert_eq!(events(second), "a0:4096");
    }
}

#[test]
fn what_a_snapshot_does_not_say_is_noted() {
    let traces = read_all(FIXTURES[1].1).unwrap();
    for text in [
        "2 blocks of 2.64 KiB older than the history",
        "marks no steps",
        "2 streams are played as one",
        "1 block freed while other streams used it",
        "1 block freed and held back",
        "1 allocation refused, the largest of 1 TiB",
        "1 private pool that",
        "PyTorch held 5 MiB at most",
    ] {
        assert!(noted(&traces[0], text), "{text}: {:#?}", traces[0].notes());
    }
    let held = traces.iter().map(Trace::held_bytes);
    assert_eq!(held.collect::<Vec<_>>(), [Some(5 << 20), Some(2 << 20)]);
    assert!(!noted(&traces[0], "rounded") && !noted(&traces[0], "missing from"));
    assert!(noted(&traces[1], "all sizes are multiples of 512"));
    assert!(!noted(&traces[1], "streams are") && !noted(&traces[1], "older"));
}

#[test]
fn a_refused_request_has_its_place_the_live_bytes_and_the_device() {
    let traces = read_all(FIXTURES[1].1).unwrap();
    // Two blocks are older than the history, and 3 of its events precede. A segment of 1 MiB is freed
    // later.
    let refusal = Refusal {
        events_before: 5,
        bytes: 1 << 40,
        live_bytes: 6000,
        blocks_after: 1,
        device_bytes: Some((5 << 20) + 12345),
    };
    assert_eq!(traces[0].refusals(), [refusal]);
    assert_eq!(traces[1].refusals(), []);
    // Without segments, the bytes that PyTorch held are unknown.
    let first = one(&history("oom 0 9223372034707292160, alloc 512 10, oom 0 0"));
    let unknown = Refusal {
        events_before: 0,
        bytes: MAX_BYTES,
        live_bytes: 0,
        blocks_after: 1,
        device_bytes: None,
    };
    assert_eq!(
        (first.refusals(), first.held_bytes()),
        (&[unknown][..], None)
    );
}

#[test]
fn one_trace_of_several_devices_is_refused() {
    let defect = read(Path::new("t.pickle"), FIXTURES[0].1)
        .unwrap_err()
        .into_defect();
    assert!(
        matches!(defect, Defect::SeveralTraces { count: 2 }),
        "{defect}"
    );
}

#[test]
fn segments_alone_give_the_blocks_that_are_live() {
    let traces = read_all(include_bytes!("../../fixtures/segments_only.pickle")).unwrap();
    let [trace] = traces.as_slice() else {
        panic!("{} traces", traces.len());
    };
    assert_eq!(trace.name(), "train");
    assert_eq!(events(trace), "a0:2000 a1:3000 a2:512");
    assert!(
        noted(trace, "there is no history: 3 blocks live"),
        "{:?}",
        trace.notes()
    );
}

#[test]
fn a_compressed_snapshot_is_read_whatever_its_name() {
    let plain = read_all(FIXTURES[1].1).unwrap();
    let compressed = zstd::encode_all(FIXTURES[1].1, 3).unwrap();
    assert_eq!(read_all(&compressed).unwrap(), plain);
    let cut = read_all(&compressed[..compressed.len() - 9]).unwrap_err();
    assert!(matches!(cut, Defect::ZstdCut), "{cut}");
}

#[test]
fn settings_that_are_not_the_defaults_are_noted() {
    let with = |settings: Value| {
        let mut value = history("alloc 512 10");
        value["allocator_settings"] = settings;
        one(&value)
    };
    let said = "made with expandable_segments:True; give --pytorch expandable_segments:True to";
    assert!(noted(&with(json!({"expandable_segments": true})), said));
    let text =
        json!({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": false});
    assert!(noted(&with(text), "made with max_split_size_mb:64;"));
    // This is the key in other devices' snapshots, and since PyTorch 2.9 the variable for all
    // devices.
    let text = json!({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32"});
    assert!(noted(&with(text), "made with max_split_size_mb:32;"));
    let both = json!({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": ""});
    assert_eq!(
        with(both.clone()).pytorch_settings(),
        Some("max_split_size_mb:64")
    );
    assert!(noted(&with(both), "made with max_split_size_mb:64;"));
    for settings in [
        json!({"expandable_segments": false, "PYTORCH_CUDA_ALLOC_CONF": ""}),
        json!({"PYTORCH_CUDA_ALLOC_CONF": "a; b"}),
        json!(null),
    ] {
        assert!(!noted(&with(settings), "made with"));
    }
}

#[test]
fn what_stands_beside_the_devices_is_noted_where_there_is_any() {
    let mut value = history("alloc 512 10");
    let host = "pinned memory of the host";
    let profiler = "a profiler's annotations";
    for (key, empty, full, text) in [
        ("host_traces", json!([[], []]), json!([[], [{}]]), host),
        ("host_segments", json!([]), json!([{}]), host),
        (
            "external_annotations",
            json!([]),
            json!([{"name": "ProfilerStep#1"}]),
            profiler,
        ),
    ] {
        value[key] = empty.clone();
        assert!(!noted(&one(&value), text), "{key}");
        value[key] = full;
        assert!(noted(&one(&value), text), "{key}");
        value[key] = empty;
    }
}

#[test]
fn a_pickle_cut_anywhere_is_refused() {
    for (_, whole) in FIXTURES {
        for end in 1..whole.len() {
            let defect = read_all(&whole[..end]).unwrap_err();
            assert!(
                matches!(defect, Defect::PickleCut),
                "cut at {end}: {defect}"
            );
        }
    }
}

#[test]
fn a_pickle_with_any_byte_changed_gives_a_trace_or_a_defect() {
    let opcodes = [0, 0x28, 0x2e, 0x61, 0x65, 0x75, 0x85, 0x94, 0xff];
    for (whole, values) in [(FIXTURES[1].1, opcodes.as_slice()), (FIXTURES[3].1, b"\n-")] {
        for at in 1..whole.len() {
            for value in values.iter().copied().chain([whole[at] ^ 1]) {
                let mut bytes = whole.to_vec();
                bytes[at] = value;
                for trace in read_all(&bytes).into_iter().flatten() {
                    assert!(trace.allocations() > 0);
                }
            }
        }
    }
}

#[test]
fn no_opcode_that_looks_up_or_calls_python_code_is_obeyed() {
    for opcode in [
        b'c', b'R', b'b', b'i', b'o', b'P', b'Q', 0x81, 0x82, 0x83, 0x84, 0x92, 0x93, 0x97, 0x98,
    ] {
        let defect = read_all(&[0x80, 4, b')', b')', b')', opcode, 0, 0, 0, 0, b'.']).unwrap_err();
        assert!(
            matches!(defect, Defect::PickleCalls { at: 5 }),
            "{opcode:#x}: {defect}"
        );
    }
}

#[test]
fn numbers_and_texts_of_the_first_protocols_are_those_of_the_later_ones() {
    let read = |size: &str, action: &str| {
        let entry = format!("(dVaction\n{action}\nsS'size'\n{size}\nsVaddr\nL140737488355328L\ns");
        let bytes = format!("(dVsegments\n(lsVdevice_traces\n(l(l{entry}aas.");
        read(Path::new("t"), bytes.as_bytes()).map_err(TraceError::into_defect)
    };
    // Strings as Python 3 and Python 2 write them.
    for action in ["Valloc", "S'alloc'", "S\"alloc\""] {
        for size in ["I7", "L7L", "L7"] {
            assert_eq!(events(&read(size, action).unwrap()), "a0:7");
        }
    }
    for size in ["I01", "I00", "I-7", "F7.5", "L18446744073709551616L"] {
        let defect = read(size, "Valloc").unwrap_err().to_string();
        assert!(defect.contains("no `size`"), "{size}: {defect}");
    }
}

#[test]
fn depth_and_sharing_cost_what_the_file_has() {
    // A million nested lists.
    let deep = [
        b"\x80\x04".as_slice(),
        &vec![b']'; 1 << 20],
        &vec![b'a'; (1 << 20) - 1],
        b".",
    ]
    .concat();
    assert!(matches!(
        read_all(&deep),
        Err(Defect::NothingAllocated { .. } | Defect::NoSnapshot { .. })
    ));
    // Fifty lists, each of which contains the previous one ten times: 10^50 values if written out.
    let mut wide = b"\x80\x04]\x94".to_vec();
    for place in 0..50 {
        wide.extend([b']', b'(']);
        wide.extend([b'h', place].repeat(10));
        wide.extend([b'e', 0x94]);
    }
    wide.push(b'.');
    assert!(read_all(&wide).is_err());
}
