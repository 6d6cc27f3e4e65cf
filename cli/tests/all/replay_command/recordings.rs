//! Recordings of other programs as a user meets them, and snapshots for PyTorch's viewer.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use super::{GOOD, carried, file, json, larder, stderr, stdout};

const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\r
7,10:00:00.000001,allocate,0x7f0000000000,1024,0x2\r
\r
8,10:00:00.000002,allocate,0x7f0000000400,100,0x2\r
7,10:00:00.000003,free,0x7f0000000000,1024,0x2\r
7,10:00:00.000004,free,0x7f000000";

fn fixture(name: &str) -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    let path: PathBuf = [folder, "trace/fixtures", name].iter().collect();
    path.into_os_string().into_string().unwrap()
}

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.arg("plan").args(arguments).output().unwrap()
}

fn refused(arguments: &[&str], words: &str) {
    let output = larder(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert!(stderr(&output).contains(words), "{}", stderr(&output));
}

#[test]
fn a_snapshot_of_pytorch_is_replayed_each_device_by_itself() {
    let path = fixture("protocol4.pickle");
    let output = larder(&[
        "--json",
        "--allocator",
        "larder-no-moves",
        "--allocator",
        "xla",
        &path,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = json(&output);
    let traces: Vec<_> = rows
        .iter()
        .map(|row| row["trace"].as_str().unwrap())
        .collect();
    assert_eq!(
        traces,
        [
            "protocol4.dev0",
            "protocol4.dev0",
            "protocol4.dev1",
            "protocol4.dev1"
        ]
    );
    for row in &rows[..2] {
        assert_eq!(row["allocations"], 5);
        assert_eq!(row["peak_live_bytes"], 6512);
    }
    assert_eq!(rows[2]["peak_live_bytes"], 4096);
}

#[test]
fn what_a_recording_does_not_say_stands_once_below_the_table_and_in_each_line_of_json() {
    let path = fixture("protocol4.pickle");
    let said = "protocol4.dev0: 2 blocks of 2.64 KiB older than the history";
    let output = larder(&[
        "--allocator",
        "larder-no-moves",
        "--allocator",
        "xla",
        &path,
    ]);
    assert_eq!(
        stdout(&output).matches(said).count(),
        1,
        "{}",
        stdout(&output)
    );
    for row in json(&larder(&["--json", &path])) {
        let notes = row["notes"].as_array().unwrap();
        let lacks = |word: &str| {
            !notes
                .iter()
                .any(|note| note.as_str().unwrap().contains(word))
        };
        assert_eq!(
            lacks("older than the history"),
            row["trace"] == "protocol4.dev1"
        );
        assert!(!lacks("marks no steps"));
    }
    let own = larder(&["--json", "--allocator", "xla", &carried("resnet50_train")]);
    assert_eq!(json(&own)[0]["notes"], serde_json::json!([]));
}

#[test]
fn a_log_of_rmm_is_known_by_its_header_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["run.dev0.csv", "run.trace"] {
        let path = file(&folder, name, LOG);
        let output = larder(&["--json", "--allocator", "larder-no-moves", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let row = &json(&output)[0];
        assert_eq!(
            (&row["allocations"], &row["peak_live_bytes"]),
            (&2.into(), &1124.into())
        );
        let notes = row["notes"].to_string();
        assert!(notes.contains("2 threads are played as one"), "{notes}");
        assert!(notes.contains("the last row is cut"), "{notes}");
        let output = plan(&["--json", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let problem: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(problem["buffers"], 2, "{problem}");
    }
    let bad = file(
        &folder,
        "bad.csv",
        LOG.replace("allocate,0x7f0000000400", "grow,0x7f"),
    );
    refused(&[&bad], "bad.csv:4: unknown action `grow`");
    let output = plan(&[&bad]);
    assert!(
        stderr(&output).contains("bad.csv:4: unknown action"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_pickle_that_is_no_snapshot_or_calls_code_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(fixture("protocol4.pickle")).unwrap();
    let cut = file(&folder, "cut.pickle", &whole[..whole.len() / 2]);
    refused(&[&cut], "cut.pickle: the pickle is cut short");
    let hostile = file(
        &folder,
        "hostile.pickle",
        b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R.",
    );
    refused(&[&hostile], "calls Python code at byte 2");
    let other = file(&folder, "other.pickle", b"\x80\x02}X\x01\0\0\0aK\x01s.");
    refused(&[&other], "no memory snapshot of PyTorch");
}

#[test]
fn a_replay_of_its_own_snapshot_needs_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pickle");
    let out = out.to_str().unwrap();
    let allocators = [
        "larder-no-moves",
        "larder",
        "larder-budget",
        "xla",
        "xla-one-region",
        "always-split",
    ];
    for trace in ["resnet50_train", "bert_infer"] {
        let trace = carried(trace);
        for name in allocators {
            let device = ["--device-bytes", "5900MiB"];
            let common = [&device, ["--json", "--allocator"].as_slice(), &[name]].concat();
            let first = json(&larder(
                &[&common, ["--snapshot", out, &trace].as_slice()].concat(),
            ));
            let again = json(&larder(&[&common, [out].as_slice()].concat()));
            for key in [
                "allocations",
                "peak_live_bytes",
                "peak_reserved_bytes",
                "completed",
                "driver_allocations",
            ] {
                assert_eq!(first[0][key], again[0][key], "{name}: {key}");
            }
            let bytes = fs::read(out).unwrap();
            let value: Value =
                serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
            let sizes = value["segments"].as_array().unwrap().iter();
            let held: u64 = sizes
                .map(|segment| segment["total_size"].as_u64().unwrap())
                .sum();
            let last = first[0]["reserved_by_pass"][0].as_u64().unwrap();
            assert!(0 < held && held <= last, "{name}: {held} and {last}");
        }
    }
}

#[test]
fn allocators_that_plan_and_those_on_a_driver_have_snapshots_too() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pickle");
    let (out, trace) = (out.to_str().unwrap(), carried("resnet50_train"));
    for name in [
        "larder-planned",
        "larder-planned-no-moves",
        "device",
        "device-planned",
    ] {
        let output = larder(&[
            "--json",
            "--passes",
            "2",
            "--driver",
            "stand-in",
            "--allocator",
            name,
            "--snapshot",
            out,
            &trace,
        ]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
        let row = &json(&output)[0];
        let again = &json(&larder(&["--json", "--allocator", "larder-no-moves", out]))[0];
        for key in ["allocations", "peak_live_bytes"] {
            assert_eq!(row[key], again[key], "{name}: {key}");
        }
    }
}

#[test]
fn a_snapshot_is_of_one_trace_and_one_allocator_that_says_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pickle");
    let out = out.to_str().unwrap();
    let good = file(&folder, "good.trace", GOOD);
    let other = file(&folder, "other.trace", GOOD);
    refused(&["--snapshot", out, &good], "one --allocator");
    let one = ["--allocator", "larder-no-moves", "--snapshot"];
    refused(
        &[&one, [out, &good, &other].as_slice()].concat(),
        "give one FILE",
    );
    refused(
        &[&one, [out, &fixture("protocol4.pickle")].as_slice()].concat(),
        "has 2 traces",
    );
    refused(
        &[&one, [good.as_str(), &good].as_slice()].concat(),
        "--snapshot",
    );
    refused(
        &["--allocator", "prmalloc", "--snapshot", out, &good],
        "does not say where it holds",
    );
    let nowhere = ["/no/such/folder/out.pickle", good.as_str()];
    let output = larder(&[&one, nowhere.as_slice()].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("cannot write"),
        "{}",
        stderr(&output)
    );
    assert!(!fs::exists(out).unwrap());
    assert_eq!(fs::read_to_string(good).unwrap(), GOOD);
}
