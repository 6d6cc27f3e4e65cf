//! What several tests share: a folder that goes away, and children that play a role.

#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of one's own, removed at the end.
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

    /// Names of what is in it, sorted.
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

/// Set for a child process: its role, and the path it is about.
const ROLE: &str = "LARDER_CONTROL_TEST_ROLE";
const PLACE: &str = "LARDER_CONTROL_TEST_PLACE";

/// Returns the role and the path of this process, if it is a child of a test.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let place = std::env::var_os(PLACE)?;
    Some((std::env::var(ROLE).ok()?, place.into()))
}

/// A command that runs a test again in a role.
pub(crate) fn command(test: &str, role: &str, place: &Path) -> Command {
    // The program itself, though its folder may be closed to another user.
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

/// Waits for the end of a child, whose test must pass.
pub(crate) fn assert_passes(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}");
}

/// Waits for a line of a child that has a word.
pub(crate) fn wait_for(child: &mut Child, word: &str) {
    let mut said = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
    }
}
