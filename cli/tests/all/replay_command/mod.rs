//! `larder replay` as a user meets it: the built binary, its exit codes, and its output.
#![allow(clippy::unwrap_used)] // helpers of tests

mod on_a_driver;
mod recordings;
mod shown;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const GOOD: &str =
    "# alloc-trace v1: a <id> <bytes>\na 0 1000\ns 0\na 1 3000\nf 0\na 2 500\ns 1\n";
const NAMES: [&str; 13] = [
    "pytorch",
    "pytorch-expandable",
    "larder",
    "larder-no-moves",
    "larder-budget",
    "larder-planned",
    "larder-planned-no-moves",
    "prmalloc",
    "prmalloc-upstream",
    "xla",
    "xla-one-region",
    "always-split",
    "power-of-two",
];

/// The allocators that are replayed by default.
const SHOWN: [&str; 4] = ["pytorch", "pytorch-expandable", "larder", "larder-planned"];

pub(crate) fn larder(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .arg("replay")
        .args(arguments)
        .output()
        .unwrap()
}

pub(crate) fn carried(name: &str) -> String {
    let path: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "../benches/traces",
        &format!("{name}.trace.zst"),
    ]
    .iter()
    .collect();
    path.into_os_string().into_string().unwrap()
}

pub(crate) fn file(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    path.into_os_string().into_string().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

pub(crate) fn json(output: &Output) -> Vec<Value> {
    stdout(output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn names(rows: &[Value]) -> Vec<&str> {
    let names = rows.iter().map(|row| row["allocator"].as_str().unwrap());
    names.collect()
}

#[test]
fn json_lines_have_every_promised_key() {
    let output = larder(&["--json", "--all", &carried("resnet50_train")]);
    assert_eq!(output.status.code(), Some(0));
    let rows = json(&output);
    assert_eq!(names(&rows), NAMES);
    for row in &rows {
        assert_eq!(row["trace"], "resnet50_train");
        assert_eq!(row["allocations"], 2638);
        assert_eq!(row["peak_live_bytes"], 5_762_142_352_u64);
        assert_eq!(row["completed"], true);
        for key in ["stopped_at_event", "stopped_in_pass", "refused"] {
            assert_eq!(row.get(key), Some(&Value::Null), "{key}");
        }
        assert_eq!(row["notes"], serde_json::json!([]));
        for key in ["peak_reserved_bytes", "driver_allocations", "driver_frees"] {
            assert!(row[key].is_u64(), "{key}");
        }
        assert!(row["reserved_over_live"].as_f64().unwrap() > 1.0);
        assert!(row["ns_per_operation"].as_f64().unwrap() > 0.0);
        assert!(row["worst_ns"].as_u64().unwrap() > 0);
        assert_eq!(row["streams"], 1);
    }
}

#[test]
fn the_guide_names_each_key_of_a_line_of_json_and_no_other() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/src/traces.md");
    let guide = fs::read_to_string(guide).unwrap();
    let section = guide.split("### JSON").nth(1).unwrap();
    let rows = section.split("### ").next().unwrap().lines();
    let cells = rows.filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    let named = cells.flat_map(|cell| cell.split(", "));
    let mut named: Vec<String> = named.map(|name| name.replace('`', "")).collect();
    let output = larder(&["--json", "--allocator", "xla", &carried("resnet50_train")]);
    let rows = json(&output);
    let mut keys: Vec<String> = rows[0].as_object().unwrap().keys().cloned().collect();
    named.sort();
    keys.sort();
    assert_eq!(named, keys);
}

#[test]
fn driver_calls_are_known_where_pages_are_mapped_and_nowhere_else() {
    let output = larder(&[
        "--json",
        "--all",
        "--passes",
        "3",
        &carried("resnet50_train"),
    ]);
    for row in json(&output) {
        let name = row["allocator"].as_str().unwrap();
        assert_eq!(row["passes"], 3);
        let mapped = [
            "larder",
            "larder-budget",
            "larder-planned",
            "pytorch-expandable",
        ];
        if mapped.contains(&name) {
            let kinds = row["driver_calls_by_kind"].as_object().unwrap();
            let sum: u64 = kinds.values().map(|calls| calls.as_u64().unwrap()).sum();
            assert_eq!(row["driver_calls"].as_u64(), Some(sum));
            let passes = row["calls_by_pass"].as_array().unwrap();
            assert_eq!(passes.len(), 3);
            let by_pass: u64 = passes.iter().map(|calls| calls.as_u64().unwrap()).sum();
            assert_eq!(by_pass, sum);
            assert_eq!(row["calls_last_pass"], passes[2]);
        } else {
            assert!(row["driver_calls"].is_null(), "{name}");
            assert!(row["calls_by_pass"].is_null(), "{name}");
        }
        for key in ["driver", "calls_by_name", "calls_by_name_by_pass"] {
            assert!(row[key].is_null(), "{name} has no driver: {key}");
        }
    }
}

/// The allocator of device memory makes the calls that the simulated device counts, one for one.
#[test]
fn a_whole_trace_played_twice_has_twice_the_blocks() {
    let trace = carried("resnet50_train");
    let arguments = [
        "--json", "--all", "--passes", "2", "--repeat", "trace", &trace,
    ];
    for row in json(&larder(&arguments)) {
        assert_eq!(row["allocations"], 2 * 2638);
        assert_eq!(row["peak_live_bytes"], 5_762_142_352_u64);
    }
}

#[test]
fn passes_and_what_to_repeat_are_checked() {
    let trace = carried("resnet50_train");
    for arguments in [["--passes", "0"], ["--passes", "-1"], ["--repeat", "all"]] {
        let output = larder(&[arguments[0], arguments[1], &trace]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(arguments[0]), "{arguments:?}");
    }
}

#[test]
fn the_smallest_device_does_and_all_smaller_steps_do_not() {
    let trace = carried("resnet50_train");
    let search = ["--json", "--all", "--smallest-device", &trace];
    for row in json(&larder(&search)) {
        let name = row["allocator"].as_str().unwrap();
        let Some(bytes) = row["smallest_device_bytes"].as_u64() else {
            assert_eq!(name, "power-of-two", "{row}");
            assert!(row["smallest_over_live"].is_null(), "{row}");
            continue;
        };
        let live = row["peak_live_bytes"].as_u64().unwrap();
        let ratio = row["smallest_over_live"].as_f64().unwrap();
        assert!((ratio - bytes as f64 / live as f64).abs() < 1e-9);
        let completes = |bytes: u64| {
            let device = bytes.to_string();
            let output = larder(&[
                "--json",
                "--allocator",
                name,
                "--device-bytes",
                &device,
                &trace,
            ]);
            json(&output)[0]["completed"] == true
        };
        assert!(completes(bytes), "{name}");
        assert!(bytes == live || !completes(bytes - live / 2000), "{name}");
    }
}

#[test]
fn allocators_can_be_chosen_more_than_once() {
    let trace = carried("resnet50_train");
    let output = larder(&[
        "--json",
        "--allocator",
        "always-split",
        "--allocator",
        "xla",
        &trace,
    ]);
    let rows = json(&output);
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0]["allocator"], &rows[1]["allocator"]),
        (&"xla".into(), &"always-split".into())
    );
}

#[test]
fn an_unknown_allocator_is_refused_and_the_known_ones_are_listed() {
    let output = larder(&["--allocator", "nonesuch", &carried("resnet50_train")]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    for name in NAMES {
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
    }
}

#[test]
fn a_small_device_stops_the_replay_and_says_so() {
    let trace = carried("gpt2s_train");
    for device in ["512MiB", "512M", "536870912"] {
        let output = larder(&["--json", "--all", "--device-bytes", device, &trace]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("13 of 13 replays"),
            "{}",
            stderr(&output)
        );
        let rows = json(&output);
        assert_eq!(rows.len(), NAMES.len());
        for row in rows {
            assert_eq!(row["completed"], false);
            assert!(row["stopped_at_event"].as_u64().unwrap() > 0, "{row}");
            assert_eq!(row["device_bytes"], 536_870_912);
            let refused = |key: &str| row["refused"][key].as_u64().unwrap();
            assert!(refused("reserved_bytes") >= refused("live_bytes"), "{row}");
            assert!(
                refused("reserved_bytes") + refused("bytes") > 536_870_912 - (2 << 20),
                "{row}"
            );
            assert!(
                row["peak_reserved_bytes"].as_u64().unwrap() <= 536_870_912,
                "{row}"
            );
        }
    }
    let table = larder(&[
        "--device-bytes",
        "512MiB",
        &trace,
        &carried("resnet50_train"),
    ]);
    assert!(
        stdout(&table).contains("none: 0 of 2 traces completed"),
        "{}",
        stdout(&table)
    );
    assert!(stdout(&table).contains("no, event "), "{}", stdout(&table));
    assert!(stdout(&table).contains("asks for "), "{}", stdout(&table));
}

#[test]
fn a_device_that_is_no_byte_count_is_refused() {
    for device in ["0", "8GBB", "-1", "much", "99999999999999999999"] {
        let output = larder(&["--device-bytes", device, &carried("resnet50_train")]);
        assert_eq!(output.status.code(), Some(2), "{device}");
        assert_eq!(stdout(&output), "");
        assert!(
            stderr(&output).contains("device-bytes"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn without_files_or_with_unknown_options_the_exit_code_is_2() {
    assert_eq!(larder(&[]).status.code(), Some(2));
    assert_eq!(larder(&["--frobnicate", "x"]).status.code(), Some(2));
}

/// Each damaged content, the line that must be named, and a word of the message.
const DAMAGED: [(&str, &[u8], u64, &str); 19] = [
    ("empty", b"", 1, "empty"),
    ("header only", b"# name: x\n", 1, "no event"),
    ("unknown id", b"a 0 4\nf 7\n", 2, "never allocated"),
    ("double free", b"a 0 4\nf 0\nf 0\n", 3, "second time"),
    ("skipped id", b"a 0 4\na 2 4\n", 2, "next id is 1"),
    ("reused id", b"a 0 4\nf 0\na 0 4\n", 3, "next id is 1"),
    ("no number", b"a 0 4\na 1 four\n", 2, "not a number"),
    ("negative", b"a 0 -4\n", 1, "not a number"),
    ("too big", b"a 0 99999999999999999999\n", 1, "too big"),
    ("missing field", b"a 0\n", 1, "missing"),
    ("extra field", b"a 0 4\nf 0 4\n", 2, "too many"),
    ("unknown letter", b"a 0 4\nq 0\n", 2, "unknown event"),
    (
        "leading blank",
        b"a 0 4\n a 1 5\n",
        2,
        "begins with a blank",
    ),
    ("two blanks", b"a  0 5\n", 1, "two blanks in a row"),
    ("trailing blank", b"a 0 5 \n", 1, "ends with a blank"),
    ("not utf-8", b"a 0 4\n\xff\xff\n", 2, "UTF-8"),
    ("step order", b"s 0\ns 2\n", 2, "next step is 1"),
    ("zero bytes", b"a 0 0\n", 1, "zero bytes"),
    (
        "more than promised",
        b"# allocs: 1  frees: 0\na 0 4\na 1 4\n",
        3,
        "promises 1",
    ),
];

#[test]
fn every_damaged_trace_ends_with_2_and_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    for (what, content, line, word) in DAMAGED {
        let path = file(&folder, "damaged.trace", content);
        for form in [&[path.as_str()] as &[&str], &["--json", &path]] {
            let output = larder(form);
            assert_eq!(output.status.code(), Some(2), "{what}");
            assert_eq!(stdout(&output), "", "{what}");
            let message = stderr(&output);
            assert!(
                message.contains(&format!("{path}:{line}: ")),
                "{what}: {message}"
            );
            assert!(message.contains(word), "{what}: {message}");
        }
    }
}

#[test]
fn a_damaged_zstd_file_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(carried("bert_infer")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xaa);
    let damaged = file(&folder, "damaged.trace.zst", &bytes);
    let output = larder(&[&damaged]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    assert!(message.contains(&format!("{damaged}:")), "{message}");
}

#[test]
fn a_missing_file_and_a_folder_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.trace");
    for path in [missing.as_path(), folder.path()] {
        let path = path.to_str().unwrap();
        let output = larder(&[path]);
        assert_eq!(output.status.code(), Some(2), "{path}");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains(path), "{}", stderr(&output));
    }
}

#[test]
fn a_damaged_file_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let bad = file(&folder, "bad.trace", "a 0 4\nf 1\n");
    let good = file(&folder, "good.trace", GOOD);
    let output = larder(&["--json", &bad, &good]);
    assert_eq!(output.status.code(), Some(2));
    let rows = json(&output);
    assert_eq!(rows.len(), SHOWN.len());
    assert!(rows.iter().all(|row| row["trace"] == "good"));
    assert!(
        stderr(&output).contains("bad.trace:2: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_encoding_is_known_by_content_not_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let plain = file(&folder, "plain.trace.zst", GOOD);
    let compressed = file(
        &folder,
        "compressed.trace",
        zstd::encode_all(GOOD.as_bytes(), 3).unwrap(),
    );
    let output = larder(&["--json", "--allocator", "xla", &plain, &compressed]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = json(&output);
    assert_eq!(rows[0]["peak_live_bytes"], 4000);
    assert_eq!(
        rows[0]["peak_reserved_bytes"],
        rows[1]["peak_reserved_bytes"]
    );
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    for form in ["--json", "--allocator=xla"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args([
                "replay",
                form,
                &carried("resnet50_train"),
                &carried("gpt2s_train"),
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn the_page_is_written_where_asked_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .current_dir(folder.path())
        .args([
            "replay",
            "--html",
            "report.html",
            &carried("resnet50_train"),
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    assert!(html.contains("data-name=\"resnet50_train\""));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_page_that_would_overwrite_a_trace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "good.trace", GOOD);
    let output = larder(&["--html", &trace, &trace]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("overwrite"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(Path::new(&trace)).unwrap(), GOOD);
}

#[test]
fn a_page_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("no/such/folder/report.html");
    for page in [page.as_path(), folder.path()] {
        let output = larder(&["--html", page.to_str().unwrap(), &carried("resnet50_train")]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(stdout(&output), "", "nothing was replayed");
        assert!(
            stderr(&output).contains("cannot write"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn damaged_traces_leave_an_earlier_page_alone_and_no_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let bad = file(&folder, "bad.trace", "a 0 4\nf 1\n");
    let earlier = file(&folder, "earlier.html", "kept");
    let absent = folder.path().join("absent.html");
    for page in [earlier.as_str(), absent.to_str().unwrap()] {
        assert_eq!(larder(&["--html", page, &bad]).status.code(), Some(2));
    }
    assert_eq!(fs::read_to_string(&earlier).unwrap(), "kept");
    assert!(!absent.exists());
    let good = file(&folder, "good.trace", GOOD);
    assert_eq!(larder(&["--html", &earlier, &good]).status.code(), Some(0));
    assert!(fs::read_to_string(&earlier).unwrap().ends_with("</html>\n"));
}

#[test]
fn a_trace_given_twice_is_refused_however_it_is_spelled() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "good.trace", GOOD);
    let other = file(&folder, "other.trace", GOOD);
    let detour = folder.path().join(".").join("good.trace");
    for again in [trace.as_str(), detour.to_str().unwrap()] {
        let output = larder(&[&trace, &other, again]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stdout(&output), "");
        assert!(
            stderr(&output).contains("given twice"),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(larder(&[&trace, &other]).status.code(), Some(0));
}
