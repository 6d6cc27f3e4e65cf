//! Processes of the `larder` program, and how tests wait for them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The deadline of every wait, of which a busy machine may need a large part.
pub(super) const DEADLINE: Duration = Duration::from_secs(900);

/// A folder for jobs, and a device that they share.
pub(super) struct Machine {
    folder: TempDir,
    device_bytes: u64,
}

/// A process of the program, killed when dropped. Its output goes to a file.
pub(super) struct Process {
    child: Child,
    said: PathBuf,
}

impl Machine {
    pub(super) fn new(device_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("jobs")).unwrap();
        Self {
            folder,
            device_bytes,
        }
    }

    pub(super) fn jobs(&self) -> PathBuf {
        self.folder.path().join("jobs")
    }

    /// Returns the file in which the device's memory is counted.
    pub(super) fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    pub(super) fn file(&self, name: &str, content: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        text(&path)
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command
            .args(arguments)
            .env("LARDER_STAND_IN_SHARED", self.ledger())
            .env("LARDER_STAND_IN_BYTES", self.device_bytes.to_string())
            .env("LARDER_STAND_IN_DEVICES", "1")
            .stdin(Stdio::null());
        command
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the program, which must succeed, with the jobs' folder after the arguments.
    pub(super) fn succeed(&self, arguments: &[&str]) {
        let jobs = text(&self.jobs());
        let output = self.run(&[arguments, &["--in", &jobs]].concat());
        assert!(output.status.success(), "{output:?}");
    }

    /// Starts the program. `name` names the file for its output.
    pub(super) fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.start_command(name, self.command(arguments))
    }

    /// Starts a command from [`command`](Self::command), possibly modified.
    pub(super) fn start_command(&self, name: &str, mut command: Command) -> Process {
        let said = self.folder.path().join(format!("{name}.said"));
        let file = File::create(&said).unwrap();
        let child = command.stdout(file).spawn().unwrap();
        Process { child, said }
    }

    pub(super) fn job(&self, name: &str, arguments: &[&str]) -> Process {
        let jobs = text(&self.jobs());
        let files = ["--in", &jobs, "--name", name, "--driver", "stand-in"];
        self.start(name, &[&["job"], arguments, &files].concat())
    }

    /// Returns the status of a job in `larder top`.
    pub(super) fn top(&self, name: &str) -> Value {
        let output = self.run(&["top", "--once", "--json", &text(&self.jobs())]);
        assert!(output.status.success(), "{output:?}");
        lines(&output.stdout)
            .into_iter()
            .find(|job| job["name"] == name)
            .unwrap_or_default()
    }
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns the whole lines of the output so far.
    pub(super) fn said(&self) -> Vec<Value> {
        lines(self.text().as_bytes())
    }

    /// Returns the whole lines of the output so far as text.
    pub(super) fn text(&self) -> String {
        let mut text = fs::read_to_string(&self.said).unwrap();
        text.truncate(text.rfind('\n').map_or(0, |last| last + 1));
        text
    }

    /// Waits for the process, which must succeed.
    pub(super) fn end_well(&mut self) {
        wait("the end of a process", || !self.is_running());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.text());
    }

    /// Waits for the process, which must succeed. Returns the last line of its output.
    pub(super) fn end(&mut self) -> Value {
        self.end_well();
        self.said().last().cloned().unwrap_or_default()
    }

    pub(super) fn terminate(&self) {
        self.signal("-TERM");
    }

    pub(super) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn lines(text: &[u8]) -> Vec<Value> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}
