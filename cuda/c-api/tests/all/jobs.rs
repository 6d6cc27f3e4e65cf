//! Processes that share a device as jobs, balanced by `larder coordinate`.
//!
//! Tests wait for conditions, with a deadline that only a hang reaches.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{built, compiled, on_stand_in, package, python};

const MIB: u64 = 1 << 20;

/// The bytes that both jobs together may hold, and those that one of them uses in a step.
const TOTAL: u64 = 64 * MIB;
const USES: u64 = 20 * MIB;

/// A wait that works never takes this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(900);

/// A process whose output goes to a file. It is killed when the value is dropped.
pub(crate) struct Process {
    child: Child,
    said: PathBuf,
}

impl Process {
    pub(crate) fn start(folder: &Path, name: &str, mut command: Command) -> Self {
        let said = folder.join(format!("{name}.said"));
        command.stdout(File::create(&said).unwrap());
        let child = command.spawn().unwrap();
        Self { child, said }
    }

    /// Returns the whole lines of output so far.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.said).unwrap();
        let whole = text.rfind('\n').map_or("", |last| &text[..last]);
        whole.lines().map(str::to_owned).collect()
    }

    fn steps(&self) -> u64 {
        let last = self.lines().pop();
        last.map_or(0, |line| line.parse().unwrap())
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "waited for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder of jobs and the device that they share.
pub(crate) struct Machine {
    folder: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("jobs")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn jobs(&self) -> PathBuf {
        self.path().join("jobs")
    }

    /// Sets up a device with more memory than the jobs may hold, so that only the coordinator limits them.
    pub(crate) fn shared(&self, mut command: Command) -> Command {
        command
            .env("LARDER_STAND_IN_SHARED", self.path().join("ledger"))
            .env("LARDER_STAND_IN_BYTES", (4 * TOTAL).to_string())
            .env("LARDER_STAND_IN_DEVICES", "1");
        command
    }

    pub(crate) fn larder(&self, arguments: &[&str]) -> Command {
        let mut command = self.shared(on_stand_in(built().join("larder")));
        command.args(arguments);
        command
    }

    /// Starts a program as a job that ends once the file `stop` exists.
    fn job(&self, name: &str, program: Command, words: &[&str]) -> Process {
        let mut command = self.shared(program);
        let file = |ending: &str| self.jobs().join(format!("{name}.{ending}.json"));
        command
            .arg((USES / MIB).to_string())
            .arg(self.path().join("stop"))
            .args(words)
            .env("GPU_CONFIG_FILE", file("control"))
            .env("GPU_STATUS_FILE", file("status"))
            .env("LARDER_CUDA_PATIENCE", "200");
        Process::start(self.path(), name, command)
    }

    pub(crate) fn top(&self, name: &str) -> Value {
        let mut command = self.larder(&["top", "--once", "--json"]);
        let output = command.arg(self.jobs()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut jobs = lines.filter(|job: &Value| job["name"] == name);
        jobs.next().unwrap_or_default()
    }

    fn wait_for_standstill(job: &Process) {
        let mut seen = job.steps();
        wait("a job to stand still", || {
            let before = seen;
            thread::sleep(Duration::from_millis(50));
            seen = job.steps();
            seen == before
        });
    }

    pub(crate) fn control(&self, order: &str, name: &str) {
        let jobs = self.jobs();
        let mut command = self.larder(&["control", order, name, "--in"]);
        let status = command.arg(jobs).status().unwrap();
        assert!(status.success());
    }
}

/// Returns the newest limit that the coordinator reports for a job and that the job has confirmed.
fn limit(coordinator: &Process, job: &str) -> u64 {
    let lines = coordinator.lines();
    let said = lines
        .iter()
        .rev()
        .map(|line| -> Value { serde_json::from_str(line).unwrap() });
    let mut states = said.filter(|said| said["what"] == "state" && said["job"] == job);
    let newest = states.next().unwrap_or_default();
    newest["limit_bytes"].as_u64().unwrap_or(0)
}

#[test]
fn two_processes_are_balanced_and_one_is_suspended_and_goes_on() {
    let machine = Machine::new();
    let Some(program) = compiled(machine.path(), "job.c") else {
        return;
    };
    let of_python = python().map(|mut python| {
        python.arg(package().join("tests/programs/job.py"));
        python
    });
    let mut coordinate = machine.larder(&["coordinate", "--total", &TOTAL.to_string()]);
    coordinate.arg(machine.jobs());
    coordinate.args([
        "--json",
        "--step",
        "2MiB",
        "--interval",
        "0.02",
        "--calm",
        "0.2",
    ]);
    let coordinator = Process::start(machine.path(), "coordinator", coordinate);

    let mut first = machine.job("first", on_stand_in(&program), &[]);
    wait("the first to have it all", || {
        assert!(first.is_running());
        limit(&coordinator, "first") == TOTAL && first.steps() > 5
    });
    let second = of_python.unwrap_or_else(|| on_stand_in(&program));
    let mut second = machine.job("second", second, &[]);
    wait("both to have what they use", || {
        let limits = ["first", "second"].map(|job| limit(&coordinator, job));
        assert!(first.is_running() && second.is_running());
        limits.iter().all(|limit| *limit >= USES && *limit < TOTAL) && second.steps() > 5
    });

    machine.control("pause", "first");
    let mut seen = first.steps();
    wait("the first to stand still while the second works", || {
        let (before, others) = (seen, second.steps());
        wait("the second's work", || second.steps() > others + 20);
        seen = first.steps();
        seen == before
    });
    machine.control("resume", "first");
    wait("the first to go on", || first.steps() > seen + 5);

    fs::write(machine.path().join("stop"), "").unwrap();
    for job in [&mut first, &mut second] {
        wait("the end of a job", || !job.is_running());
        assert!(job.child.wait().unwrap().success());
    }
    wait("both to be gone", || {
        let lines = coordinator.lines();
        let gone = lines
            .iter()
            .filter(|line| line.contains(r#""what":"gone""#));
        gone.count() == 2
    });
    for line in coordinator.lines() {
        assert!(!line.contains(r#""what":"problem""#), "{line}");
    }
}

#[test]
fn a_job_sleeps_at_the_end_of_a_step_and_one_without_steps_is_suspended_at_an_allocation() {
    let machine = Machine::new();
    let Some(program) = compiled(machine.path(), "job.c") else {
        return;
    };
    let start = |name: &str, words: &[&str]| {
        let mut command = on_stand_in(&program);
        command.env("LARDER_CUDA_LIMIT", TOTAL.to_string());
        machine.job(name, command, words)
    };
    let with_steps = start("steps", &[]);
    wait("runs in its status", || {
        machine.top("steps")["mini_batch_micros"].as_u64() > Some(0)
    });
    machine.control("sleep", "steps");
    wait("its sleep", || machine.top("steps")["sleep"] == "asleep");
    assert_eq!(machine.top("steps")["gpus"][0]["device_held_bytes"], 0);
    Machine::wait_for_standstill(&with_steps);
    let seen = with_steps.steps();
    machine.control("wake", "steps");
    wait("it to go on", || with_steps.steps() > seen + 5);

    let bare = start("bare", &["bare"]);
    wait("its work and its status", || {
        bare.steps() > 5 && machine.top("bare")["alive"] == "yes"
    });
    machine.control("pause", "bare");
    Machine::wait_for_standstill(&bare);
    let seen = bare.steps();
    machine.control("resume", "bare");
    wait("it to go on", || bare.steps() > seen + 5);
}

#[test]
fn a_refusal_says_whether_the_control_file_was_waited_for() {
    let machine = Machine::new();
    let Some(program) = compiled(machine.path(), "job.c") else {
        return;
    };
    // This is more memory than the device has.
    let mebibytes = (5 * TOTAL / MIB).to_string();
    let said = |limit: &str| {
        let mut command = machine.shared(on_stand_in(&program));
        command
            .args([&mebibytes, "nowhere"])
            .env("GPU_CONFIG_FILE", machine.jobs().join("a.control.json"))
            .env("LARDER_CUDA_LIMIT", limit)
            .env("LARDER_CUDA_PATIENCE", "0");
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let coordinator = "start `larder coordinate`";
    let (of_limit, of_device) = (said(""), said(&format!("{} MiB", 100 * TOTAL / MIB)));
    assert!(of_limit.contains(coordinator), "{of_limit}");
    assert!(of_device.contains("CUDA out of memory. "), "{of_device}");
    assert!(!of_device.contains(coordinator), "{of_device}");
    let of_words = said("many");
    assert!(of_words.contains("set it to a size"), "{of_words}");
}
