//! `larder replay` where one answer follows from another: figures that add up, the smallest device,
//! snapshots that are replayed again, and damaged or written files. Its output is in `commands`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const GOOD: &str =
    "# alloc-trace v1: a <id> <bytes>\na 0 1000\ns 0\na 1 3000\nf 0\na 2 500\ns 1\n";

/// Runs `larder replay` with the arguments in `words`, separated by blanks, and those in `more`.
pub(crate) fn larder(words: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .arg("replay")
        .args(words.split_whitespace())
        .args(more)
        .output()
        .unwrap()
}

fn rows(words: &str, more: &[&str]) -> Vec<Value> {
    let output = larder(&format!("--json {words}"), more);
    // 3 means that the device is too small.
    let is_good = matches!(output.status.code(), Some(0 | 3));
    assert!(is_good, "{}", stderr(&output));
    json(&output)
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

#[test]
fn the_guide_names_each_key_of_a_line_of_json_and_no_other() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/src/traces.md");
    let guide = fs::read_to_string(guide).unwrap();
    let section = guide.split("### JSON").nth(1).unwrap();
    let table = section.split("### ").next().unwrap().lines();
    let cells = table.filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    let named = cells.flat_map(|cell| cell.split(", "));
    let mut named: Vec<String> = named.map(|name| name.replace('`', "")).collect();
    let rows = rows("--allocator xla", &[&carried("resnet50_train")]);
    let mut keys: Vec<String> = rows[0].as_object().unwrap().keys().cloned().collect();
    named.sort();
    keys.sort();
    assert_eq!(named, keys);
}

#[test]
fn driver_calls_are_known_where_pages_are_mapped_and_nowhere_else() {
    for row in rows("--all --passes 3", &[&carried("resnet50_train")]) {
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
    }
}

#[test]
fn the_smallest_device_does_and_all_smaller_steps_do_not() {
    let trace = carried("resnet50_train");
    for row in rows("--all --smallest-device", &[&trace]) {
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
            let device = format!("--allocator {name} --device-bytes {bytes}");
            rows(&device, &[&trace])[0]["completed"] == true
        };
        assert!(completes(bytes), "{name}");
        assert!(bytes == live || !completes(bytes - live / 2000), "{name}");
    }
}

#[test]
fn a_damaged_zstd_file_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(carried("bert_infer")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xaa);
    let damaged = file(&folder, "damaged.trace.zst", &bytes);
    let output = larder("", &[&damaged]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    assert!(message.contains(&format!("{damaged}:")), "{message}");
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
fn families_are_larger_unless_their_operations_are_given() {
    let named = ["--families", "growing-step-8GiB"];
    let allocations = |words: &str| {
        let row = &rows(words, &named)[0];
        row["allocations"].as_u64().unwrap()
    };
    let small = allocations("--allocator xla --operations 1000");
    assert!(allocations("--allocator xla") > 2 * small);
}

#[test]
fn on_the_stand_in_driver_the_calls_are_those_of_the_simulation() {
    let trace = carried("gpt2s_train");
    let rows = rows(
        "--driver stand-in --allocator larder --allocator device",
        &[&trace],
    );
    assert_eq!(rows.len(), 2);
    for key in ["peak_reserved_bytes", "driver_calls_by_kind", "completed"] {
        assert_eq!(rows[0][key], rows[1][key], "{key}");
    }
}

/// Returns the calls of a row, or of one of its passes, by name.
fn calls(value: &Value) -> Vec<(&str, u64)> {
    let map = value.as_object().unwrap().iter();
    map.map(|(name, calls)| (name.as_str(), calls.as_u64().unwrap()))
        .collect()
}

fn calls_of(value: &Value, name: &str) -> u64 {
    let calls = calls(value);
    let found = calls.iter().find(|(other, _)| *other == name);
    found.map_or(0, |(_, calls)| *calls)
}

#[test]
fn calls_of_a_driver_are_known_by_name_in_all_passes_and_each() {
    let trace = carried("gpt2s_train");
    let allocators =
        "--allocator device --allocator device-budget --allocator cudarc --allocator cuda-async";
    let rows = rows(
        &format!("--driver stand-in --passes 4 {allocators}"),
        &[&trace],
    );
    let names: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["allocator"].as_str())
        .collect();
    assert_eq!(names, ["device", "device-budget", "cudarc", "cuda-async"]);
    for row in &rows {
        assert_eq!(
            (&row["driver"], &row["completed"]),
            (&"stand-in".into(), &true.into())
        );
        let by_pass = row["calls_by_name_by_pass"].as_array().unwrap();
        assert_eq!(by_pass.len(), 4);
        for (name, all) in calls(&row["calls_by_name"]) {
            let sum: u64 = by_pass.iter().map(|pass| calls_of(pass, name)).sum();
            assert_eq!(sum, all, "{name}");
            assert!(all > 0, "{name}");
        }
    }
    let [device, _, cudarc, pool] = &rows[..] else {
        panic!("four rows");
    };
    for (kind, name) in [
        ("create", "cuMemCreate"),
        ("map", "cuMemMap"),
        ("unmap", "cuMemUnmap"),
        ("release", "cuMemRelease"),
        ("set_access", "cuMemSetAccess"),
    ] {
        let counted = device["driver_calls_by_kind"][kind].as_u64().unwrap();
        assert_eq!(calls_of(&device["calls_by_name"], name), counted, "{name}");
    }
    // In the steady state our allocator makes no calls; the others make one for every block.
    let last = |row: &'_ Value| row["calls_by_name_by_pass"][3].clone();
    assert_eq!(calls(&last(device)), []);
    let blocks = cudarc["allocations"].as_u64().unwrap();
    for (row, name, count) in [
        (cudarc, "cuMemAllocAsync", blocks),
        (cudarc, "cuEventCreate", 2 * blocks),
        (pool, "cuMemAllocFromPoolAsync", blocks),
    ] {
        assert_eq!(calls_of(&row["calls_by_name"], name), count, "{name}");
    }
    for row in [cudarc, pool] {
        let freed = row["driver_frees"].as_u64().unwrap();
        assert_eq!(calls_of(&row["calls_by_name"], "cuMemFreeAsync"), freed);
        assert!(calls_of(&last(row), "cuMemFreeAsync") > 0);
    }
    // The replay's own queries of the memory held are not counted.
    for name in ["cuMemGetInfo_v2", "cuMemPoolGetAttribute"] {
        assert!(
            rows.iter()
                .all(|row| calls_of(&row["calls_by_name"], name) == 0)
        );
    }
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
            let common = format!("--device-bytes 5900MiB --allocator {name}");
            let first = rows(&common, &["--snapshot", out, &trace]);
            let again = rows(&common, &[out]);
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
fn a_recorded_process_heap_is_played_on_heaps_unless_devices_are_asked_for() {
    let folder = TempDir::new().unwrap();
    let mut text = String::from("# alloc-trace v1\n# recorded: larder 0.1.0\n");
    // 64 MiB are live at the peak, and half of them at the end.
    for id in 0..1024 {
        text.push_str(&format!("a {id} 65536\n"));
    }
    for id in 0..512 {
        text.push_str(&format!("f {}\n", 2 * id));
    }
    let trace = file(&folder, "server.trace", text);
    let heaps = rows("", &[&trace]);
    let names: Vec<&str> = heaps
        .iter()
        .map(|row| row["heap"].as_str().unwrap())
        .collect();
    let expected = [
        "larder",
        "larder-speed",
        "larder-memory",
        "system",
        "jemalloc",
        "mimalloc",
    ];
    assert_eq!(names, expected);
    for row in &heaps {
        if let Some(why) = row["failed"].as_str() {
            assert!(
                ["jemalloc", "mimalloc"].contains(&row["heap"].as_str().unwrap()),
                "{row}"
            );
            assert!(why.ends_with("is not installed"), "{row}");
            continue;
        }
        assert_eq!(row["operations"], 1536, "{row}");
        assert!(row["ns_per_operation"].as_f64().unwrap() > 0.0, "{row}");
        let live = row["peak_live_bytes"].as_u64().unwrap();
        assert_eq!(live, 64 << 20);
        // What was written is resident.
        let peak = row["peak_resident_bytes"].as_u64().unwrap();
        assert!((live..2 * live).contains(&peak), "{row}");
        let samples = row["resident_by_event"].as_array().unwrap();
        assert!(samples.len() >= 64, "{row}");
        assert_eq!(samples.last().unwrap()[0], 1536);
    }
    let text = larder("", &[&trace]);
    assert!(
        stdout(&text).contains("server: on one thread, "),
        "{}",
        stdout(&text)
    );
    let simulated = rows("--allocator larder", &[&trace]);
    assert_eq!(simulated[0]["allocator"], "larder");
    let refused = larder("--heaps --device-bytes 1GiB", &[&trace]);
    assert_eq!(refused.status.code(), Some(2));
    // Any trace is played so if that is asked for, and a block that no heap has is an error.
    let impossible = file(
        &folder,
        "impossible.trace",
        "# alloc-trace v1\na 0 1152921504606846976\n",
    );
    let output = larder("--heaps", &[&impossible]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the heap has no block of 1152921504606846976 bytes"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_snapshot_of_a_program_out_of_memory_is_answered_first() {
    let folder = TempDir::new().unwrap();
    let out = file(&folder, "oom.pickle", "");
    let refused = larder(
        "--allocator pytorch --device-bytes 5GiB --snapshot",
        &[&out, &carried("resnet50_train")],
    );
    assert_eq!(refused.status.code(), Some(3));
    let report = larder("", &[&out]);
    assert_eq!(report.status.code(), Some(0), "{}", stderr(&report));
    let first = stdout(&report).split_once("\n\n").unwrap().0;
    let first = first.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "oom: the program was refused 49 MiB after event 496, with 4.89 GiB live of the 5 GiB",
        "It does not fit with PyTorch (",
        "What the program would have asked for next is not recorded. Expandable segments are enough: set ",
    ] {
        assert!(first.contains(words), "{first}");
    }
    // The device that is named counts.
    for row in rows("--device-bytes 4.9GiB", &[&out]) {
        let refused = &row["refused_requests"];
        assert_eq!(refused["fits"], false, "{row}");
        assert_eq!(refused["bytes"], 49 << 20, "{row}");
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
        let words = format!("--passes 2 --driver stand-in --allocator {name}");
        let row = &rows(&words, &["--snapshot", out, &trace])[0];
        let again = &rows("--allocator larder-no-moves", &[out])[0];
        for key in ["allocations", "peak_live_bytes"] {
            assert_eq!(row[key], again[key], "{name}: {key}");
        }
    }
}
