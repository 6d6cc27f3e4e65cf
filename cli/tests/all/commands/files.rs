//! Files of a session.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};

/// Makes the file of a line such as `file NAME "text"`, or `file NAME` with the lines in `body`.
pub(crate) fn make(line: &str, body: &[&str], folder: &Path) {
    let (kind, rest) = line.split_once(' ').unwrap();
    let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
    let content = match text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
    {
        Some(text) => unescaped(text),
        None => body
            .iter()
            .flat_map(|line| format!("{line}\n").into_bytes())
            .collect(),
    };
    let content = match kind {
        "file" => content,
        "file.gzip" => gzip(&content),
        "file.xz" => xz(&content),
        "file.zstd" => zstd::encode_all(content.as_slice(), 3).unwrap(),
        #[cfg(unix)]
        "program" => return program(&folder.join(name), &body.join("\n")),
        #[cfg(unix)]
        "worker" => return worker(folder, name, text, body),
        _ => panic!("{line:?} makes no file"),
    };
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

pub(crate) fn xz(content: &[u8]) -> Vec<u8> {
    let mut packed = XzWriter::new(Vec::new(), XzOptions::default()).unwrap();
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

/// Replaces the escapes `\n`, `\r`, `\\`, `\"` and `\xff`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut letters = text.bytes();
    while let Some(letter) = letters.next() {
        bytes.push(match letter {
            b'\\' => match letters.next().unwrap() {
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => {
                    let digits = [letters.next().unwrap(), letters.next().unwrap()];
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
            other => other,
        });
    }
    bytes
}

/// Makes a dummy worker of the profile `fat`: a shell script that prints a worker's output. The
/// script notes each run in the file `log`, or in `readied` if the run only readies memory.
/// `SECONDS ANSWER` is a script that prints these measurements.
#[cfg(unix)]
fn worker(folder: &Path, allocator: &str, script: &str, body: &[&str]) {
    let measured = script
        .split_once(' ')
        .filter(|(seconds, _)| seconds.parse::<f64>().is_ok());
    let script = match measured {
        Some((seconds, answer)) => format!(
            "echo '{{\"workload\":\"'$1'\",\"allocator\":\"{allocator}\",\"seconds\":{seconds},\"operations\":10,\
             \"answer\":{answer},\"peak_rss_bytes\":4194304,\"end_rss_bytes\":2097152,\"live_bytes\":null,\
             \"live_rss_bytes\":null}}'"
        ),
        None => format!("{script}\n{}", body.join("\n")),
    };
    let (readied, log) = (folder.join("readied"), folder.join("log"));
    let (readied, log) = (readied.display(), log.display());
    let script = format!(
        "[ \"$1\" = ready ] && {{ echo {allocator} >> '{readied}'; exit 0; }}\n\
         echo {allocator} \"$@\" >> '{log}'\n{script}"
    );
    program(&folder.join(format!("{allocator}-fat")), &script);
}

#[cfg(unix)]
fn program(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
