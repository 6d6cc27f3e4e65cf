//! The input of `larder replay` and `larder plan`, and the files left when they are interrupted.

use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};

use crate::replay_command::{GOOD, carried, file, json, larder, stderr, stdout};

const ONE: [&str; 3] = ["--json", "--allocator", "xla"];

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

fn xz(text: &[u8]) -> Vec<u8> {
    let mut packed = XzWriter::new(Vec::new(), XzOptions::default()).unwrap();
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

fn fed(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // A program that refuses its arguments may end before it reads.
    if let Err(error) = pipe.write_all(input) {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
    drop(pipe);
    child.wait_with_output().unwrap()
}

#[test]
fn gzip_xz_and_zstd_are_known_by_content_in_files_and_on_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let zstd = zstd::encode_all(GOOD.as_bytes(), 3).unwrap();
    let packed = [
        GOOD.as_bytes().to_vec(),
        zstd,
        gzip(GOOD.as_bytes()),
        xz(GOOD.as_bytes()),
    ];
    for bytes in packed {
        let path = file(&folder, "packed.trace", &bytes);
        let output = larder(&[&ONE[..], &[&path]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(json(&output)[0]["peak_live_bytes"], 4000);
        let output = fed(&[&["replay"], &ONE[..], &["-"]].concat(), &bytes);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let row = &json(&output)[0];
        assert_eq!(
            (&row["trace"], &row["peak_live_bytes"]),
            (&"stdin".into(), &4000.into())
        );
        let output = fed(&["plan", "--json", "-"], &bytes);
        assert_eq!(
            json(&output)[0]["problem"],
            "stdin step 0",
            "{}",
            stderr(&output)
        );
    }
    let twice = fed(&["replay", "-", "-"], GOOD.as_bytes());
    assert_eq!(twice.status.code(), Some(2));
    assert!(stderr(&twice).contains("given twice"), "{}", stderr(&twice));
}

#[test]
fn a_packed_file_has_the_name_of_what_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["run.trace.gz", "run.trace.xz", "run.trace.zst"] {
        let path = file(&folder, name, GOOD);
        assert_eq!(
            json(&larder(&[&ONE[..], &[&path]].concat()))[0]["trace"],
            "run"
        );
    }
}

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
        let output = larder(&[&ONE[..], &[&path]].concat());
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
        let output = larder(&["--allocator", "xla", &path]);
        assert!(
            stdout(&output).contains("cut short at line"),
            "{}",
            stdout(&output)
        );
    }
    let path = file(&folder, "nothing.trace", "a 0 4");
    assert_eq!(larder(&[&path]).status.code(), Some(2));
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

#[test]
fn what_is_no_trace_is_named_with_what_to_do_and_damages_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(&folder, "good.trace", GOOD);
    for (content, what, advice) in [
        (
            b"PK\x03\x04\x0a\0".as_slice(),
            "a zip archive",
            "_dump_snapshot",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a Git LFS pointer",
            "git lfs pull",
        ),
        (b"{\"segments\": []}", "JSON", "_dump_snapshot"),
    ] {
        for bytes in [content.to_vec(), gzip(content)] {
            let path = file(&folder, "given", &bytes);
            let output = larder(&[&ONE[..], &[&path, &good]].concat());
            assert_eq!(output.status.code(), Some(2));
            let said = stderr(&output);
            assert!(said.contains(what) && said.contains(advice), "{said}");
            assert_eq!(json(&output).len(), 1, "the other file is replayed");
        }
    }
}
