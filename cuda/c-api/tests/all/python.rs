//! The package `larder_cuda`: its functions on the stand-in, its wheel, and its part for PyTorch if PyTorch is installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{built, compiled_shared, library, package, python, said, stand_in, words};

#[test]
fn the_package_counts_limits_and_refuses() {
    let Some(mut python) = python() else { return };
    let answer = said(python.arg(package().join("tests/programs/package.py")));
    assert_eq!(answer["passed"], true);
}

#[test]
fn tensors_grow_at_one_address_and_hold_their_memory() {
    let Some(mut python) = python() else { return };
    python.args(["-W", "ignore"]);
    let answer = said(python.arg(package().join("tests/programs/growing.py")));
    assert_eq!(answer["passed"], true);
}

/// Replays the snapshot of a program that made three allocations and a free.
#[track_caller]
fn replay(snapshot: &Path) {
    let mut larder = Command::new(built().join("larder"));
    larder.args([
        "replay",
        "--driver",
        "stand-in",
        "--allocator",
        "device",
        "--json",
    ]);
    larder.env("LARDER_CUDA_STAND_IN", stand_in());
    let row = said(larder.arg(snapshot));
    assert_eq!(row["peak_live_bytes"], 7 << 20, "{row}");
}

#[test]
fn a_recorded_history_has_the_newest_events_and_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot.pickle");
    let Some(mut python) = python() else { return };
    let program = package().join("tests/programs/history.py");
    let answer = said(python.arg(program).arg(&snapshot));
    assert_eq!(answer["passed"], true);
    replay(&snapshot);
}

/// Runs a program, which prints "skipped" if what it tests is not installed. Returns whether it was run.
#[track_caller]
fn ran(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if text.starts_with("skipped") {
        println!("{text}");
        return false;
    }
    assert!(output.status.success(), "{}", words(&output));
    true
}

#[test]
fn pytorch_takes_the_allocator_and_its_own_functions_work() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot.pickle");
    let Some(runtime) = compiled_shared(folder.path(), "cudart.c", "cudart.so") else {
        return;
    };
    let Some(mut python) = python() else { return };
    python.args(["-W", "ignore"]).env("LD_PRELOAD", runtime);
    python.arg(package().join("tests/programs/torch_enable.py"));
    if ran(python.arg(&snapshot)) {
        replay(&snapshot);
    }
}

#[test]
fn pytorch_without_a_driver_is_not_sent_to_the_stand_in() {
    let Some(mut python) = python() else { return };
    python
        .env_remove("LARDER_CUDA_DRIVER")
        .env_remove("LARDER_CUDA_STAND_IN");
    ran(python.arg(package().join("tests/programs/torch_no_driver.py")));
}

#[test]
fn training_without_what_it_needs_ends_with_one_line() {
    let Some(mut python) = python() else { return };
    ran(python.arg(package().join("tests/programs/train_torch.py")));
}

#[test]
fn rmm_takes_the_resource_and_hears_of_refusals() {
    let Some(mut python) = python() else { return };
    python.args(["-W", "ignore"]);
    ran(python.arg(package().join("tests/programs/rmm_resource.py")));
}

#[test]
fn a_missing_library_or_driver_is_named_with_a_remedy() {
    for (variable, remedy) in [
        ("LARDER_CUDA_LIBRARY", "install the package again"),
        ("LARDER_CUDA_STAND_IN", "build larder-cuda-stand-in"),
    ] {
        let Some(mut python) = python() else { return };
        python.env(variable, "/nowhere/missing.so");
        let output = python.args(["-c", "import larder_cuda; larder_cuda.malloc(1)"]);
        let said = words(&output.output().unwrap());
        let last = said.lines().last().unwrap();
        assert!(last.contains("/nowhere/missing.so"), "{said}");
        assert!(last.contains(remedy), "{said}");
    }
}

#[test]
fn building_the_wheel_shows_progress_and_says_why_it_cannot() {
    let Some(mut python) = python() else { return };
    let program = package().join("tests/programs/wheel.py");
    let output = python.arg(program).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn a_wheel_carries_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut build) = python() else { return };
    let unpack = "import backend, sys, zipfile\n\
                  name = backend.build_wheel(sys.argv[1])\n\
                  zipfile.ZipFile(sys.argv[1] + '/' + name).extractall(sys.argv[1])\n";
    let output = build
        .args(["-c", unpack])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let packed = fs::read(folder.path().join("larder_cuda/liblarder_cuda.so")).unwrap();
    assert!(packed == fs::read(library()).unwrap(), "another library");
    let Some(mut python) = python() else { return };
    python
        .env_remove("LARDER_CUDA_LIBRARY")
        .env("PYTHONPATH", folder.path());
    let answer = said(python.arg(package().join("tests/programs/package.py")));
    assert_eq!(answer["passed"], true);
}
