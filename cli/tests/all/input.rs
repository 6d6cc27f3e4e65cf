//! The input of `larder replay` and `larder plan`, and the files left when they are interrupted.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::commands::files::{gzip, xz};
use crate::replay_command::{GOOD, carried, file, json, larder, stderr, stdout};

#[test]
fn a_trace_that_is_cut_short_is_replayed_with_a_warning_and_the_result_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let long: String = (0..60_000_u64)
        .map(|id| format!("a {id} {}\n", 1 + id * 2_654_435_761 % 1_048_573))
        .collect();
    let cut = |bytes: Vec<u8>| bytes[..bytes.len() * 3 / 4].to_vec();
    let zstd = zstd::encode_all(long.as_bytes(), 3).unwrap();
    for bytes in [
        cut(long.clone().into_bytes()),
        cut(zstd),
        cut(gzip(long.as_bytes())),
        cut(xz(long.as_bytes())),
    ] {
        let path = file(&folder, "cut.trace", &bytes);
        let output = larder("--json --allocator xla", &[&path]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let warning = stderr(&output);
        assert!(
            warning.starts_with("warning: ") && warning.contains("cut short"),
            "{warning}"
        );
        let row = &json(&output)[0];
        assert!(
            (1..60_000).contains(&row["allocations"].as_u64().unwrap()),
            "{row}"
        );
        assert!(
            row["notes"][0].as_str().unwrap().contains("cut short"),
            "{row}"
        );
        let output = larder("--allocator xla", &[&path]);
        assert!(
            stdout(&output).contains("cut short at line"),
            "{}",
            stdout(&output)
        );
    }
    let path = file(&folder, "nothing.trace", "a 0 4");
    assert_eq!(larder("", &[&path]).status.code(), Some(2));
}

/// Returns a trace of `blocks` blocks, of which at most three are live.
fn long_trace(blocks: u32) -> String {
    let mut text = String::from("# alloc-trace v1\n");
    for id in 0..blocks {
        text.push_str(&format!("a {id} {}\n", 1 + id % 5000));
        if id >= 2 {
            text.push_str(&format!("f {}\n", id - 2));
        }
    }
    text
}

#[cfg(target_os = "linux")]
#[test]
fn two_million_events_from_a_pipe_are_replayed_in_40_mib_and_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 40960; exec \"$0\" replay --passes 2 --json --allocator xla -",
        ])
        .arg(env!("CARGO_BIN_EXE_larder"))
        .env("TMPDIR", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(long_trace(1_000_000).as_bytes()).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json(&output)[0]["allocations"], 2_000_000);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn events_that_have_no_room_are_a_failure_that_names_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let replay = |trace: &str| {
        Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["replay", "--json", "--allocator", "xla", trace])
            .env("TMPDIR", &missing)
            .output()
            .unwrap()
    };
    let output = replay(&file(&folder, "long.trace", long_trace(1_000_000)));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.contains(missing.to_str().unwrap()) && message.contains("TMPDIR"),
        "{message}"
    );
    assert_eq!(stdout(&output), "");
    assert_eq!(
        replay(&file(&folder, "good.trace", GOOD)).status.code(),
        Some(0)
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_what_was_measured() {
    let trace = carried("llama7b_decode_cat");
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows");
    let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args([
            "replay",
            "--json",
            "--allocator",
            "larder-no-moves",
            "--smallest-device",
        ])
        .args(["--passes", "500", &carried("resnet50_train"), &trace])
        .stdout(fs::File::create(&rows).unwrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    while fs::metadata(&rows).unwrap().len() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
    let status = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(status.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("interrupted"),
        "{}",
        stderr(&output)
    );
    let rows = fs::read_to_string(&rows).unwrap();
    assert_eq!(rows.lines().count(), 1, "{rows}");
}

/// Waits until a process handles SIGINT, which is bit 1 of the mask.
#[cfg(target_os = "linux")]
fn wait_for_handler(process: u32) {
    let until = Instant::now() + Duration::from_secs(300);
    let handles = |status: String| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 2 != 0)
    };
    while !handles(fs::read_to_string(format!("/proc/{process}/status")).unwrap()) {
        assert!(Instant::now() < until, "SIGINT is not handled");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_ctrl_c_ends_a_wait_for_input_and_leaves_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(&folder, "good.trace", GOOD);
    let fifo = folder.path().join("fifo.trace");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let fifo = fifo.to_str().unwrap();
    // The FIFO has no writer, so its open waits; or it has one that does not write, so a read waits.
    // Standard input is a pipe that is kept open.
    for (command, input, has_writer) in [
        ("replay", fifo, false),
        ("replay", fifo, true),
        ("replay", "-", false),
        ("plan", fifo, false),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"));
        child.args([command, "--json", &good, input]);
        if command == "replay" {
            child.args(["--allocator", "xla"]);
        }
        let mut child = child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let open_input = child.stdin.take();
        // This waits until the program has opened the FIFO.
        let writer = has_writer.then(|| fs::OpenOptions::new().write(true).open(fifo).unwrap());
        wait_for_handler(child.id());
        let kill = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        drop((open_input, writer));
        assert_eq!(
            output.status.code(),
            Some(130),
            "{command} {input}: {}",
            stderr(&output)
        );
        assert!(!stderr(&output).contains(input), "{}", stderr(&output));
        // `plan` reads all files before it solves their problems.
        if command == "replay" && has_writer {
            assert_eq!(json(&output).len(), 1, "{}", stdout(&output));
        }
    }
}

#[test]
fn a_plan_of_a_hundred_thousand_steps_ends() {
    let mut text = String::new();
    for step in 0..100_000 {
        text.push_str(&format!("s {step}\na {step} 512\nf {step}\n"));
    }
    text.push_str("s 100000\n");
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "steps.trace", text);
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["plan", &path])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 100_002);
}
