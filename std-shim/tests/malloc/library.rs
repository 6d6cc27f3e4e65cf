//! `liblarder.so` and `liblarder.a`, built by cargo as a user builds them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where the two libraries lie. Built once; fast if nothing has changed since the last time.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("malloc");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload/Cargo.toml");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["build", "--quiet", "--release", "--manifest-path"])
            .arg(manifest)
            .arg("--target-dir")
            .arg(&target)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "liblarder does not build: {said}");
        target.join("release")
    })
}

/// What is preloaded.
pub(crate) fn shared() -> PathBuf {
    folder().join("liblarder.so")
}

/// Length of a section of `liblarder.so`; 0 if there is none.
fn section_bytes(name: &str) -> usize {
    let sections = Command::new("readelf")
        .args(["--sections", "--wide"])
        .arg(shared())
        .output()
        .unwrap();
    let text = String::from_utf8(sections.stdout).unwrap();
    // Name, kind, address, place in the file, length.
    let length = text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != name);
        words.nth(4)
    });
    length.map_or(0, |length| usize::from_str_radix(length, 16).unwrap())
}

#[test]
fn what_most_programs_never_run_lies_apart() {
    let (seldom, other) = (section_bytes(".text.seldom"), section_bytes(".text"));
    assert!(
        seldom > other / 2,
        "{seldom} bytes apart, {other} bytes not"
    );
}
