//! Short files that would need gigabytes of memory without a limit. The program has 160 MiB of
//! addresses.
#![cfg(target_os = "linux")]

use std::process::{Command, Output};

use crate::commands::files::{gzip, xz};
use crate::replay_command::{file, json, stderr};

/// One contender, which needs little memory itself.
const REPLAY: &[&str] = &["replay", "--allocator", "xla"];
const PLAN: &[&str] = &["plan"];

/// Runs a command with little memory.
fn larder(command: &[&str], path: &str) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -v 163840; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_larder"))
        .args(command)
        .args(["--json", path])
        .output()
        .unwrap()
}

fn assert_refused(name: &str, bytes: &[u8], words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, name, bytes);
    for command in [REPLAY, PLAN] {
        let output = larder(command, &path);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {message}");
        assert!(message.contains(words), "{name}: {message}");
    }
}

/// Returns a pickle that repeats instructions up to a number of bytes.
fn pickle(first: &[u8], instructions: &[u8], bytes: usize) -> Vec<u8> {
    let repeated = instructions.repeat(bytes / instructions.len());
    [b"\x80\x04", first, &repeated, b"."].concat()
}

const MIB: usize = 1 << 20;

#[test]
fn content_that_a_short_file_stands_for_is_not_read_into_memory() {
    let words = "more than 64 times as large";
    let bomb = pickle(b"", b"]", 20 * MIB);
    assert_refused("a.pickle.gz", &gzip(&bomb), words);
    assert_refused("a.pickle.xz", &xz(&bomb), words);
    let zstd = zstd::encode_all(bomb.as_slice(), 3).unwrap();
    assert_refused("a.pickle.zst", &zstd, words);
    assert_refused("a.pickle.zst.gz", &gzip(&zstd), "compressed twice");
    let wide = [b"id,lower,upper,size\n", b"a".repeat(20 * MIB).as_slice()].concat();
    assert_refused("a.csv", &gzip(&wide), words);
}

#[test]
fn a_pickle_needs_memory_in_proportion_to_its_bytes() {
    for (first, instructions, words) in [
        (&b""[..], &b"]"[..], "its stack has"),
        (b"", b"N", "its stack has"),
        (b"", b"(", "its stack has"),
        (b"]\x94", b"h\0", "its stack has"),
        (b"", b"N\x94", "its stack has"),
        // Lists of one item, which are added to another list.
        (b"]", b"](Nea", "without `address`"),
    ] {
        let bytes = pickle(first, instructions, 3 * MIB);
        assert_refused("a.pickle", &bytes, words);
    }
}

#[test]
fn a_header_of_many_lines_is_refused() {
    let lines = b"#\n".repeat(8 * MIB);
    assert_refused("a.trace", &lines, "more than 1000 lines");
    assert_refused("a.trace.gz", &gzip(&lines), "more than 1000 lines");
}

#[test]
fn the_dictionary_of_an_xz_file_has_a_limit() {
    let mut bytes = xz(b"a 0 1\n");
    // The header of the block follows that of the stream, and its checksum is at its end. The only
    // filter is LZMA2, whose property is the size of the dictionary: 40 is 4 GiB.
    let header = 12..12 + 4 * (usize::from(bytes[12]) + 1);
    assert_eq!(bytes[14..16], [0x21, 1]);
    bytes[16] = 40;
    let checked = header.start..header.end - 4;
    let mut checksum = flate2::Crc::new();
    checksum.update(&bytes[checked.clone()]);
    bytes[checked.end..header.end].copy_from_slice(&checksum.sum().to_le_bytes());
    assert_refused("a.trace.xz", &bytes, "its dictionary has more than");
}

#[test]
fn names_of_threads_and_streams_are_counted_and_not_kept() {
    let mut log = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    let long = "x".repeat(60_000);
    for row in 0..2000 {
        let action = if row % 2 == 0 { "allocate" } else { "free" };
        log.push_str(&format!("{row}{long},,{action},1,1,{row}\n"));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "a.csv", log);
    let output = larder(REPLAY, &path);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let notes = json(&output)[0]["notes"].to_string();
    assert!(notes.contains("2000 threads"), "{notes}");
}
