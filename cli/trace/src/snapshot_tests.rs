//! Snapshots as Python pickles them, and odd ones; pickles that are cut, damaged or hostile.

use std::path::Path;

use serde_json::{Value, json};

use super::{Defect, Event, Trace, read};

const FIXTURES: [(&str, &[u8]); 5] = [
    ("2", include_bytes!("../fixtures/protocol2.pickle")),
    ("4", include_bytes!("../fixtures/protocol4.pickle")),
    ("5", include_bytes!("../fixtures/protocol5.pickle")),
    ("0", include_bytes!("../fixtures/protocol0.pickle")),
    ("1", include_bytes!("../fixtures/protocol1.pickle")),
];

fn read_all(bytes: &[u8]) -> Result<Vec<Trace>, Defect> {
    super::parse::read_all(Path::new("run/train.pickle"), bytes)
        .map_err(super::TraceError::into_defect)
}

fn pickled(value: &Value) -> Vec<u8> {
    serde_pickle::to_vec(value, serde_pickle::SerOptions::new().proto_v2()).unwrap()
}

fn one(value: &Value) -> Trace {
    read(Path::new("train.pickle"), pickled(value).as_slice()).unwrap()
}

fn refused(value: &Value) -> String {
    read_all(&pickled(value)).unwrap_err().to_string()
}

fn alloc(id: u32, bytes: u64) -> Event {
    Event::Alloc { id, bytes }
}

fn free(id: u32) -> Event {
    Event::Free { id }
}

fn entry(action: &str, addr: u64, size: u64) -> Value {
    json!({"action": action, "addr": addr, "size": size, "stream": 0, "frames": []})
}

fn history(entries: &[Value]) -> Value {
    json!({"segments": [], "device_traces": [entries]})
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
        let events = [
            // Blocks live before: one that stays, and one whose free is the first entry.
            alloc(0, 2000),
            alloc(1, 700),
            free(1),
            alloc(2, 1000),
            alloc(3, 3000),
            alloc(4, 512),
            // The free is requested before block 4 is allocated, and completed after it.
            free(2),
        ];
        assert_eq!(first.events(), events, "protocol {protocol}");
        assert_eq!(first.allocations(), 5);
        assert_eq!(second.events(), [alloc(0, 4096)]);
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
    assert!(!noted(&traces[0], "rounded") && !noted(&traces[0], "missing from"));
    assert!(noted(&traces[1], "all sizes are multiples of 512"));
    assert!(!noted(&traces[1], "streams are") && !noted(&traces[1], "older"));
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
    let traces = read_all(include_bytes!("../fixtures/segments_only.pickle")).unwrap();
    let [trace] = traces.as_slice() else {
        panic!("{} traces", traces.len());
    };
    assert_eq!(trace.name(), "train");
    assert_eq!(
        trace.events(),
        [alloc(0, 2000), alloc(1, 3000), alloc(2, 512)]
    );
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
fn an_address_that_is_used_again_is_another_block() {
    let trace = one(&history(&[
        entry("alloc", 512, 10),
        entry("free_completed", 512, 10),
        entry("alloc", 512, 20),
        entry("user_defined", 0, 0),
        entry("free_completed", 512, 20),
    ]));
    let events = [alloc(0, 10), free(0), alloc(1, 20), free(1)];
    assert_eq!(trace.events(), events);
    assert_eq!(trace.notes().len(), 1, "{:?}", trace.notes());
}

#[test]
fn what_contradicts_itself_is_left_out_or_ended_and_counted() {
    let trace = one(&history(&[
        entry("alloc", 512, 10),
        // The block's free is missing.
        entry("alloc", 512, 20),
        // The size differs from the allocation's.
        entry("free_completed", 512, 24),
        // The block's allocation is missing, after the beginning.
        entry("free_completed", 512, 30),
        entry("alloc", 1024, 0),
        entry("free_completed", 1024, 0),
    ]));
    let events = [alloc(0, 10), free(0), alloc(1, 20), free(1)];
    assert_eq!(trace.events(), events);
    for text in [
        "1 block without a free",
        "1 free without an allocation",
        "1 free of another size",
        "1 allocation of zero bytes",
    ] {
        assert!(noted(&trace, text), "{text}: {:#?}", trace.notes());
    }
}

#[test]
fn a_block_that_the_list_does_not_have_is_noted() {
    let trace = one(&history(&[entry("alloc", 512, 10)]));
    assert!(noted(
        &trace,
        "1 block never freed in the history and missing from the snapshot's segments"
    ));
    // Segments without the block do not give the bytes held either.
    let mut value = history(&[entry("alloc", 512, 4096)]);
    assert!(!noted(&one(&value), "PyTorch held"));
    value["segments"] = json!([{"address": 8192, "total_size": 4095, "blocks": []}]);
    assert!(!noted(&one(&value), "PyTorch held"));
    value["segments"][0]["total_size"] = json!(4096);
    assert!(noted(&one(&value), "PyTorch held 4 KiB at most"));
}

#[test]
fn settings_that_are_not_the_defaults_are_noted() {
    let with = |settings: Value| {
        let mut value = history(&[entry("alloc", 512, 10)]);
        value["allocator_settings"] = settings;
        one(&value)
    };
    let said = "made with expandable_segments:True; give --pytorch expandable_segments:True to";
    assert!(noted(&with(json!({"expandable_segments": true})), said));
    let text =
        json!({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": false});
    assert!(noted(&with(text), "made with max_split_size_mb:64;"));
    // The key in other devices' snapshots, and since PyTorch 2.9 the variable for all.
    let text = json!({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32"});
    assert!(noted(&with(text), "made with max_split_size_mb:32;"));
    let both = json!({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": ""});
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
    let mut value = history(&[entry("alloc", 512, 10)]);
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
fn an_address_above_the_middle_of_64_bits_is_an_address() {
    let top = 0xFF00_0000_0000_0000_u64;
    // As Python writes it: nine bytes, of which the highest is 0.
    let mut bytes = b"\x80\x02}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces]]}(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0sizeK\x07X\x04\0\0\0addr\x8a\x09".to_vec();
    bytes.extend(top.to_le_bytes());
    bytes.extend(b"\0uaau.");
    let trace = read(Path::new("t"), bytes.as_slice()).unwrap();
    assert_eq!(trace.events(), [alloc(0, 7)]);
}

#[test]
fn a_pickle_of_something_else_says_what_it_lacks() {
    for (value, word) in [
        (json!({"model": [1, 2]}), "no list `segments`"),
        (json!(7), "no list `segments`"),
        (json!({"segments": 3}), "no list `segments`"),
        (json!({"segments": [{"blocks": []}]}), "without `address`"),
        (
            json!({"segments": [{"address": 1, "blocks": []}]}),
            "without `total_size`",
        ),
        (
            json!({"segments": [{"address": 1, "total_size": 2}]}),
            "without a list `blocks`",
        ),
        (
            json!({"segments": [{"address": 1, "total_size": 2, "blocks": [{}]}]}),
            "without `size`",
        ),
        (
            json!({"segments": [], "device_traces": [7]}),
            "a history that is no list",
        ),
        (
            history(&[json!({})]),
            "`device_traces[0][0]` has no `action`",
        ),
        (
            history(&[
                entry("snapshot", 0, 0),
                json!({"action": "alloc", "addr": 3}),
            ]),
            "`device_traces[0][1]` has no `size`",
        ),
        (
            history(&[json!({"action": "alloc", "addr": -3, "size": 4})]),
            "has no `addr`",
        ),
        (
            history(&[entry("alloc", 4, u64::from(u32::MAX) << 31)]),
            "too big",
        ),
        (
            history(&[entry("alloc", 4, 1 << 60), entry("alloc", 5, 1)]),
            "live at once",
        ),
    ] {
        let message = refused(&value);
        assert!(message.contains(word), "{value}: {message}");
    }
}

#[test]
fn a_snapshot_without_blocks_says_how_to_record_one() {
    for value in [
        json!({"segments": [], "device_traces": [[], []]}),
        json!([]),
        history(&[entry("segment_alloc", 4, 4)]),
    ] {
        let message = refused(&value);
        assert!(message.contains("_record_memory_history"), "{message}");
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
fn python_code_is_never_looked_up_or_called() {
    let system = b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R.".as_slice();
    let stacked = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.".as_slice();
    let instance = b"\x80\x02(ios\nsystem\n.".as_slice();
    for (bytes, at) in [(system, 2), (stacked, 14), (instance, 3)] {
        let defect = read_all(bytes).unwrap_err();
        assert!(
            matches!(defect, Defect::PickleCalls { at: found } if found == at),
            "{defect}"
        );
    }
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
        read(Path::new("t"), bytes.as_bytes()).map_err(super::TraceError::into_defect)
    };
    // As Python 3 and Python 2 write them.
    for action in ["Valloc", "S'alloc'", "S\"alloc\""] {
        for size in ["I7", "L7L", "L7"] {
            assert_eq!(read(size, action).unwrap().events(), [alloc(0, 7)]);
        }
    }
    for size in ["I01", "I00", "I-7", "F7.5", "L18446744073709551616L"] {
        let defect = read(size, "Valloc").unwrap_err().to_string();
        assert!(defect.contains("no `size`"), "{size}: {defect}");
    }
}

#[test]
fn depth_and_sharing_cost_what_the_file_has() {
    // A million lists inside each other.
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
    // Fifty lists that each hold the previous one ten times: 10^50 values if written out.
    let mut wide = b"\x80\x04]\x94".to_vec();
    for place in 0..50 {
        wide.extend([b']', b'(']);
        wide.extend([b'h', place].repeat(10));
        wide.extend([b'e', 0x94]);
    }
    wide.push(b'.');
    assert!(read_all(&wide).is_err());
    // A list that contains itself.
    let own = b"\x80\x04]\x94h\0a.";
    assert!(read_all(own).is_err());
}

#[test]
fn what_breaks_the_rules_of_the_stack_is_damaged() {
    for (program, word) in [
        (b"\x80\x04.".as_slice(), "stack is empty"),
        (b"\x80\x07].", "protocol"),
        (b"\x80\x04]K\x01K\x02s.", "takes none"),
        (b"\x80\x04}(K\x01u.", "takes none"),
        (b"\x80\x04(K\x01d.", "without a value"),
        (b"\x80\x04K\x01K\x01a.", "takes none"),
        (b"\x80\x04](a.", "too short"),
        (b"\x80\x04e.", "no mark"),
        (b"\x80\x04h\x05.", "never made"),
        (b"\x80\x04]r\xff\xff\xff\xff.", "far ahead"),
        (b"\x80\x04q\0.", "stack is empty"),
        (b"\x80\x04\xee.", "not known"),
        (b"(I1x\n.", "digits"),
        (b"(L\n.", "digits"),
        (b"(g7\n.", "never made"),
        (b"]p-1\n.", "digits"),
        (b"(Sabc\n.", "quotes"),
        (b"(S'\n.", "quotes"),
    ] {
        let defect = read_all(program).unwrap_err();
        let message = defect.to_string();
        let damaged = matches!(defect, Defect::PickleDamaged { .. });
        assert!(damaged && message.contains(word), "{program:?}: {message}");
    }
    // Lengths beyond the file.
    for program in [
        b"\x80\x04X\xff\xff\xff\xffab".as_slice(),
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffab",
        b"\x80\x04B\xff\xff\xff\x7f",
        b"\x80\x04\x8b\xff\xff\xff\xff\x01",
    ] {
        assert!(
            matches!(read_all(program), Err(Defect::PickleCut)),
            "{program:?}"
        );
    }
}
