//! Allocators on a driver, here the stand-in.

use super::*;

#[test]
fn on_the_stand_in_driver_the_calls_are_those_of_the_simulation() {
    let trace = carried("gpt2s_train");
    let allocators = ["--allocator", "larder", "--allocator", "device"];
    let arguments = [&["--driver", "stand-in", "--json", &trace], &allocators[..]].concat();
    let output = larder(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("stand-in"));
    let rows = json(&output);
    assert_eq!(rows.len(), 2);
    for key in ["peak_reserved_bytes", "driver_calls_by_kind", "completed"] {
        assert_eq!(rows[0][key], rows[1][key], "{key}");
    }
}

/// Calls of a row by name, or those of one of its passes.
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

const ON_A_DRIVER: [&str; 4] = ["device", "device-budget", "cudarc", "cuda-async"];

/// Replays on the stand-in by the allocators that need a driver.
fn on_the_stand_in(more: &[&str]) -> Output {
    let mut arguments = vec!["--driver", "stand-in"];
    for name in ON_A_DRIVER {
        arguments.extend(["--allocator", name]);
    }
    arguments.extend(more);
    let output = larder(&arguments);
    // 3 where the device is too small.
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{}",
        stderr(&output)
    );
    output
}

#[test]
fn calls_of_a_driver_are_known_by_name_in_all_passes_and_each() {
    let trace = carried("gpt2s_train");
    let rows = json(&on_the_stand_in(&["--json", "--passes", "4", &trace]));
    let names: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["allocator"].as_str())
        .collect();
    assert_eq!(names, ON_A_DRIVER);
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
    // The steady state: ours calls nobody, the others for every block.
    let last = |row: &'_ Value| row["calls_by_name_by_pass"][3].clone();
    assert_eq!(calls(&last(device)), []);
    let blocks = cudarc["allocations"].as_u64().unwrap();
    assert_eq!(
        calls_of(&cudarc["calls_by_name"], "cuMemAllocAsync"),
        blocks
    );
    assert_eq!(
        calls_of(&cudarc["calls_by_name"], "cuEventCreate"),
        2 * blocks
    );
    assert_eq!(
        calls_of(&pool["calls_by_name"], "cuMemAllocFromPoolAsync"),
        blocks
    );
    for (row, name) in [(cudarc, "cuMemFreeAsync"), (pool, "cuMemFreeAsync")] {
        let freed = row["driver_frees"].as_u64().unwrap();
        assert_eq!(calls_of(&row["calls_by_name"], name), freed);
        assert!(calls_of(&last(row), name) > 0);
    }
    // How much is held is looked up on the way, and counts nowhere.
    for name in ["cuMemGetInfo_v2", "cuMemPoolGetAttribute"] {
        assert!(
            rows.iter()
                .all(|row| calls_of(&row["calls_by_name"], name) == 0)
        );
    }
}

#[test]
fn the_table_lists_the_calls_of_a_driver_and_whose_time_it_is() {
    let trace = carried("gpt2s_train");
    let output = on_the_stand_in(&["--passes", "2", &trace]);
    let text = stdout(&output);
    assert!(text.contains("calls of the stand-in driver, whose own work is in these ns/op"));
    for name in ON_A_DRIVER {
        let line = text
            .lines()
            .find(|line| line.contains(&format!("gpt2s_train {name}: ")));
        let line = line.unwrap();
        assert!(
            line.contains(" cu") && line.contains("; last pass: "),
            "{line}"
        );
    }
    let without = larder(&["--allocator", "larder-no-moves", &trace]);
    assert!(
        !stdout(&without).contains("calls of the"),
        "{}",
        stdout(&without)
    );
}

#[test]
fn a_small_device_stops_whoever_runs_on_a_driver_too() {
    let trace = carried("gpt2s_train");
    for row in json(&on_the_stand_in(&[
        "--json",
        "--device-bytes",
        "512MiB",
        &trace,
    ])) {
        assert_eq!(row["completed"], false, "{row}");
        assert!(
            row["peak_reserved_bytes"].as_u64().unwrap() <= 536_870_912,
            "{row}"
        );
    }
}

#[test]
fn allocators_on_a_driver_want_one() {
    let output = larder(&["--allocator", "device", &carried("gpt2s_train")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--driver"), "{}", stderr(&output));
}
