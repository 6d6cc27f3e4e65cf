//! `liblarder.so` and `liblarder.a`, built by cargo as a user builds them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::program::preload;

/// Builds both libraries once, which is quick if nothing has changed. Returns their folder.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("release"))
}

/// Returns the folder of both libraries, built for debugging.
pub(crate) fn folder_for_debugging() -> PathBuf {
    build("dev")
}

fn build(profile: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("malloc");
    let manifest = preload().join("Cargo.toml");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--profile", profile, "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        // An incremental build needs more stack than the library promises.
        .env_remove("CARGO_INCREMENTAL")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "liblarder does not build: {said}");
    target.join(if profile == "dev" { "debug" } else { profile })
}

/// Returns the path of the library for `LD_PRELOAD`.
pub(crate) fn shared() -> PathBuf {
    folder().join("liblarder.so")
}
