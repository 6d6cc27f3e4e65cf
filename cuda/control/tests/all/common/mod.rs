//! Helpers of several tests: a temporary folder, and child processes that play a role.

#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A temporary folder, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("larder-control-{name}-{process}-{number}"));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the names of the folder's entries, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Environment variables of a child process: its role and its path.
const ROLE: &str = "LARDER_CONTROL_TEST_ROLE";
const PLACE: &str = "LARDER_CONTROL_TEST_PLACE";

/// Returns the role and the path of this process, if it is a child of a test.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let place = std::env::var_os(PLACE)?;
    Some((std::env::var(ROLE).ok()?, place.into()))
}

/// Returns a command that runs a test again in a role.
pub(crate) fn command(test: &str, role: &str, place: &Path) -> Command {
    // Another user can execute this path even if the program's folder is closed to them.
    let program = match cfg!(target_os = "linux") {
        true => "/proc/self/exe".into(),
        false => std::env::current_exe().unwrap(),
    };
    let mut command = Command::new(program);
    command
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, place)
        .current_dir("/")
        .stdout(Stdio::piped());
    command
}

/// Waits for a child to exit. Its test must pass.
pub(crate) fn assert_passes(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}");
}

/// Waits until a child prints a line that contains a word.
pub(crate) fn wait_for(child: &mut Child, word: &str) {
    let mut said = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
    }
}
